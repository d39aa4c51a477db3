"""What a comparison leaves behind: the run directory, the table, the figure."""
