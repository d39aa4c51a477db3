"""What compared methods share: cohort, systems, faults, evaluation and protocol."""
