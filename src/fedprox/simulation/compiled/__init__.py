"""The compiled programs: a round, an evaluation and their parts."""
