"""What the process says to its terminal, and hears from it: output, progress bars, signals."""
