"""The simulation of a federation: cohorts, stragglers, the schedule, the engine, the run."""
