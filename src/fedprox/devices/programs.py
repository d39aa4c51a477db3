"""The compiled programs that a process keeps, and when two functions are the same for them.

`fp.models.logistic` and `fp.scaffold` return new functions with each call. They are closures of the
library's code over numbers, types and other such functions, and depend on nothing else. So they are
compared by these parts. A user's function may read global names that change between two cells of a
notebook, so it is the same only as itself. The programs do not keep it alive: they are let go with
it, and with the arrays that it closes over, whose values are constants of the programs.
"""

import dataclasses
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.stages import Compiled, Traced, Wrapped

from fedprox.jax_internals import compiler_settings, program_bytes
from fedprox.user_code import LIBRARIES


def by_value(value: Any) -> Hashable:
    """A key that equal values have, and functions that do the same.

    >>> from fedprox.algorithms.scaffold import scaffold
    >>> one, other = scaffold(), scaffold()
    >>> one.client.message == other.client.message, by_value(one) == by_value(other)
    (False, True)
    """
    parts: Any
    if isinstance(value, FunctionType) and _is_of_library(value):
        try:
            cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        except ValueError:  # one is empty
            return _itself(value)
        parts = by_value((cells, value.__defaults__, value.__kwdefaults__))
        return (value.__code__, value.__module__, parts) if _has_hash(parts) else _itself(value)
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
        return _itself(value)
    return type(value), tuple(map(by_value, parts))


def _itself(value: Any) -> Hashable:
    """A key that only a value has, or what equals it; it keeps no function alive."""
    if isinstance(value, MethodType):  # each look at an object's method gives a new one
        return MethodType, _itself(value.__func__), _itself(value.__self__)
    kind: Any = type(value)
    if kind.__hash__ is object.__hash__ and not _is_global(value):
        with suppress(TypeError):  # it cannot be referred to weakly
            return weakref.ref(value, _let_go)
    return kind, value


def _is_global(value: Any) -> bool:
    """Whether a value is a class, or a function that a library has for good."""
    module, name = (str(getattr(value, each, "")) for each in ("__module__", "__qualname__"))
    of_library = module.split(".")[0] in LIBRARIES
    found = getattr(sys.modules.get(module), name, None) if of_library else None
    return isinstance(value, type) or found is value


def _references(key: Any) -> list["weakref.ref[Any]"]:
    """The functions of a key that are the same only as themselves."""
    if isinstance(key, weakref.ref):
        return [key]
    return [each for part in key for each in _references(part)] if isinstance(key, tuple) else []


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
class ProgramSpec:
    """A program to compile.

    Attributes:
        make: () -> the program.
        arguments: Arguments for which it is compiled.
        known: The values on which it depends beside their shapes, compared `by_value`.
    """

    make: Callable[[], Wrapped]
    arguments: tuple[Any, ...]
    known: tuple[Any, ...]

    def trace(self) -> Traced | None:
        """Trace the program; None if JAX does it, or this process has compiled it before."""
        return None if debugs() or self.key in PROGRAMS else self.make().trace(*self.arguments)

    @cached_property
    def key(self) -> Hashable:
        """By what equal programs are found again; None if something has no hash."""
        leaves, structure = jax.tree.flatten(self.arguments)
        shapes = [(np.shape(a), a.dtype, getattr(a, "sharding", None)) for a in leaves]
        key = (by_value(self.known), structure, tuple(shapes), compiler_settings())
        return key if _has_hash(key) else None


class CompiledProgram(NamedTuple):
    """A program of `PROGRAMS`.

    Attributes:
        program: The compiled program.
        bytes: Bytes of its constants and of its code, as far as JAX says.
        functions: The functions of others that it was made of.
    """

    program: Compiled
    bytes: int
    functions: list["weakref.ref[Any]"]


PROGRAMS: OrderedDict[Hashable, CompiledProgram] = OrderedDict()
"""The programs that this process compiled last, so that a second comparison of the same methods on
data of the same shapes compiles nothing. They depend on nothing but their keys."""


MOST_PROGRAMS = 64
"""Most programs of `PROGRAMS`."""


MOST_BYTES = 2**28
"""Most bytes of the programs of `PROGRAMS`."""


FEWEST_PROGRAMS = 4
"""Programs that stay however large they are: a run needs its own in each evaluation."""


def _let_go(_: Any) -> None:
    """Let programs go whose functions are gone."""
    for key, kept in list(PROGRAMS.items()):
        if any(function() is None for function in kept.functions):
            PROGRAMS.pop(key, None)


def debugs() -> bool:
    """Whether JAX runs programs one operation after the other, always or to find a NaN.

    It does so by `JAX_DISABLE_JIT`, `JAX_DEBUG_NANS` and `JAX_DEBUG_INFS`, with functions that it
    compiles itself.
    """
    config: Any = jax.config
    return bool(config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs)


def compiled(spec: ProgramSpec) -> Compiled | Wrapped:
    """The program of one spec."""
    return compiled_once({"": spec}, {"": spec.trace()})[""]


def compiled_once(
    specs: Mapping[str, ProgramSpec], traced: Mapping[str, Traced | None]
) -> dict[str, Compiled | Wrapped]:
    """Compile in parallel what this process has not compiled before."""
    if debugs():
        return {name: spec.make() for name, spec in specs.items()}
    with ThreadPoolExecutor() as pool:
        making = {
            name: pool.submit(lambda each: each.lower().compile(), each)
            for name, each in traced.items()
            if each is not None
        }
    programs: dict[str, Compiled | Wrapped] = {}
    for name, spec in specs.items():
        if name in making:
            program, before = making[name].result(), traced[name]
            kept = CompiledProgram(program, program_bytes(before, program), _references(spec.key))
        else:
            kept = PROGRAMS[spec.key]
        programs[name] = kept.program
        if spec.key is not None:
            PROGRAMS[spec.key] = kept
            PROGRAMS.move_to_end(spec.key)
    while len(PROGRAMS) > MOST_PROGRAMS or (len(PROGRAMS) > FEWEST_PROGRAMS and _too_large()):
        PROGRAMS.popitem(last=False)
    return programs


def _too_large() -> bool:
    return sum(each.bytes for each in list(PROGRAMS.values())) > MOST_BYTES


FUNCTIONS: OrderedDict[Hashable, Wrapped] = OrderedDict()
"""The functions of `jit_once`, which keep the programs of all shapes."""


def jit_once(function: Callable[..., Any], **options: Any) -> Wrapped:
    """`jax.jit` of a function, the same for equal functions of the library alone."""
    key = by_value((function, options))
    if not _has_hash(key) or _references(key):  # it would keep others' functions alive
        return jax.jit(function, **options)
    if key not in FUNCTIONS:
        FUNCTIONS[key] = jax.jit(function, **options)
    FUNCTIONS.move_to_end(key)
    while len(FUNCTIONS) > MOST_PROGRAMS:
        FUNCTIONS.popitem(last=False)
    return FUNCTIONS[key]
