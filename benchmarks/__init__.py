"""Measurements of speed, each as a ratio against something run beside it in the same process."""
