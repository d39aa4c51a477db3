"""Experiment files: TOML in, checked, resolved to objects."""

from fedprox.experiment.example import example_file
from fedprox.experiment.listing import Key, keys
from fedprox.experiment.messages import choices
from fedprox.experiment.named import keys_of
from fedprox.experiment.optimizers import OPTIMIZERS, SCHEDULES
from fedprox.experiment.read import DEPLOYED, parse, read_experiment
from fedprox.experiment.resolved import Resolved, load_data, resolve
from fedprox.experiment.sections import Experiment
from fedprox.experiment.settings import apply_setting
from fedprox.experiment.training import train

__all__ = [
    "DEPLOYED",
    "OPTIMIZERS",
    "SCHEDULES",
    "Experiment",
    "Key",
    "Resolved",
    "apply_setting",
    "choices",
    "example_file",
    "keys",
    "keys_of",
    "load_data",
    "parse",
    "read_experiment",
    "resolve",
    "train",
]
