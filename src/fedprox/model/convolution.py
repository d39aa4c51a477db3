"""Convolutions formulated so that they run fast inside a compiled loop on a CPU.

XLA's CPU backend has a fast convolution for one layout: the batch first, then positions, then
channels, and kernels (positions, inputs, outputs). It brings other convolutions to this layout, but
only outside loops. The gradients that JAX derives from a convolution have other layouts, so inside
a loop they take XLA's slow path, ten to forty times slower.

A convolution y(x, k) and its gradients are three products. Each is linear in both arguments, and
its derivatives are the other two:

    OUTPUT(x, k) -> y        INPUT(dy, k) -> dx        KERNEL(x, dy) -> dk

Here each of them is written in the fast layout, as a primitive of JAX of its own, which can be
differentiated in any mode and any number of times. `fast` puts them into a user's function. The
function is traced, and each convolution in its program that has a fast formulation is replaced by a
call of that. This holds inside `jax.jit`, `jax.checkpoint`, loops and conditions as well.
Everything else stays as it is, and so does a function without such convolutions.
"""

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

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
    make_bilinear,
    run_program,
    with_equations,
    with_settings,
)

OUTPUT, INPUT, KERNEL = "output", "input", "kernel"

FEW_WINDOWS = {OUTPUT: 8, INPUT: 16, KERNEL: 8}
"""Windows up to which patches times a matrix are faster than XLA's convolution."""

FEW_ON_A_LINE = 16
"""Likewise with one axis of positions, for each product."""

EXAMPLES_AT_A_TIME = 10
"""Of a kernel's gradient."""

SMALL_KERNEL = 64
"""Positions of a kernel up to which patches are tried: each is a slice of the program."""


class Convolution(NamedTuple):
    """Static numbers of a convolution, for each axis of positions.

    Attributes:
        lengths: Positions of x.
        sizes: Positions of the kernel.
        strides: Steps between windows.
        padding: Zeros added before and after x; negative numbers take values away.
        spread: Steps between values of x, with zeros between them.
        dilation: Steps between values of the kernel.
        groups: Groups of channels.
        precision: As in `jax.lax.conv_general_dilated`.
    """

    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    spread: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    precision: Any = None

    @property
    def extents(self) -> list[tuple[int, int, int]]:
        """For each axis, the positions that x, the kernel and y cover with their steps."""
        steps = zip(self.lengths, self.spread, self.sizes, self.dilation, strict=True)
        covered = [((n - 1) * s + 1, (k - 1) * d + 1) for n, s, k, d in steps]
        return [
            (x, k, (m - 1) * s + 1)
            for (x, k), m, s in zip(covered, self.windows, self.strides, strict=True)
        ]

    @property
    def windows(self) -> tuple[int, ...]:
        """Positions of y."""
        axes = zip(*self[:6], strict=True)
        return tuple(((n - 1) * a + sum(pad) - (k - 1) * d) // s + 1 for n, k, s, pad, a, d in axes)


def fast_convolution(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    spread: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
    precision: Any = None,
) -> jax.Array:
    """A convolution, on a CPU in the formulation that is fast inside loops.

    It can be differentiated in any mode any number of times.

    x is (B, ..., C), with one to three axes of positions, the kernel (..., C / groups, O). `spread`
    are steps between values of x, and `dilation` steps between values of the kernel. The other
    settings are those of `jax.lax.conv_general_dilated`.
    """
    ones = (1,) * len(strides)
    shape = Convolution(
        x.shape[1:-1],
        kernel.shape[:-2],
        tuple(strides),
        tuple((low, high) for low, high in padding),
        tuple(spread or ones),
        tuple(dilation or ones),
        groups,
        precision,
    )
    if jax.default_backend() == "cpu":
        return _bound(OUTPUT, shape, x, kernel)
    return _plain(shape, x, kernel)


def _layout(positions: int) -> lax.ConvDimensionNumbers:
    """The one layout of which XLA's CPU backend computes convolutions fast inside loops."""
    last, inner = positions + 1, tuple(range(1, positions + 1))
    kernel = (last, positions, *range(positions))
    return lax.ConvDimensionNumbers((0, last, *inner), kernel, (0, last, *inner))


def _convolved(
    shape: Convolution,
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    spread: Sequence[int],
    dilation: Sequence[int],
) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        strides,
        padding,
        spread,
        dilation,
        _layout(len(strides)),
        feature_group_count=shape.groups,
        precision=shape.precision,
    )


