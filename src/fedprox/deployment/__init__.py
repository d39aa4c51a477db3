"""Real federations: the rounds of an experiment on machines that keep their own data."""
