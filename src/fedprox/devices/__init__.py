"""Devices and processes, and the programs that a process keeps."""
