"""A user's function with its convolutions in the formulation of `fedprox.model.convolution`.

The function is traced, and in its program each convolution that has a fast formulation is replaced
by a call of that, in the programs inside (of `jax.jit`, `jax.checkpoint`, loops and conditions) as
well. Everything else stays as it is, and so does a function without such convolutions.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedprox.jax_internals import (
    Equation,
    Program,
    attempt,
    changed_rules,
    equations_of,
    in_place_of,
    is_program,
    is_tracer,
    run_program,
    with_equations,
    with_settings,
)
from fedprox.model.convolution import convolve

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Functions that were found to have no convolution, and are not traced again to see that."""


def fast(function: F) -> F:
    """A function that computes what another does, with fast convolutions if it is traced on a CPU.

    Where there is none to replace, or outside of traces, the function itself is called; so it is
    where the programs of this version of JAX are not as this file knows them.
    """

    @wraps(function)
    def replaced(*args: Any) -> Any:
        if jax.default_backend() != "cpu" or _is_plain(function) or not _is_traced(args):
            return function(*args)
        try:
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        except Exception:  # which the call itself raises, at the caller's place
            return function(*args)
        rewritten = _if_known(program)
        if rewritten is program:
            _remember(function)
            return function(*args)
        outputs = run_program(rewritten, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return replaced  # type: ignore[return-value]


def _is_traced(args: Any) -> bool:
    return any(map(is_tracer, jax.tree.leaves(args)))


def _is_plain(function: Any) -> bool:
    try:
        return function in _PLAIN
    except TypeError:  # neither hashed nor referred to weakly
        return False


def _remember(function: Any) -> None:
    with suppress(TypeError):
        _PLAIN.add(function)


_REWRITTEN: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
"""So that a program that is called several times stays one program; None for one as it was."""


def _if_known(program: Program) -> Program:
    """A program with fast convolutions; the program itself also where that fails."""
    rewritten = attempt("fast convolutions in loops on a CPU", _rewritten, program)
    return program if rewritten is None else rewritten


def _rewritten(program: Program) -> Program:
    """A program with fast convolutions; the program itself if it has none to replace."""
    if program not in _REWRITTEN:
        before = equations_of(program)
        after = [_rewritten_equation(each) for each in before]
        same = all(a is b for a, b in zip(after, before, strict=True))
        _REWRITTEN[program] = None if same else with_equations(program, after)
    new = _REWRITTEN[program]
    return program if new is None else new


def _rewritten_equation(equation: Equation) -> Equation:
    if equation.primitive is lax.conv_general_dilated_p:
        return _fast_equation(equation) if _has_fast(equation) else equation
    changed = {}
    for name, value in equation.params.items():
        new = _rewritten_parameter(value)
        if new is not value:
            changed[name] = new
    if not changed:
        return equation
    rules = changed_rules(equation.params, _if_known, fast)
    return with_settings(equation, equation.params | changed | rules)


def _rewritten_parameter(value: Any) -> Any:
    """A parameter of an operation, with fast convolutions in programs of which it consists."""
    if is_program(value):
        return _rewritten(value)
    if isinstance(value, tuple) and any(map(is_program, value)):
        new = tuple(map(_rewritten_parameter, value))
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return value


def _has_fast(equation: Equation) -> bool:
    """Whether a convolution has a formulation in `fedprox.model.convolution`."""
    arrays: Any = [each.aval for each in (*equation.invars, *equation.outvars)]
    x, kernel, y = arrays
    return (
        x.dtype == kernel.dtype == y.dtype
        and jnp.issubdtype(x.dtype, jnp.floating)
        and 3 <= x.ndim <= 5
        and 0 not in (*x.shape, *kernel.shape, *y.shape)
        and equation.params["out_sharding"] is None
    )


def _fast_equation(equation: Equation) -> Equation:
    """A call of the fast formulation in place of a convolution."""
    params = equation.params
    call = partial(
        _in_any_layout,
        layout=params["dimension_numbers"],
        batch_groups=params["batch_group_count"],
        strides=params["window_strides"],
        padding=params["padding"],
        spread=params["lhs_dilation"],
        dilation=params["rhs_dilation"],
        groups=params["feature_group_count"],
        precision=params["precision"],
    )
    return in_place_of(equation, call)


@partial(
    jax.jit,
    static_argnames=(
        *("layout", "batch_groups", "strides", "padding"),
        *("spread", "dilation", "groups", "precision"),
    ),
)
def _in_any_layout(
    x: jax.Array,
    kernel: jax.Array,
    *,
    layout: lax.ConvDimensionNumbers,
    batch_groups: int,
    groups: int,
    **settings: Any,
) -> jax.Array:
    """A convolution with axes in any order; each of `batch_groups` has outputs of its own."""
    batch, channels, *positions = layout.lhs_spec
    x = x.transpose(batch, *positions, channels)
    outputs, inputs, *positions = layout.rhs_spec
    kernel = kernel.transpose(*positions, inputs, outputs)
    if batch_groups > 1:  # as groups of channels
        x = x.reshape(batch_groups, -1, *x.shape[1:])
        x = jnp.moveaxis(x, 0, -2)
        x = x.reshape(*x.shape[:-2], -1)
        groups = batch_groups
    y = convolve(x, kernel, groups=groups, **settings)
    order = (0, y.ndim - 1, *range(1, y.ndim - 1))
    return y.transpose([order[i] for i in np.argsort(layout.out_spec)])
