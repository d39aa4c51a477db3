"""All that this library uses of JAX beyond its documented, stable functions.

These parts change from one version of JAX to the next. No other file imports them or reads traced
programs, and `tests/test_jax_internals.py` has a test for each name. Each function imports what it
needs when it is called, so a name that a version lacks fails there alone. Functions that only make
programs faster go through `attempt`: on an unknown version they are left out, and all results stay.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from fedprox.errors import InputError

Program = Any
"""A traced function: a `ClosedJaxpr` or `Jaxpr`, which are one class from JAX 0.11 on."""

Equation = Any
"""An operation of a program: its `primitive`, `params`, `invars` and `outvars`."""

T = TypeVar("T")


def attempt(what: str, function: Callable[..., T], *args: Any) -> T | None:
    """The result of a function that uses JAX's internals; None, and a line in the log, if it fails.

    `what` is then left out, for the log. The function must call nothing of the user's.
    """
    try:
        return function(*args)
    except Exception as error:
        _warn(what, f"{type(error).__name__}: {error}".partition("\n")[0])
        return None


@functools.cache
def _warn(what: str, error: str) -> None:
    """Log once that something is left out."""
    logging.getLogger(__name__).warning(
        "%s: left out, which costs time alone, since JAX %s is not known here (%s)",
        what,
        jax.__version__,
        error,
    )


def require_backend() -> None:
    """Start JAX, or say that it finds none of the devices that `JAX_PLATFORMS` names."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter for "cuda" without its plugin
        config: Any = jax.config
        why = re.split(r"\n| \(set JAX_PLATFORMS", str(error))[0]
        raise InputError(
            f"JAX_PLATFORMS = {config.jax_platforms!r}: "
            f"{why or 'no such device, or no JAX for it'}; leave it out, or set it to cpu"
        ) from error


def is_tracer(value: Any) -> bool:
    """Whether a value stands for an array while a function is traced."""
    return isinstance(value, jax.core.Tracer)


