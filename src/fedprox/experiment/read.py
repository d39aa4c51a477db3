"""Reading an experiment file, with changes, and checking its keys and types."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from fedprox.errors import InputError, require
from fedprox.experiment.messages import HEADERS, Table, explain
from fedprox.experiment.sections import Experiment
from fedprox.experiment.settings import apply_setting
from fedprox.files.toml import read_toml
from fedprox.simulation.loop.described import IN_PYTHON

DEPLOYED = "deployment"
"""Value of `data.name` in the experiment of a deployment, whose data are on its nodes."""


def read_experiment(
    path: Path, settings: Sequence[str] = (), defaults: Mapping[str, Table] = MappingProxyType({})
) -> Experiment:
    """Read an experiment file.

    Args:
        path: The file.
        defaults: Sections that the file may leave out.
        settings: Changes to it, "KEY=VALUE" with a dotted key ("solver.epochs=1",
            "method.0.mu=[0.0, 1.0]") and a value as in TOML; a bare word is a string.

    Raises:
        InputError: The file is missing, not TOML, or holds unknown keys or values of a wrong type.
    """
    table = {**defaults, **read_toml(path)}
    for setting in settings:
        apply_setting(table, setting)
    return parse(str(path), table)


def parse(where: str, table: Table) -> Experiment:
    """An experiment from a table as TOML would hold it.

    Raises:
        InputError: The table is not an experiment; the message begins with `where`.
    """
    data = table.get("data")
    require(
        not isinstance(data, dict) or data.get("name") != IN_PYTHON,
        f"{where}: describes a comparison made in Python, whose data, model and methods are not in "
        "the file; it can only be run again there",
    )
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise InputError(f"{where}: {explain(error, Experiment, table, headers=HEADERS)}") from None
