"""The compiled programs of rounds and evaluations."""
