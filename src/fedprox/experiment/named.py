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
"""Parameters that are not keys of a section."""


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
    """The keys of some parameters; an optimizer has a second key for its options."""
    keys: Keys = {}
    for key, parameter in parameters.items():
        keys[key] = parameter
        if is_optimizer(parameter.annotation):
            name = options_key(key)
            kind = inspect.Parameter.KEYWORD_ONLY
            keys[name] = inspect.Parameter(name, kind, default={}, annotation=Table)
    return keys


def _user_keys(function: Callable[..., Any], what: str, *, positional: int) -> Keys:
    """As `keys_of`, for a user's function whose first `positional` parameters are not keys.

    A parameter of a type that TOML lacks, such as a function, must have a default and is no key.

    Raises:
        InputError: The signature cannot be read, or requires a value that TOML cannot hold.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{what}: its signature cannot be read: {reason(error)}") from None
    require(len(parameters) >= positional, f"{what}: its first parameter must be the federation")
    keys = {}
    for key, parameter in list(parameters.items())[positional:]:
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if variadic or key == "data_dir":
            continue
        if _can_be_key(parameter.annotation):
            keys[key] = parameter
        elif parameter.default is parameter.empty:
            raise InputError(
                f"{what}: its parameter {key!r} has a type that no key has; use bool, int, float, "
                "str, Literal or a list of them, or give it a default"
            )
    return _with_options(keys)


def _can_be_key(annotation: Any) -> bool:
    """Whether TOML can hold, or name, the values of a type.

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
        kind: The class that the function returns; None if it returns a function.
        key: The key whose value is the name.

    Returns:
        The function, and the section with every default.

    Raises:
        InputError: An unknown name or key, or a value of a wrong type.
    """
    require_key(key, table, catalogue, where)
    name = table[key]
    function, keys = _function_and_keys(name, catalogue, f"{where}.{key}", kind)
    options = _checked({k: v for k, v in table.items() if k != key}, keys, str(name), where)
    shown = {option: value for option, value in options.items() if value is not None}
    bound = _with_optimizers(options, keys, where)
    return functools.partial(function, **bound), {key: name, **shown}


def _function_and_keys(
    name: Any, catalogue: Mapping[str, Callable[..., Any]], where: str, kind: type | None
) -> tuple[Callable[..., Any], Keys]:
    """The function of a name, and its keys."""
    if isinstance(name, str) and ":" in name:
        function = import_function(where, name, kind)
        return function, _user_keys(function, f"{where} = {name!r}", positional=int(kind is Model))
    if isinstance(name, str) and name in catalogue:
        return catalogue[name], keys_of(catalogue[name])
    allowed = choices(str(name), catalogue)
    own = ', or one of your own as "package.module:function"'
    raise InputError(f"{where} = {name!r}; {allowed}{own}")


def _checked(options: Table, keys: Keys, name: str, where: str) -> Table:
    """The value of every key, with the defaults of omitted keys."""
    fields: dict[str, Any] = {}
    for key, parameter in keys.items():
        needed = parameter.default is parameter.empty
        if is_optimizer(parameter.annotation):
            if needed:
                require_key(key, options, OPTIMIZERS, where)
            fields[key] = (Any, None)
        else:
            unchecked = parameter.annotation is parameter.empty or key in map(options_key, keys)
            kind = Any if unchecked else parameter.annotation
            fields[key] = (kind, ... if needed else parameter.default)
    schema = create_model(f"{name} options", __base__=Section, **fields)
    try:
        return schema.model_validate(options).model_dump()
    except ValidationError as error:
        raise InputError(explain(error, schema, options, where)) from None


def _with_optimizers(options: Table, keys: Keys, where: str) -> Table:
    """The options, with each optimizer's name and options replaced by the optimizer."""
    bound = dict(options)
    for key, parameter in keys.items():
        if not is_optimizer(parameter.annotation):
            continue
        name, optimizer_options = bound.pop(key), bound.pop(options_key(key))
        if name is not None:
            bound[key] = named_optimizer(name, optimizer_options, f"{where}.{key}")
        else:  # the function's default optimizer
            require(not optimizer_options, f"{where}.{options_key(key)}: give {key} beside it")
    return bound
