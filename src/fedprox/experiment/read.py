"""Reading an experiment file, with changes, and checking its keys and types."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedprox.errors import InputError, require
from fedprox.experiment.messages import Table, check
from fedprox.experiment.sections import HEADERS, Experiment
from fedprox.files.toml import parse_toml, read_toml
from fedprox.loop.described import IN_PYTHON

DEPLOYED = "deployment"
"""Value of `data.name` in the experiment of a deployment, whose data are on its nodes."""


def read_experiment(
    path: Path, settings: Sequence[str] = (), defaults: Mapping[str, Table] = MappingProxyType({})
) -> Experiment:
    """Read an experiment file, of which `defaults` are sections that it may leave out.

    Settings change it, "KEY=VALUE" with a dotted key ("solver.epochs=1", "method.0.mu=[0.0, 1.0]")
    and a value as in TOML; a bare word is a string.
    """
    table = read_table(path, settings, defaults)
    require(
        "study" not in table,
        f"{path}: has a section [study]; fedprox run or fedprox.run runs it, no other command",
    )
    return parse(str(path), table)


def read_table(
    path: Path, settings: Sequence[str] = (), defaults: Mapping[str, Table] = MappingProxyType({})
) -> Table:
    """The table of an experiment file, with changes; see `read_experiment`."""
    table = {**defaults, **read_toml(path)}
    for setting in settings:
        apply_setting(table, setting)
    return table


def parse(where: str, table: Table) -> Experiment:
    """An experiment from a table as TOML would hold it."""
    data = table.get("data")
    require(
        not isinstance(data, dict) or data.get("name") != IN_PYTHON,
        f"{where}: describes a comparison made in Python, whose data, model and methods are not in "
        "the file; it can only be run again there",
    )
    try:
        return check(Experiment, table, headers=HEADERS)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def apply_setting(table: Table, setting: str) -> None:
    """Change a table by "KEY=VALUE"; see `read_experiment`."""
    key, equals, text = setting.partition("=")
    require(equals and key.strip(), f"--set {setting}: it must be KEY=VALUE")
    try:
        parsed = parse_toml(f"value = {text}")
        value = parsed["value"]
    except ValueError:
        parsed, value = {}, text.strip()
    require(len(parsed) <= 1, f"--set {setting}: it must be one KEY=VALUE")
    *parents, last = key.strip().split(".")
    place: Any = table
    for name in parents:
        if isinstance(place, dict):
            place.setdefault(name, {})
        place = place[_index(place, name, setting)]
        require(isinstance(place, (dict, list)), f"--set {setting}: {name!r} is not a section")
    place[_index(place, last, setting)] = value


def _index(place: Table | list[Any], name: str, setting: str) -> Any:
    if isinstance(place, dict):
        return name
    numbers = [str(i) for i in range(len(place))]
    allowed = f"it must be a number from 0 to {len(place) - 1}" if place else "the list is empty"
    require(name in numbers, f"--set {setting}: {name!r} is not in the list; {allowed}")
    return int(name)
