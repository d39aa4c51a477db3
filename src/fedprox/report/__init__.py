"""The results of a comparison: the run directory, the table, the figure."""
