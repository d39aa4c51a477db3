"""Measurements of a federation's heterogeneity."""
