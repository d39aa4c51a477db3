"""Plans of rounds as arrays: jobs, their lanes, and the rows of each tick."""
