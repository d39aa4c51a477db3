"""Optimizers and schedules of learning rates by their names and options."""

import functools
import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import optax

from fedprox.errors import SINGLE, InputError, require
from fedprox.experiment.messages import KINDS, choices
from fedprox.solver import line_search_descent, searches_line
from fedprox.user_code import call

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in ("adagrad", "adam", "adamw", "lbfgs", "lion", "nadam", "rmsprop", "sgd", "yogi")
} | {"line-search-descent": line_search_descent}
"""The optimizers that an experiment file can name: optax's, and descent with a line search."""


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


def named_optimizer(name: Any, options: Any, where: str) -> Callable[..., Any]:
    """The optimizer of a name, with its options bound.

    Args:
        name: The name.
        options: Its options.
        where: The key of the name, for messages.

    Raises:
        InputError: An unknown name or option, or a value that the optimizer refuses.
    """
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise InputError(f"{where} = {name!r}; {choices(str(name), OPTIMIZERS)}")
    where = options_key(where)
    require(isinstance(options, dict), f"{where} = {options!r}; it must be a table")
    function = OPTIMIZERS[name]
    kinds = option_kinds(function)
    for key, value in options.items():
        if key not in kinds:
            raise InputError(f"{where}: unknown key {key!r}; {choices(key, sorted(kinds))}")
        kind = kinds[key]
        of_kind = isinstance(value, (float, int) if kind is float else kind)
        require(
            of_kind and isinstance(value, bool) == (kind is bool),
            f"{where}.{key} = {value!r}; it must be {KINDS[kind][0]}",
        )
        require(
            kind is not float or abs(value) <= SINGLE[1],
            f"{where}.{key} = {value!r}; it must be finite in single precision",
        )
    bound = functools.partial(function, **options) if options else function
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


SCALES = "boundaries_and_scales"
"""The option of optax's piecewise schedules that maps rounds to factors."""


def option_kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of an optimizer or a schedule that TOML can give, and the type of each.

    >>> option_kinds(optax.adam)["nesterov"], option_kinds(optax.adam)["b1"]
    (<class 'bool'>, <class 'float'>)
    >>> option_kinds(optax.piecewise_constant_schedule)["boundaries_and_scales"]
    dict[str, float]
    """
    kinds: dict[str, Any] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if key.endswith("dtype"):
            kinds[key] = str  # its name, such as "bfloat16"
        elif key == SCALES:
            kinds[key] = dict[str, float]  # keys of TOML are strings
        elif key == "interpolate_type":
            kinds[key] = str
        elif key not in ("learning_rate", "linesearch", "mask"):  # the last two are functions
            exact = parameter.annotation in (bool, int)
            kinds[key] = parameter.annotation if exact else float
    return kinds


def _with_toml_types(build: Callable[..., Any]) -> Callable[..., Any]:
    """A function that builds an optax schedule, with TOML's types in place of arrays."""
    signature = inspect.signature(build)
    kinds = option_kinds(build)

    @functools.wraps(build)
    def build_schedule(**options: Any) -> Any:
        if options.get(SCALES):
            options[SCALES] = _by_round(options[SCALES], f"{build.__name__}: {SCALES}")
        return call(build.__name__, functools.partial(build, **options))

    build_schedule.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(annotation=kind | None if parameter.default is None else kind)
            for parameter, kind in zip(signature.parameters.values(), kinds.values(), strict=True)
        ]
    )
    return build_schedule


def _by_round(scales: dict[str, float], what: str) -> dict[int, float]:
    """TOML's table of factors, with whole numbers for keys."""
    for key in scales:
        require(
            key.isascii() and key.isdecimal() and len(key) < 10,
            f"{what} has the key {key!r}; each key must be a round, a whole number below 10^9",
        )
    return {int(key): scale for key, scale in scales.items()}


SCHEDULES: dict[str, Callable[..., Any]] = {
    name: _with_toml_types(getattr(optax, name))
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
