"""Files: written atomically, locked, memory-mapped, and read with limits whatever they hold."""
