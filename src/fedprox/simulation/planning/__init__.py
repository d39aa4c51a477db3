"""What a round will do: its jobs, their lanes and the rows of every tick, as arrays."""
