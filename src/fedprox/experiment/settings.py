"""Changes to an experiment file from the command line: `--set KEY=VALUE`."""

from typing import Any

from fedprox.errors import require
from fedprox.experiment.messages import Table
from fedprox.files.toml import parse_toml


def apply_setting(table: Table, setting: str) -> None:
    """Change a table by "KEY=VALUE"; see `fedprox.experiment.read`.

    Raises:
        InputError: The setting is not of that form, or its key does not fit the table.
    """
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
        place = (
            place[_index(place, name, setting)]
            if name in place or isinstance(place, list)
            else place.setdefault(name, {})
        )
        require(isinstance(place, (dict, list)), f"--set {setting}: {name!r} is not a section")
    if isinstance(place, list):
        place[_index(place, last, setting)] = value
    else:
        place[last] = value


def _index(place: Table | list[Any], name: str, setting: str) -> Any:
    if isinstance(place, dict):
        return name
    numbers = [str(i) for i in range(len(place))]
    allowed = f"it must be a number from 0 to {len(place) - 1}" if place else "the list is empty"
    require(name in numbers, f"--set {setting}: {name!r} is not in the list; {allowed}")
    return int(name)
