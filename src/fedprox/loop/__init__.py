"""The loop over methods, seeds and calls of rounds."""
