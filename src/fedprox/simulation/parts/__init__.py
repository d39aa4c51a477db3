"""What parts plan of a run's rounds: the events of asynchronous rounds, and a clock."""
