"""What a simulation returns: records, runs, targets and the choice of a model."""
