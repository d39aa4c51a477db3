"""Training of the papers' items, and their figures, tables and verdicts."""
