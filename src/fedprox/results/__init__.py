"""Records, runs, targets, selection."""