def _plain(shape: Convolution, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The product OUTPUT, by XLA's convolution."""
    numbers = shape.strides, shape.padding, shape.spread, shape.dilation
    return _convolved(shape, x, kernel, *numbers)


def _input_gradient(shape: Convolution, dy: jax.Array, kernel: jax.Array) -> jax.Array:
    """dL/dx: the full correlation of dy with the turned kernel."""
    positions = len(shape.strides)
    padding = [(k - 1 - pad[0], x + pad[0] - y) for (x, k, y), pad in _axes(shape)]
    turned = jnp.flip(kernel, range(positions))
    *sizes, inputs, outputs = kernel.shape
    turned = turned.reshape(*sizes, inputs, shape.groups, -1)
    turned = jnp.moveaxis(turned, (-3, -2, -1), (-1, -2, -3))
    turned = turned.reshape(*sizes, outputs // shape.groups, -1)
    return _convolved(shape, dy, turned, shape.spread, padding, shape.strides, shape.dilation)


def _kernel_gradient(shape: Convolution, x: jax.Array, dy: jax.Array) -> jax.Array:
    """dL/dkernel: x with its channels as batch, correlated with dy as the kernel.

    It takes a few examples at a time, whose transposed copies stay in the CPU's cache.
    """
    padding = [(pad[0], k - 1 + y - x - pad[0]) for (x, k, y), pad in _axes(shape)]

    def some(x: jax.Array, dy: jax.Array) -> jax.Array:
        x = x.reshape(*x.shape[:-1], shape.groups, -1)
        x = jnp.moveaxis(x, (-1, -2, 0), (0, -2, -1))
        x = x.reshape(*x.shape[:-2], -1)
        dy = jnp.moveaxis(dy, 0, -2)
        dk = _convolved(shape, x, dy, shape.dilation, padding, shape.spread, shape.strides)
        return jnp.moveaxis(dk, 0, -2)

    whole = len(x) // EXAMPLES_AT_A_TIME
    if whole < 2:
        return some(x, dy)
    xs, dys = (
        a[: whole * EXAMPLES_AT_A_TIME].reshape(whole, EXAMPLES_AT_A_TIME, *a.shape[1:])
        for a in (x, dy)
    )
    rest = x[whole * EXAMPLES_AT_A_TIME :], dy[whole * EXAMPLES_AT_A_TIME :]
    nothing = jnp.zeros((*shape.sizes, x.shape[-1] // shape.groups, dy.shape[-1]), x.dtype)
    first = some(*rest) if len(rest[0]) else nothing
    return lax.fori_loop(0, whole, lambda i, total: total + some(xs[i], dys[i]), first)


def _axes(shape: Convolution) -> Any:
    return zip(shape.extents, shape.padding, strict=True)


def _values(shape: Convolution, x: jax.Array) -> list[jax.Array]:
    """For each position of the kernel, the values of x that meet it: (B, windows, C)."""
    gaps = [
        (low, high, step - 1) for (low, high), step in zip(shape.padding, shape.spread, strict=True)
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *gaps, (0, 0, 0)])
    steps = list(zip(shape.windows, shape.strides, shape.dilation, strict=True))

    def at(place: tuple[int, ...]) -> jax.Array:
        begins = [i * d for i, (_, _, d) in zip(place, steps, strict=True)]
        axes = zip(begins, steps, strict=True)
        return x[:, *(slice(b, b + s * (m - 1) + 1, s) for b, (m, s, _) in axes)]

    return [at(place) for place in itertools.product(*map(range, shape.sizes))]


def _patches(shape: Convolution, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The product OUTPUT as one of matrices: all windows times the kernel."""
    return jnp.einsum(
        "...k,ko->...o",
        jnp.concatenate(_values(shape, x), -1),
        kernel.reshape(-1, kernel.shape[-1]),
        precision=shape.precision,
    )


def _shifts(shape: Convolution, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The product OUTPUT, with each channel in a group of its own, as a sum over the kernel."""
    weights = kernel.reshape(-1, shape.groups, kernel.shape[-1] // shape.groups)
    terms = zip(_values(shape, x), weights, strict=True)
    y = sum(values[..., None] * weight for values, weight in terms)
    return jnp.reshape(y, (*y.shape[:-2], -1))


def _by(
    formulation: Callable[[Convolution, jax.Array, jax.Array], jax.Array],
    role: str,
    shape: Convolution,
    a: jax.Array,
    b: jax.Array,
) -> jax.Array:
    """A product, from a formulation of OUTPUT."""
    if role == OUTPUT:
        return formulation(shape, a, b)
    missing = jax.ShapeDtypeStruct(_result_shape(role, shape, a, b), a.dtype)
    if role == INPUT:
        return jax.linear_transpose(lambda x: formulation(shape, x, b), missing)(a)[0]
    return jax.linear_transpose(lambda kernel: formulation(shape, a, kernel), missing)(b)[0]


_IN_LAYOUT: dict[str, Callable[[Convolution, jax.Array, jax.Array], jax.Array]] = {
    OUTPUT: _plain,
    INPUT: _input_gradient,
    KERNEL: _kernel_gradient,
}


def _computed(a: jax.Array, b: jax.Array, *, role: str, shape: Convolution) -> jax.Array:
    """A product in the formulation that is fast at its size."""
    if math.prod(shape.sizes) <= SMALL_KERNEL:
        if 1 < shape.groups == _channels(role, shape, a, b) and a.dtype.itemsize > 2:
            return _by(_shifts, role, shape, a, b)
        few = FEW_ON_A_LINE if len(shape.sizes) == 1 else FEW_WINDOWS[role]
        if math.prod(shape.windows) <= few and shape.groups == 1:
            return _by(_patches, role, shape, a, b)
    return _IN_LAYOUT[role](shape, a, b)


def _channels(role: str, shape: Convolution, a: Any, b: Any) -> int:
    """Channels of x."""
    return int(b.shape[-2] * shape.groups if role == INPUT else a.shape[-1])


def _result_shape(role: str, shape: Convolution, a: Any, b: Any) -> tuple[int, ...]:
    if role == OUTPUT:
        return (a.shape[0], *shape.windows, b.shape[-1])
    if role == INPUT:
        return (a.shape[0], *shape.lengths, _channels(role, shape, a, b))
    return (*shape.sizes, a.shape[-1] // shape.groups, b.shape[-1])


def _bound(role: str, shape: Convolution, a: jax.Array, b: jax.Array) -> jax.Array:
    product: jax.Array = _product(a, b, role=role, shape=shape)
    return product


def _to_first(d: jax.Array, _: Any, b: jax.Array, *, role: str, shape: Convolution) -> jax.Array:
    """The derivative along a product's first argument, from that along its result."""
    if role == OUTPUT:
        return _bound(INPUT, shape, d, b)
    if role == INPUT:
        return _bound(OUTPUT, shape, d, b)
    return _bound(INPUT, shape, b, d)


def _to_second(d: jax.Array, a: jax.Array, _: Any, *, role: str, shape: Convolution) -> jax.Array:
    """Likewise along the second argument."""
    if role == OUTPUT:
        return _bound(KERNEL, shape, a, d)
    if role == INPUT:
        return _bound(KERNEL, shape, d, a)
    return _bound(OUTPUT, shape, a, d)


def _batched(
    arguments: Sequence[jax.Array],
    axes: Sequence[int | None],
    *,
    role: str,
    shape: Convolution,
) -> tuple[jax.Array, int]:
    """One pair after another: XLA's CPU backend has no fast path for a batch of kernels."""
    batched = [axis is not None for axis in axes]
    a, b = (
        jnp.moveaxis(arg, axis or 0, 0) if own else arg
        for arg, axis, own in zip(arguments, axes, batched, strict=True)
    )
    if not batched[1] and role != KERNEL:
        merged = _bound(role, shape, a.reshape(-1, *a.shape[2:]), b)
        return merged.reshape(*a.shape[:2], *merged.shape[1:]), 0
    many = tuple(itertools.compress((a, b), batched))

    def one(pair: tuple[jax.Array, ...]) -> jax.Array:
        each = iter(pair)
        first, second = (
            next(each) if own else a_or_b for a_or_b, own in zip((a, b), batched, strict=True)
        )
        return _bound(role, shape, first, second)

    if len(many[0]) == 1:
        return one(tuple(arg[0] for arg in many))[None], 0
    return lax.map(one, many), 0


def _left_to_jax(a: jax.Array, b: jax.Array, *, role: str, shape: Convolution) -> jax.Array:
    """In place of `_product`; no other role is asked for, as JAX itself differentiates it."""
    assert role == OUTPUT
    return _plain(shape, a, b)


_FAST = "fast convolutions in loops on a CPU"

_product = (
    attempt(
        _FAST,
        make_bilinear,
        "fast_convolution",
        _computed,
        lambda a, b, *, role, shape: _result_shape(role, shape, a, b),
        (_to_first, _to_second),
        _batched,
        ("role", "shape"),
    )
    or _left_to_jax  # if this version of JAX has no such operations
)
"""(a, b, role, shape) -> a product."""


Computed = TypeVar("Computed", bound=Callable[..., Any])

_PLAIN: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Functions that were found to have no convolution, and are not traced again to see that."""


def fast(function: Computed) -> Computed:
    """A function that computes what another does, with fast convolutions if it is traced on a CPU.

    Where there is none to replace, or outside of traces, the function itself is called. So it is
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
            return plain(function)(*args)
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


def plain(function: Computed) -> Computed:
    """The function, of which `fast` will know that there is no convolution to replace."""
    with suppress(TypeError):
        _PLAIN.add(function)
    return function


_REWRITTEN: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
"""So that a program that is called several times stays one program; None for one as it was."""


def _if_known(program: Program) -> Program:
    """A program with fast convolutions; the program itself also where that fails."""
    return attempt(_FAST, _rewritten, program) or program


def _rewritten(program: Program) -> Program:
    """A program with fast convolutions; the program itself if it has none to replace."""
    if program not in _REWRITTEN:
        before = equations_of(program)
        after = [_rewritten_equation(each) for each in before]
        same = all(a is b for a, b in zip(after, before, strict=True))
        _REWRITTEN[program] = None if same else with_equations(program, after)
    return _REWRITTEN[program] or program


def _rewritten_equation(equation: Equation) -> Equation:
    if equation.primitive is lax.conv_general_dilated_p:
        return _fast_equation(equation) if _has_fast(equation) else equation
    new = {name: _rewritten_parameter(value) for name, value in equation.params.items()}
    changed = {name: value for name, value in new.items() if value is not equation.params[name]}
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
    """Whether a convolution has a fast formulation."""
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
    y = fast_convolution(x, kernel, groups=groups, **settings)
    order = (0, y.ndim - 1, *range(1, y.ndim - 1))
    return y.transpose([order[i] for i in np.argsort(layout.out_spec)])
