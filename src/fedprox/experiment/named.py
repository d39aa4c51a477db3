"""Functions that sections name, and their options: data sets, models, methods, schedules."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fedprox.errors import InputError, choices, require
from fedprox.experiment.messages import Section, Table, check, require_key
from fedprox.experiment.optimizers import OPTIMIZERS, named_optimizer, options_key, options_schema
from fedprox.experiment.schema import NAME, schema_of
from fedprox.model import Model
from fedprox.user_code import import_function


def named(
    table: Mapping[str, Any],
    catalogue: Mapping[str, Callable[..., Any]],
    where: str,
    kind: type | None,
    *,
    key: str = "name",
) -> tuple[Callable[..., Any], Table]:
    """The function that a section names, with its options bound, and the section with defaults.

    The function is one of the catalogue, or one of the user's own as "package.module:function". It
    returns an object of a kind; None for a function. Its parameters are the section's keys, with
    their types; an optimizer is given by its name and options.
    """
    require_key(key, table, catalogue, where)
    name = table[key]
    given = {k: v for k, v in table.items() if k != key}
    if isinstance(name, str) and ":" in name:
        place = f"{where}.{key}"
        function = import_function(place, name, kind)
        positional = int(kind is Model)
        schema = schema_of(function, positional=positional, what=f"{place} = {name!r}")
    elif isinstance(name, str) and name in catalogue:
        function = catalogue[name]
        schema = (schema_of if kind else options_schema)(function)
    else:
        own = ', or one of your own as "package.module:function"'
        raise InputError(f"{where}.{key} = {name!r}; {choices(str(name), catalogue)}{own}")
    for each in optimizer_keys(schema):
        if schema.model_fields[each].is_required():
            require_key(each, given, OPTIMIZERS, where)
    options = check(schema, given, where).model_dump()
    shown = {option: value for option, value in options.items() if value is not None}
    bound = with_optimizers(options, optimizer_keys(schema), where)
    return functools.partial(function, **bound), {key: name, **shown}


def optimizer_keys(schema: type[Section]) -> list[str]:
    """The keys that name an optimizer."""
    return [key for key, field in schema.model_fields.items() if NAME in field.metadata]


def with_optimizers(options: Table, keys: list[str], where: str) -> Table:
    """The options, with each optimizer's name and options replaced by the optimizer."""
    bound = dict(options)
    for key in keys:
        name, of_optimizer = bound.pop(key, None), bound.pop(options_key(key), {})
        if name is not None:
            bound[key] = named_optimizer(name, of_optimizer, f"{where}.{key}")
        else:
            require(not of_optimizer, f"{where}.{options_key(key)}: give {key} beside it")
    return bound
