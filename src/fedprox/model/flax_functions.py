"""Modules of flax as the functions of a `Model`.

Layers of batch normalization are told which rows of a mini-batch count, since it may be padded.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx

from fedprox.errors import require
from fedprox.model.batch_norm import MASK, in_linen, masked
from fedprox.user_code import call


class Functions(NamedTuple):
    """The arguments of `Model`, by name."""

    init: Callable[[jax.Array], Any]
    apply: Callable[..., Any]
    train: Callable[..., Any] | None
    representation: Callable[..., Any] | None
    state: Callable[[jax.Array], Any] | None


class _Nnx(NamedTuple):
    """The parts of an nnx module beside its parameters and its state.

    Attributes:
        graph: The module's graph, as nnx splits it.
        streams: Its random streams, in shape.
        constants: Statistics of layers that were built to use them as they are.
        moves: The paths of the layers of batch normalization whose statistics move.
    """

    graph: Any
    streams: Any
    constants: Any
    moves: tuple[Any, ...]

    def at(self, params: Any, state: Any, key: jax.Array, *, training: bool) -> Any:
        """The module, in the mode of training or of evaluation, whichever `build` left it in."""
        began, rest = _streams_from(key, self.streams), (self.constants, nnx.State(state))
        module: Any = nnx.merge(self.graph, nnx.State(params), began, *rest)
        if self.streams:
            module.set_attributes(deterministic=not training, raise_if_not_found=False)
        for path, layer in nnx.iter_modules(module) if self.moves or self.constants else ():
            if path in self.moves:
                layer.use_running_average = not training
            if isinstance(layer, nnx.BatchNorm):
                kind: Any = type(layer)
                object.__setattr__(layer, "__class__", masked(kind))
        return module


def of_nnx(build: Any) -> Functions:
    """The functions of an nnx module; see `Model.from_nnx`."""
    require(
        callable(build) and not isinstance(build, nnx.Module) and not _is_linen(build),
        f"model: from_nnx({_named(build)}); {_NEEDED}",
    )

    def built(key: Any = 0) -> nnx.Module:
        module = build(nnx.Rngs(key))
        require(
            isinstance(module, nnx.Module),
            f"model: build(rngs) returns {_named(module)}; {_NEEDED}",
        )
        return module

    module = call("model: build(rngs)", nnx.eval_shape, built)
    moves = tuple(path for path, _ in _moving(module))
    of_layer = nnx.filterlib.to_predicate(nnx.BatchStat)

    def split(module: nnx.Module) -> Any:
        """The graph, parameters, random streams, constants, and what moves without gradients."""

        def constant(path: Any, value: Any) -> bool:
            return of_layer(path, value) and path[:-1] not in moves

        return nnx.split(module, nnx.Param, nnx.RngState, constant, ...)

    graph, _, streams, constants, moving = split(module)
    if constants:  # their values, which the abstract module lacks
        constants = nnx.State(nnx.to_pure_dict(split(built())[3]))
    of_module = _Nnx(graph, streams, constants, moves)

    def init(key: jax.Array) -> Any:
        return nnx.to_pure_dict(split(built(key))[1])

    def state(key: jax.Array) -> Any:
        return nnx.to_pure_dict(split(built(key))[4])

    def evaluating(params: Any, state: Any = {}) -> Any:  # noqa: B006 (not changed)
        return of_module.at(params, state, jax.random.key(0), training=False)

    def apply(params: Any, *given: Any) -> Any:
        return evaluating(params, *given[:-1])(given[-1])

    def representation(params: Any, *given: Any) -> Any:
        return evaluating(params, *given[:-1]).representation(given[-1])

    def train(params: Any, x: Any, key: jax.Array) -> Any:
        return of_module.at(params, {}, key, training=True)(x)

    def train_with_state(params: Any, state: Any, x: Any, key: jax.Array, mask: Any) -> Any:
        module, before = of_module.at(params, state, key, training=True), MASK.set(mask)
        try:
            outputs = module(x)
        finally:
            MASK.reset(before)
        return outputs, nnx.to_pure_dict(split(module)[4])

    apply.__name__ = type(module).__name__  # what run directories call the model
    without_state = train if streams else None
    return Functions(
        init,
        apply,
        train_with_state if moving else without_state,
        representation if callable(getattr(module, "representation", None)) else None,
        state if moving else None,
    )


def _moving(module: nnx.Module) -> list[tuple[Any, Any]]:
    """The layers of batch normalization whose statistics move, and their paths."""
    return [
        (path, layer)
        for path, layer in nnx.iter_modules(module)
        if isinstance(layer, nnx.BatchNorm) and layer.use_running_average is not True
    ]


MODES = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
"""Parameters of a linen module that say whether it trains, and their value if it does."""


def of_linen(module: Any, example: Any) -> Functions:
    """The functions of a linen module; see `Model.from_linen`."""
    require(
        isinstance(module, linen.Module),
        f"model: from_linen({_named(module)}, example); it needs a flax.linen module, such as "
        "nn.Dense(3)",
    )
    rows = jax.tree.map(lambda a: jnp.zeros(jnp.shape(a), jnp.result_type(a)), example)
    known = inspect.signature(type(module).__call__).parameters
    modes = {name: value for name, value in MODES.items() if name in known}

    def mode(*, training: bool) -> dict[str, bool]:
        return {name: value == training for name, value in modes.items()}

    def variables(key: jax.Array) -> dict[str, Any]:
        found = module.init({"params": key, "dropout": key}, rows, **mode(training=False))
        return {name: part for name, part in found.items() if name != "intermediates"}

    like = call("model: module.init(key, example)", jax.eval_shape, variables, jax.random.key(0))
    require(like.get("params"), "model: the module has no parameters")
    collections = [name for name in like if name != "params"]

    def init(key: jax.Array) -> Any:
        return variables(key)["params"]

    def state(key: jax.Array) -> Any:
        found = variables(key)
        return {name: found[name] for name in collections}

    def apply(params: Any, *given: Any, method: Any = None) -> Any:
        *state, x = given
        whole = {"params": params, **(state[0] if state else {})}
        return module.apply(
            whole, x, **mode(training=False) if method is None else {}, method=method
        )

    def train(params: Any, x: Any, key: jax.Array) -> Any:
        return module.apply({"params": params}, x, **mode(training=True), rngs={"dropout": key})

    def train_with_state(params: Any, state: Any, x: Any, key: jax.Array, mask: Any) -> Any:
        with linen.intercept_methods(in_linen(mask)):
            outputs, after = module.apply(
                {"params": params, **state},
                x,
                **mode(training=True),
                rngs={"dropout": key},
                mutable=collections,
            )
        return outputs, dict(after)

    apply.__name__ = type(module).__name__
    says = callable(getattr(module, "representation", None))
    return Functions(
        init,
        apply,
        train_with_state if collections else train if modes else None,
        partial(apply, method="representation") if says else None,
        state if collections else None,
    )


def _streams_from(key: jax.Array, like: nnx.State) -> nnx.State:
    """The initial random streams of a module, each with its own key."""

    def begin(number: int, variable: Any) -> jax.Array:
        if not jnp.issubdtype(variable.dtype, jax.dtypes.prng_key):
            return jnp.zeros(variable.shape, variable.dtype)
        own = jax.random.fold_in(key, number)
        return jax.random.split(own, variable.shape) if variable.shape else own

    flat = enumerate(nnx.to_flat_state(like))
    return nnx.from_flat_state([(path, begin(i, variable)) for i, (path, variable) in flat])


_NEEDED = (
    "it needs a function that builds a flax.nnx module, such as "
    "lambda rngs: nnx.Linear(4, 3, rngs=rngs)"
)


def _is_linen(given: Any) -> bool:
    return isinstance(given, linen.Module) or (
        isinstance(given, type) and issubclass(given, linen.Module)
    )


def _named(given: Any) -> str:
    """The name in messages of an argument that is no function that builds an nnx module."""
    if isinstance(given, type):
        kind = f"the class {given.__name__}"
    else:
        kind = "None" if given is None else f"an instance of {type(given).__name__}"
    return f"{kind}, a flax.linen module" if _is_linen(given) else kind
