"""The example file with every key, as shown by the help of `fedprox run`."""

from collections.abc import Callable, Mapping
from textwrap import fill, wrap
from typing import Any

from pydantic.fields import FieldInfo

from fedprox.algorithms import ALGORITHMS
from fedprox.datasets import DATASETS
from fedprox.datasets.catalogue import literals
from fedprox.experiment.listing import Key, as_toml, keys, table_of
from fedprox.experiment.messages import HEADERS
from fedprox.experiment.named import keys_of
from fedprox.experiment.sections import NAMED, Experiment
from fedprox.models import MODELS

WIDTH = 98
COLUMN = 32
"""Column at which comments begin."""

CATALOGUES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "data": DATASETS,
    "model": MODELS,
    "method": ALGORITHMS,
}

NEEDED = {("solver", "epochs")}
"""Keys without a default that the file sets anyway: a solver needs `epochs` or `steps`."""

OFF = {"privacy"}
"""Sections that are commented out, since with them the file would train something else."""

FUNCTION_KEYS = {"method": ("mu = [0.0, 1.0]", "A key of fedprox; a list is swept over.")}
"""By section, a parameter of the function that the file names, with a comment."""


def example_file() -> list[str]:
    """An experiment file with every key, section by section.

    The file runs. Optional keys without a default are commented out, with an example value, and so
    are the sections `OFF`.
    """
    rows: dict[str, list[Key]] = {}
    for key in keys():
        rows.setdefault(key.section, []).append(key)
    top = [_line(key, Experiment.model_fields[key.key]) for key in rows[""]]
    sections = [
        _section(name, field, rows[name])
        for name, field in Experiment.model_fields.items()
        if name in HEADERS and name in rows
    ]
    return ["\n".join(top), *sections]


def _section(name: str, field: FieldInfo, rows: list[Key]) -> str:
    schema = NAMED.get(name) or table_of(field)
    assert schema is not None
    off = name in OFF
    lines = [_commented("# " * off + HEADERS[name], str(field.description))]
    lines += [_line(key, schema.model_fields[key.key], off=off) for key in rows]
    if name in FUNCTION_KEYS:
        lines.append(_commented(*FUNCTION_KEYS[name]))
    if name in CATALOGUES:
        lines.append(_catalogue(CATALOGUES[name]))
    return "\n".join(lines)


def _line(key: Key, field: FieldInfo, *, off: bool = False) -> str:
    """A key with a value, its description, its type and its default; commented out if `off`."""
    default = key.default and f"default {key.default}"
    facts = ", ".join(filter(None, [key.type, "required" if field.is_required() else default]))
    active = not off and (key.default != "" or (key.section, key.key) in NEEDED)
    value = as_toml(field.examples[0]) if field.examples else key.default
    text = f"{key.key} = {value}" if active else f"# {key.key} = {value}"
    return _commented(text, f"{key.description} ({facts})")


def _commented(text: str, comment: str) -> str:
    """A line of the file with a comment beside it, and below if it is long."""
    first, *others = wrap(comment, WIDTH - COLUMN - 2, break_on_hyphens=False)
    beside = f"  {text}".ljust(COLUMN)
    if len(beside) > COLUMN:
        first, others, above = "", [first, *others], [beside]
    else:
        above = [f"{beside}# {first}"]
    return "\n".join(above + [" " * COLUMN + f"# {line}" for line in others])


def _catalogue(catalogue: Mapping[str, Callable[..., Any]]) -> str:
    """The keys of each function that a section can name, with the allowed words of each key."""
    names: dict[str, list[str]] = {}
    for name, function in catalogue.items():
        shown = []
        for key, parameter in keys_of(function).items():
            words = " | ".join(f'"{word}"' for word in literals(parameter.annotation))
            shown.append(f"{key} = {words}" if words else key)
        names.setdefault(", ".join(shown) or "no more", []).append(name)
    return "\n".join(
        fill(
            f"{', '.join(functions)}: {function_keys}",
            WIDTH,
            initial_indent="  # ",
            subsequent_indent="  #   ",
            break_on_hyphens=False,
        )
        for function_keys, functions in names.items()
    )
