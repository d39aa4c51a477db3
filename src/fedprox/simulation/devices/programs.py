"""The compiled programs that a process keeps, and when two functions are the same for them.

`fp.models.logistic` and `fp.scaffold` return new functions with each call. They are closures of the
library's code over numbers, types and other such functions, and depend on nothing else. So they are
compared by these parts. A user's function may read global names that change between two cells of a
notebook, so it is the same only as itself.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import jax
import numpy as np
from jax.stages import Compiled, Traced, Wrapped

LIBRARIES = {"fedprox", "jax", "flax", "optax"}
"""Packages whose functions read no global name that changes."""


def by_value(value: Any) -> Hashable:
    """A key that equal values have, and functions that do the same.

    >>> from fedprox.algorithms.scaffold import scaffold
    >>> scaffold().message == scaffold().message, by_value(scaffold()) == by_value(scaffold())
    (False, True)
    """
    parts: Any
    if isinstance(value, FunctionType) and _is_of_library(value):
        try:
            cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        except ValueError:  # one is empty
            return value
        parts = by_value((cells, value.__defaults__, value.__kwdefaults__))
        return (value.__code__, value.__module__, parts) if _has_hash(parts) else value
    if isinstance(value, partial):
        parts = (value.func, value.args, value.keywords)
    elif isinstance(value, tuple):
        parts = value
    elif isinstance(value, Mapping):
        parts = tuple(value.items())
    elif dataclasses.is_dataclass(value) and _is_ours(type(value)):
        # the others, such as `Model.base`, are arguments of programs or make some
        compared = (field.name for field in dataclasses.fields(value) if field.compare)
        parts = tuple(getattr(value, name) for name in compared)
    else:
        return type(value), value
    return type(value), tuple(map(by_value, parts))


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "fedprox"


def _is_of_library(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).split(".")[0] in LIBRARIES


@dataclass(frozen=True)
class Request:
    """A program to compile.

    Attributes:
        make: () -> the program.
        arguments: Arguments for which it is compiled.
        known: What it depends on beside their shapes, compared `by_value`.
    """

    make: Callable[[], Wrapped]
    arguments: tuple[Any, ...]
    known: tuple[Any, ...]

    def trace(self) -> Traced | None:
        """Trace the program; None if JAX does it, or this process has compiled it before."""
        return None if debugs() or self.key in KEPT else self.make().trace(*self.arguments)

    @cached_property
    def key(self) -> Hashable:
        """By what equal programs are found again; a new object if something has no hash."""
        leaves, structure = jax.tree.flatten(self.arguments)
        shapes = [(np.shape(a), a.dtype, getattr(a, "sharding", None)) for a in leaves]
        config: Any = jax.config
        optimized = not config.values.get("jax_disable_most_optimizations")
        settings = (config.jax_enable_x64, config.jax_default_matmul_precision, optimized)
        key = (by_value(self.known), structure, tuple(shapes), settings)
        return key if _has_hash(key) else object()


Program = Compiled | Wrapped
"""What is called with the arguments of a request."""


KEPT: OrderedDict[Hashable, Compiled] = OrderedDict()
"""The programs that this process compiled last, so that a second comparison of the same methods on
data of the same shapes compiles nothing. They depend on nothing but their keys."""


MOST_KEPT = 64
"""Most programs of `KEPT`."""


def debugs() -> bool:
    """Whether JAX runs programs one operation after the other, always or to find a NaN.

    It does so by `JAX_DISABLE_JIT`, `JAX_DEBUG_NANS` and `JAX_DEBUG_INFS`, with functions that it
    compiles itself.
    """
    config: Any = jax.config
    return bool(config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs)


def compiled(request: Request) -> Program:
    """The program of one request."""
    return compiled_once({"": request}, {"": request.trace()})[""]


def compiled_once(
    requests: Mapping[str, Request], traced: Mapping[str, Traced | None]
) -> dict[str, Program]:
    """Compile in parallel what this process has not compiled before."""
    if debugs():
        return {name: request.make() for name, request in requests.items()}
    with ThreadPoolExecutor() as pool:
        making = {
            name: pool.submit(lambda each: each.lower().compile(), each)
            for name, each in traced.items()
            if each is not None
        }
    programs = {}
    for name, request in requests.items():
        programs[name] = making[name].result() if name in making else KEPT[request.key]
        KEPT[request.key] = programs[name]
        KEPT.move_to_end(request.key)
    while len(KEPT) > MOST_KEPT:
        KEPT.popitem(last=False)
    return programs


FUNCTIONS: OrderedDict[Hashable, Wrapped] = OrderedDict()
"""The functions of `jit_once`, which keep the programs of all shapes."""


def jit_once(function: Callable[..., Any], **options: Any) -> Wrapped:
    """`jax.jit` of a function, the same for equal functions."""
    key = by_value((function, options))
    if not _has_hash(key):
        return jax.jit(function, **options)
    if key not in FUNCTIONS:
        FUNCTIONS[key] = jax.jit(function, **options)
    FUNCTIONS.move_to_end(key)
    while len(FUNCTIONS) > MOST_KEPT:
        FUNCTIONS.popitem(last=False)
    return FUNCTIONS[key]
