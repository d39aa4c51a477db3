"""The loop over rounds: planning ahead, calls of compiled programs, records, checkpoints."""