def is_program(value: Any) -> bool:
    """Whether a parameter of an operation is a program."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    return isinstance(value, ClosedJaxpr | Jaxpr)


def equations_of(program: Program) -> list[Equation]:
    """The operations of a program, in order."""
    return list(_inner(program).eqns)


def results_of(program: Program) -> list[Any]:
    """The variables that a program returns."""
    return list(_inner(program).outvars)


def _inner(program: Program) -> Program:
    """A program without its constants; from JAX 0.11 on itself, which holds them."""
    return getattr(program, "jaxpr", program)


def run_program(program: Program, arguments: Sequence[Any]) -> list[Any]:
    """The results of a program."""
    from jax.extend.core import jaxpr_as_fun

    return list(jaxpr_as_fun(program)(*arguments))


def with_equations(program: Program, equations: Sequence[Equation]) -> Program:
    """A program with other operations."""
    return _rebuilt(program, eqns=list(equations))


def with_results(program: Program, variables: Sequence[Any]) -> Program:
    """A program whose results are other variables of it."""
    unnamed = _inner(program).debug_info.with_unknown_names()
    return _rebuilt(program, outvars=list(variables), debug_info=unnamed)


def _rebuilt(program: Program, **changes: Any) -> Program:
    """A program with changes, and with its constants."""
    from jax.extend.core import ClosedJaxpr

    inner = _inner(program)
    new = inner.replace(**changes)
    return new if inner is program else ClosedJaxpr(new, program.consts)


def with_settings(equation: Equation, params: dict[str, Any]) -> Equation:
    """An operation with other settings."""
    return equation.replace(params=params)


def in_place_of(equation: Equation, function: Callable[..., Any]) -> Equation:
    """An operation that calls a jitted function in place of another operation."""
    called = equations_of(jax.make_jaxpr(function)(*(each.aval for each in equation.invars)))
    (call,) = called
    return call.replace(
        invars=equation.invars,
        outvars=equation.outvars,
        source_info=equation.source_info,
        ctx=equation.ctx,
    )


def repeat(equation: Equation, array: jax.Array) -> jax.Array:
    """The result of an operation of one array, for another array."""
    return equation.primitive.bind(array, **equation.params)


def is_literal(variable: Any) -> bool:
    """Whether an argument of an operation is a number in the program."""
    from jax.extend.core import Literal

    return isinstance(variable, Literal)


def changed_rules(
    params: dict[str, Any],
    of_program: Callable[[Program], Program],
    of_function: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> dict[str, Any]:
    """The rules of `jax.custom_jvp` and `jax.custom_vjp` among parameters, changed.

    `of_program` changes the program that a rule makes when it is first needed, `of_function` a
    function of a list of arrays to a list of arrays.
    """
    from jax.extend.linear_util import transformation2
    from jax.interpreters.ad import Zero

    def making(rule: Callable[..., Any], *zeros: Any) -> Any:
        program, *others = rule(*zeros)
        return of_program(program), *others

    def computing(rule: Callable[..., Any], *args: Any) -> Any:
        structure: Any = None
        results: list[Any] = []

        def is_zero(leaf: Any) -> bool:  # a symbol in place of an array of zeros
            return isinstance(leaf, Zero)

        def arrays(*args: Any) -> list[Any]:
            nonlocal structure
            results[:], structure = jax.tree.flatten(rule(*args), is_leaf=is_zero)
            return [each for each in results if not is_zero(each)]

        computed = iter(of_function(arrays)(*args))
        filled = [each if is_zero(each) else next(computed) for each in results]
        return jax.tree.unflatten(structure, filled)

    rules: dict[str, Any] = {}
    for name in ("jvp_jaxpr_fun", "fwd_jaxpr_thunk"):
        if name in params:
            rules[name] = transformation2(making)(params[name])
    if "bwd" in params:
        rules["bwd"] = transformation2(computing)(params["bwd"])
    return rules


def make_bilinear(
    name: str,
    compute: Callable[..., jax.Array],
    result_shape: Callable[..., tuple[int, ...]],
    derivatives: tuple[Callable[..., jax.Array], Callable[..., jax.Array]],
    batched: Callable[..., tuple[jax.Array, int]],
    static: tuple[str, ...],
) -> Callable[..., jax.Array]:
    """A new operation that is linear in each of two arrays, by functions of (a, b, parameters).

    `derivatives`, along a and along b, take the derivative along the result before these. `batched`
    takes arrays and their batch axes in place of a and b, and returns the axis of its results, too.
    """
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive(name)

    def abstract(a: Any, b: Any, **params: Any) -> Any:
        return jax.core.ShapedArray(result_shape(a, b, **params), a.dtype)

    primitive.def_impl(jax.jit(compute, static_argnames=static))
    primitive.def_abstract_eval(abstract)
    ad.defbilinear(primitive, *derivatives)
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    return primitive.bind


def peak_bytes(program: Any) -> int:
    """Peak bytes of a compiled program on one device, arguments included; 0 if unknown."""
    try:
        found = program.memory_analysis()
        return int(
            found.argument_size_in_bytes
            + found.output_size_in_bytes
            + found.temp_size_in_bytes
            - found.alias_size_in_bytes
        )
    except (AttributeError, NotImplementedError):  # also of a program that is not compiled
        return 0


def program_bytes(traced: Any, program: Any) -> int:
    """Bytes of a compiled program's constants, and of its code as far as it is known."""
    constants = jax.tree.leaves(list(getattr(traced.jaxpr, "consts", ())))
    code = 0
    with contextlib.suppress(AttributeError, NotImplementedError):
        code = int(program.memory_analysis().generated_code_size_in_bytes)
    return code + sum(getattr(each, "nbytes", 0) for each in constants)


def compiler_settings() -> tuple[Any, ...]:
    """Settings of JAX on which a compiled program depends."""
    config: Any = jax.config
    optimized = not config.values.get("jax_disable_most_optimizations")
    return config.jax_enable_x64, config.jax_default_matmul_precision, optimized


def traced(function: Callable[..., Any], *args: Any) -> tuple[str, Sequence[Any]]:
    """A function's program in text, traced anew, and the program's constants."""
    program = jax.make_jaxpr(lambda *args: function(*args))(*args)
    return str(program), program.consts


@contextlib.contextmanager
def nans_allowed() -> Iterator[None]:
    """Compute without JAX's search for numbers that are not finite, whatever its settings say."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def inputs_read(function: Callable[..., Any], *args: Any) -> list[bool]:
    """Whether a function reads each array of its arguments, in the order of `jax.tree.leaves`."""
    program = _inner(jax.make_jaxpr(function)(*args))
    read = {id(variable) for equation in program.eqns for variable in equation.invars}
    read |= {id(variable) for variable in program.outvars}
    return [id(variable) in read for variable in program.invars]


def inputs_returned(function: Callable[..., Any], *args: Any) -> list[int]:
    """For each array that a function returns, which of its arguments' it is; -1 if it is none."""
    program = _inner(jax.make_jaxpr(function)(*args))
    places = {id(variable): place for place, variable in enumerate(program.invars)}
    return [places.get(id(variable), -1) for variable in program.outvars]


def call_host(function: Callable[..., Any], like: Any, *args: Any) -> Any:
    """Call a function of the host from inside a program, each time that the program runs."""
    from jax.experimental import io_callback

    return io_callback(function, like, *args)


def gather_processes(value: Any) -> Any:
    """A value of each process, once all processes have called this."""
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(value)


def forget_cache_folder() -> None:
    """Let JAX look for the folder of compiled programs again: it does so once by itself."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
