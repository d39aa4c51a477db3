"""All keys of experiment files as rows, for the help and for the reference of keys."""

import re
from collections.abc import Callable, Mapping
from textwrap import fill
from typing import Any, NamedTuple

import tomli_w
from pydantic.fields import FieldInfo

from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.server import RULES
from fedprox.datasets import DATASETS, literals
from fedprox.experiment.schema import allowed_values, keys_of, table_of, type_of
from fedprox.experiment.sections import HEADERS, NAMED, Experiment
from fedprox.losses import LOSSES
from fedprox.models import MODELS

CATALOGUES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "data": DATASETS,
    "model": MODELS,
    "method": ALGORITHMS,
}
"""The sections whose keys depend on a name."""

WIDTH = 98


class Key(NamedTuple):
    """A key of an experiment file.

    Attributes:
        section: The key's section, such as "evaluation"; "" for the keys above all sections.
        key: The key's name.
        type: The allowed values in words.
        default: The default as TOML; "required" for a required key, "" for an optional key that
            has no value by default.
        description: The key's meaning and unit, as in a docstring.
    """

    section: str
    key: str
    type: str
    default: str
    description: str


def keys() -> list[Key]:
    """All keys of experiment files, section by section.

    The keys of a data set, a model or a method are the parameters of its function and are not among
    them; see `CATALOGUES`.

    >>> next(key for key in keys() if key.key == "clients_per_round")
    Key(section='cohort', key='clients_per_round', type='a whole number of at least 1',
        default='required', description='Number of clients per round, K.')
    """
    fields = {name: field for name, field in Experiment.model_fields.items() if not field.exclude}
    rows = rows_of({name: field for name, field in fields.items() if name not in HEADERS})
    for name, field in fields.items():
        if schema := NAMED.get(name) or table_of(field):
            rows += rows_of(schema.model_fields, name)
    return rows


def rows_of(fields: Mapping[str, FieldInfo], section: str = "") -> list[Key]:
    """The keys of a section, or of a function that a section names.

    >>> rows_of(keys_of(ALGORITHMS["scaffold"]))[0].default
    '2'
    """
    rows = []
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "required" if field.is_required() else "" if default is None else as_toml(default)
        description = " ".join((field.description or "").split())
        rows.append(Key(section, name, allowed_values(type_of(field)), shown, description))
    return rows


def as_toml(value: Any) -> str:
    """A value on one line of TOML.

    >>> as_toml({"momentum": 0.9, "nesterov": True}), as_toml([0, 1]), as_toml("uniform")
    ('{momentum = 0.9, nesterov = true}', '[0, 1]', '"uniform"')
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def listing() -> str:
    """The list of `fedprox keys`: every key with its type, default and meaning.

    A line in front of each section has its name; that of the keys of no section is empty.
    """
    texts: dict[str, list[str]] = {}
    for row in keys():
        default = f"default {row.default}" if row.default not in ("", "required") else row.default
        facts = ", ".join(filter(None, [row.type, default]))
        text = f"{row.key}: {facts}. {plain(row.description)}"
        texts.setdefault(row.section, []).append(_wrapped(text))
    for name, catalogue in CATALOGUES.items():
        texts[name] += _keys_by_name(catalogue)
    texts["model"] += ["  losses:", *_keys_by_name(LOSSES)]
    texts["method"] += ["  rules of server:", *_keys_by_name(RULES)]
    headers = {name: HEADERS.get(name, f"[{name}]" * bool(name)) for name in texts}
    return "".join(
        "\n".join([f"%% {name}".strip(), *filter(None, [headers[name]]), *texts[name], ""])
        for name in texts
    )


def _keys_by_name(catalogue: Mapping[str, Callable[..., Any]]) -> list[str]:
    """The keys of each function that a section can name, with the allowed words of each key."""
    names: dict[str, list[str]] = {}
    for name, function in catalogue.items():
        shown = []
        for key, field in keys_of(function).items():
            words = " | ".join(f'"{word}"' for word in literals(field.annotation))
            shown.append(f"{key} = {words}" if words else key)
        names.setdefault(", ".join(shown) or "no more", []).append(name)
    return [_wrapped(f"{', '.join(functions)}: {own}") for own, functions in names.items()]


def plain(description: str) -> str:
    r"""A docstring's text without its markup.

    >>> plain(r"Learning rate :math:`\eta` of :func:`fedprox.simulate`.")
    'Learning rate eta of fedprox.simulate.'
    """
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", description).replace("\\", "")


def _wrapped(text: str) -> str:
    return fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
