"""Optimizers and schedules of learning rates by their names and options."""

import functools
import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import optax
from pydantic import create_model

from fedprox.errors import SINGLE, InputError, choices, require
from fedprox.experiment.messages import Section, check
from fedprox.solver import line_search_descent, searches_line

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in ("adagrad", "adam", "adamw", "lbfgs", "lion", "nadam", "rmsprop", "sgd", "yogi")
} | {"line-search-descent": line_search_descent}
"""The optimizers that an experiment file can name: optax's, and descent with a line search."""

SCHEDULES: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in (
        "constant_schedule",
        "cosine_decay_schedule",
        "cosine_onecycle_schedule",
        "exponential_decay",
        "linear_onecycle_schedule",
        "linear_schedule",
        "piecewise_constant_schedule",
        "piecewise_interpolate_schedule",
        "polynomial_schedule",
        "warmup_constant_schedule",
        "warmup_cosine_decay_schedule",
        "warmup_exponential_decay_schedule",
    )
}
"""The schedules of learning rates that an experiment file can name: optax's."""

SCALES = "boundaries_and_scales"
"""The option of optax's piecewise schedules that maps rounds to factors."""


def is_optimizer(annotation: Any) -> bool:
    """Whether a type is that of an optimizer: a function that returns a transformation.

    >>> is_optimizer(Callable[..., optax.GradientTransformation] | None), is_optimizer(float)
    (True, False)
    """
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, UnionType):
        return any(map(is_optimizer, arguments))
    if origin is not Callable:
        return False
    result = arguments[-1]
    return inspect.isclass(result) and issubclass(result, optax.GradientTransformation)


def options_key(key: str) -> str:
    """The key of the options of the optimizer that another key names."""
    return f"{key}_options"


@functools.cache
def options_schema(function: Callable[..., Any]) -> type[Section]:
    """The schema of the options of an optimizer or a schedule that TOML can give.

    >>> list(options_schema(optax.linear_schedule).model_fields)
    ['init_value', 'end_value', 'transition_steps', 'transition_begin']
    """
    fields: dict[str, Any] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if key in ("learning_rate", "linesearch", "mask"):  # the last two are functions
            continue
        kind: Any = float
        if key.endswith("dtype") or key == "interpolate_type":
            kind = str  # its name, such as "bfloat16"
        elif key == SCALES:
            kind = dict[str, float]  # keys of TOML are strings
        elif parameter.annotation in (bool, int):
            kind = parameter.annotation
        if parameter.default is parameter.empty:
            fields[key] = kind, ...
        else:
            fields[key] = kind | None if parameter.default is None else kind, parameter.default
    return create_model("Options", __base__=Section, **fields)


def named_optimizer(name: Any, options: Any, where: str) -> Callable[..., Any]:
    """The optimizer of a name, with its options bound."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise InputError(f"{where} = {name!r}; {choices(str(name), OPTIMIZERS)}")
    where = options_key(where)
    require(isinstance(options, dict), f"{where} = {options!r}; it must be a table")
    check(options_schema(OPTIMIZERS[name]), options, where)
    for key, value in options.items():
        require(
            not isinstance(value, float) or abs(value) <= SINGLE[1],
            f"{where}.{key} = {value!r}; it must be finite in single precision",
        )
    bound = functools.partial(OPTIMIZERS[name], **options) if options else OPTIMIZERS[name]
    try:
        optimizer, one = bound(learning_rate=0.1), np.ones(1, np.float32)
        line = {"value": one[0], "grad": one, "value_fn": lambda w: (w**2).sum() / 2}
        with np.errstate(all="ignore"):
            optimizer.update(one, optimizer.init(one), one, **line)
        searches_line(bound, where)  # some numbers overflow only when they are traced
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{where} = {options}; {name} refuses them: {reason}") from None
    return bound
