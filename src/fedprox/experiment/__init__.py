"""Experiment files: TOML in, checked, resolved to objects."""

from fedprox.experiment.listing import CATALOGUES, Key, keys
from fedprox.experiment.resolved import Resolved, load_data, resolve, train
from fedprox.experiment.schema import OPTIMIZERS, SCHEDULES, keys_of
from fedprox.experiment.sections import (
    DEPLOYED,
    Experiment,
    apply_setting,
    parse,
    read_experiment,
    read_table,
)
from fedprox.experiment.study import StudyFile, read_study, run_study_file

__all__ = [
    "CATALOGUES",
    "DEPLOYED",
    "OPTIMIZERS",
    "SCHEDULES",
    "Experiment",
    "Key",
    "Resolved",
    "StudyFile",
    "apply_setting",
    "keys",
    "keys_of",
    "load_data",
    "parse",
    "read_experiment",
    "read_study",
    "read_table",
    "resolve",
    "run_study_file",
    "train",
]
