"""The work of rounds, and the plan of their programs."""
