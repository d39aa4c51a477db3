"""Functions that sections name, and their options: data sets, models, methods, schedules."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError, create_model

from fedprox.errors import InputError, reason, require
from fedprox.experiment.messages import KINDS, Table, choices, explain, require_key
from fedprox.experiment.optimizers import OPTIMIZERS, is_optimizer, named_optimizer, options_key
from fedprox.experiment.sections import Section
from fedprox.model import Model
from fedprox.user_code import import_function

Parameters = Mapping[str, inspect.Parameter]
Keys = dict[str, inspect.Parameter]

NOT_KEYS = ("federation", "data_dir")
"""Parameters that no section gives."""


def keys_of(function: Callable[..., Any]) -> Keys:
    """The parameters of a data set, a model or a method that are keys of its section.

    An optimizer has two keys: its name, and a table of its options.

    >>> from fedprox.algorithms import fedopt
    >>> list(keys_of(fedopt))
    ['optimizer', 'optimizer_options', 'server_learning_rate']
    """
    return _with_options(
        {
            key: parameter
            for key, parameter in inspect.signature(function).parameters.items()
            if key not in NOT_KEYS
        }
    )


def _with_options(parameters: Parameters) -> Keys:
    """The keys of some parameters: of an optimizer also that of its options."""
    keys: Keys = {}
    for key, parameter in parameters.items():
        keys[key] = parameter
        if is_optimizer(parameter.annotation):
            name = options_key(key)
            kind = inspect.Parameter.KEYWORD_ONLY
            keys[name] = inspect.Parameter(name, kind, default={}, annotation=Table)
    return keys


def _own_keys(function: Callable[..., Any], what: str, *, given: int) -> Keys:
    """As `keys_of`, of a user's function, which is given so many arguments by position.

    A parameter of a type that TOML does not have, such as a function, is no key if it has a
    default.

    Raises:
        InputError: Its signature cannot be read, or needs what TOML cannot hold.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{what}: its signature cannot be read: {reason(error)}") from None
    require(len(parameters) >= given, f"{what}: its first parameter must be the federation")
    found = {}
    for key, parameter in list(parameters.items())[given:]:
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if several or key == "data_dir":
            continue
        if _can_be_key(parameter.annotation):
            found[key] = parameter
        elif parameter.default is parameter.empty:
            raise InputError(
                f"{what}: its parameter {key!r} has a type that no key has; use bool, int, float, "
                "str, Literal or a list of them, or give it a default"
            )
    return _with_options(found)


def _can_be_key(annotation: Any) -> bool:
    """Whether TOML has values of a type, or names for them.

    >>> _can_be_key(float | Sequence[float] | None), _can_be_key(Callable[[int], int])
    (True, False)
    """
    if is_optimizer(annotation):
        return True
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, UnionType):
        return all(map(_can_be_key, arguments))
    if origin in (list, Sequence):
        return all(map(_can_be_key, arguments))
    known = (*KINDS, Any, inspect.Parameter.empty, type(None), dict)
    return origin in (Literal, dict) or annotation in known


def named(
    table: Mapping[str, Any],
    catalogue: Mapping[str, Callable[..., Any]],
    where: str,
    kind: type | None,
    *,
    key: str = "name",
) -> tuple[Callable[..., Any], Table]:
    """The function that a section names, with the section's options bound.

    The function is one of the catalogue, or one of the user's own as "package.module:function". Its
    parameters are the section's keys, with their types; an optimizer is given by its name and
    options.

    Args:
        table: The section.
        catalogue: The library's functions.
        where: The name of the section.
        kind: The class of what the function returns; None where it returns a function.
        key: The key of the name.

    Returns:
        The function, and the section with every default.

    Raises:
        InputError: An unknown name or key, or a value of a wrong type.
    """
    require_key(key, table, catalogue, where)
    name = table[key]
    function, keys = _found(name, catalogue, f"{where}.{key}", kind)
    options = _checked({k: v for k, v in table.items() if k != key}, keys, str(name), where)
    shown = {option: value for option, value in options.items() if value is not None}
    bound = _with_optimizers(options, keys, where)
    return functools.partial(function, **bound), {key: name, **shown}


def _found(
    name: Any, catalogue: Mapping[str, Callable[..., Any]], where: str, kind: type | None
) -> tuple[Callable[..., Any], Keys]:
    """The function of a name and its keys."""
    if isinstance(name, str) and ":" in name:
        function = import_function(where, name, kind)
        return function, _own_keys(function, f"{where} = {name!r}", given=int(kind is Model))
    if isinstance(name, str) and name in catalogue:
        return catalogue[name], keys_of(catalogue[name])
    allowed = choices(str(name), catalogue)
    own = ', or one of your own as "package.module:function"'
    raise InputError(f"{where} = {name!r}; {allowed}{own}")


def _checked(given: Table, keys: Keys, name: str, where: str) -> Table:
    """The value of every key, those that are not given with their defaults."""
    fields: dict[str, Any] = {}
    for key, parameter in keys.items():
        needed = parameter.default is parameter.empty
        if is_optimizer(parameter.annotation):
            if needed:
                require_key(key, given, OPTIMIZERS, where)
            fields[key] = (Any, None)
        else:
            free = parameter.annotation is parameter.empty or key in map(options_key, keys)
            kind = Any if free else parameter.annotation
            fields[key] = (kind, ... if needed else parameter.default)
    schema = create_model(f"{name} options", __base__=Section, **fields)
    try:
        return schema.model_validate(given).model_dump()
    except ValidationError as error:
        raise InputError(explain(error, schema, given, where)) from None


def _with_optimizers(options: Table, keys: Keys, where: str) -> Table:
    """The options with optimizers in place of their names and options."""
    bound = dict(options)
    for key, parameter in keys.items():
        if not is_optimizer(parameter.annotation):
            continue
        name, own = bound.pop(key), bound.pop(options_key(key))
        if name is not None:
            bound[key] = named_optimizer(name, own, f"{where}.{key}")
        else:  # the function's own
            require(not own, f"{where}.{options_key(key)}: give {key} beside it")
    return bound
