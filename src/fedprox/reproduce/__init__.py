"""Machinery that trains the papers' items, and draws and judges what comes out."""
