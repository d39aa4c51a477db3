"""The compiled programs that a process keeps.

They do not keep a user's function alive: they are let go with it, and with the arrays that it
closes over, whose values are constants of the programs.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.stages import Compiled, Traced, Wrapped

from fedprox.jax_internals import compiler_settings, program_bytes
from fedprox.same import by_value, has_hash, made_once, references


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
        return key if has_hash(key) else None


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
data of the same shapes compiles nothing. They depend on nothing but their keys.

They are listed by `dict`: an `OrderedDict` hashes each key to list it, and a key has hundreds of
parts."""


MOST_PROGRAMS = 64
"""Most programs of `PROGRAMS`."""


MOST_BYTES = 2**28
"""Most bytes of the programs of `PROGRAMS`."""


FEWEST_PROGRAMS = 4
"""Programs that stay however large they are: a run needs its own in each evaluation."""


def _let_go(_: Any) -> None:
    """Let programs go whose functions are gone."""
    for key, kept in list(dict.items(PROGRAMS)):
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
            functions = [weakref.ref(each(), _let_go) for each in references(spec.key)]
            kept = CompiledProgram(program, program_bytes(before, program), functions)
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
    return sum(each.bytes for each in list(dict.values(PROGRAMS))) > MOST_BYTES


def jit_once(function: Callable[..., Any], **options: Any) -> Wrapped:
    """`jax.jit` of a function, with its programs of all shapes; see `made_once`."""
    return made_once(_jitted, function, options)


def _jitted(function: Callable[..., Any], options: dict[str, Any]) -> Wrapped:
    return jax.jit(function, **options)
