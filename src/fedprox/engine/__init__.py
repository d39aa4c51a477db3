"""The engine: a round is planned on the host, and is one compiled program."""
