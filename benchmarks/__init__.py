"""Measurements of speed, most as ratios to a reference that runs in the same process."""
