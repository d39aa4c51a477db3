"""All keys of experiment files as rows, for the help and for the reference of keys."""

from typing import Any, NamedTuple, get_args

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedprox.experiment.messages import HEADERS, allowed_values
from fedprox.experiment.sections import NAMED, Experiment


class Key(NamedTuple):
    """A key of an experiment file.

    Attributes:
        section: The key's section, such as "evaluation"; "" for the keys above all sections.
        key: The key's name.
        type: The allowed values in words.
        default: The default as TOML; "required" for a required key, "" for an optional key that
            has no value by default.
        description: The key's meaning and unit.
    """

    section: str
    key: str
    type: str
    default: str
    description: str


def keys() -> list[Key]:
    """All keys of experiment files, section by section in the order of `fedprox run --help`.

    The keys of a data set, a model or a method are the parameters of its function and are not among
    them; see `fedprox.experiment.keys_of`.

    >>> next(key for key in keys() if key.key == "clients_per_round")
    Key(section='cohort', key='clients_per_round', type='a whole number', default='required',
        description='Clients K of a round.')
    """
    plain, tables = [], []
    for name, field in Experiment.model_fields.items():
        if name in HEADERS:
            if not field.exclude:
                tables += _rows(name, NAMED.get(name) or table_of(field))
        else:
            plain.append(_row("", name, field))
            if schema := table_of(field):
                tables += _rows(name, schema)
    return plain + tables


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The schema of a field that is, or may be, a table; None for other fields."""
    kinds = get_args(field.annotation) or (field.annotation,)
    tables = (k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return next(tables, None)


def _rows(section: str, schema: type[BaseModel] | None) -> list[Key]:
    assert schema is not None
    return [_row(section, name, field) for name, field in schema.model_fields.items()]


def _row(section: str, name: str, field: FieldInfo) -> Key:
    assert field.description is not None
    default = field.get_default(call_default_factory=True)
    shown = "required" if field.is_required() else "" if default is None else as_toml(default)
    kind = "a string" if field.annotation is Any else allowed_values(field.annotation)
    return Key(section, name, kind, shown, field.description)


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
