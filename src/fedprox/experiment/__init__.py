"""Experiment files: TOML in, checked, resolved to objects."""

from fedprox.experiment.listing import CATALOGUES, Key, help_sections, keys
from fedprox.experiment.messages import choices
from fedprox.experiment.optimizers import OPTIMIZERS, SCHEDULES
from fedprox.experiment.read import DEPLOYED, apply_setting, parse, read_experiment
from fedprox.experiment.resolved import Resolved, load_data, resolve, train
from fedprox.experiment.schema import keys_of
from fedprox.experiment.sections import Experiment

__all__ = [
    "CATALOGUES",
    "DEPLOYED",
    "OPTIMIZERS",
    "SCHEDULES",
    "Experiment",
    "Key",
    "Resolved",
    "apply_setting",
    "choices",
    "help_sections",
    "keys",
    "keys_of",
    "load_data",
    "parse",
    "read_experiment",
    "resolve",
    "train",
]
