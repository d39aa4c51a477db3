"""A flax.nnx module as a model's functions; apart from `model`, since flax is slow to import."""

from collections.abc import Callable, Container
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from fedprox.errors import require
from fedprox.user_code import call, listed

Functions = tuple[
    Callable[[jax.Array], Any],
    Callable[[Any, jax.Array], jax.Array],
    Callable[[Any, jax.Array, jax.Array], jax.Array] | None,
    Callable[[Any, jax.Array], jax.Array] | None,
]
"""`Model.init`, `Model.apply`, `Model.train` and `Model.representation`."""


def functions_of(build: Callable[[nnx.Rngs], nnx.Module]) -> Functions:
    """The functions of the model that a function builds; see `Model.from_nnx`."""
    require(
        callable(build) and not isinstance(build, nnx.Module) and not _is_linen(build),
        f"model: from_nnx({_named(build)}); {_NEEDED}",
    )

    def built() -> nnx.Module:
        module = build(nnx.Rngs(0))
        require(
            isinstance(module, nnx.Module),
            f"model: build(rngs) returns {_named(module)}; {_NEEDED}",
        )
        return module

    module = call("model: build(rngs)", nnx.eval_shape, built)
    graph, _, streams, statistics, rest = nnx.split(
        module, nnx.Param, nnx.RngState, nnx.BatchStat, ...
    )
    _check_variables(module, statistics, rest)
    if statistics:  # their values, which the abstract module lacks
        statistics = nnx.State(nnx.to_pure_dict(nnx.state(built(), nnx.BatchStat)))

    def init(key: jax.Array) -> Any:
        return nnx.to_pure_dict(nnx.split(build(nnx.Rngs(key)), nnx.Param, ...)[1])

    def in_mode(params: Any, key: jax.Array, *, training: bool) -> Any:
        """The module, in the mode of training or of evaluation, whichever `build` left it in."""
        began = _streams_from(key, streams)
        module: Any = nnx.merge(graph, nnx.State(params), began, statistics)
        if streams:
            module.set_attributes(deterministic=not training, raise_if_not_found=False)
        return module

    def apply(params: Any, x: jax.Array) -> jax.Array:
        outputs: jax.Array = in_mode(params, jax.random.key(0), training=False)(x)
        return outputs

    def representation(params: Any, x: jax.Array) -> jax.Array:
        module = in_mode(params, jax.random.key(0), training=False)
        represented: jax.Array = module.representation(x)
        return represented

    def train(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        outputs: jax.Array = in_mode(params, key, training=True)(x)
        return outputs

    apply.__name__ = type(module).__name__  # what run directories call the model
    says = callable(getattr(module, "representation", None))
    return init, apply, train if streams else None, representation if says else None


def _check_variables(module: nnx.Module, statistics: nnx.State, rest: nnx.State) -> None:
    """Refuse a module with variables besides `nnx.Param` that training would change."""
    constant = {
        path
        for path, layer in nnx.iter_modules(module)
        if isinstance(layer, nnx.BatchNorm) and layer.use_running_average is True
    }

    def names(state: nnx.State, known: Container[Any] = ()) -> str:
        paths = [path for path, _ in nnx.to_flat_state(state) if path[:-1] not in known]
        return listed(paths, lambda path: ".".join(map(str, path)))

    moving, others = names(statistics, constant), names(rest)
    require(
        not moving,
        f"model: the module has variables that are not nnx.Param: running statistics, {moving}; "
        "mini-batches are padded and read in parts, and statistics of clients whose data differ "
        "have no meaningful average: use nnx.GroupNorm or nnx.LayerNorm, or a pretrained module "
        "with nnx.BatchNorm(..., use_running_average=True)",
    )
    require(
        not others,
        f"model: the module has variables that are not nnx.Param: {others}; clients' models can "
        "only be averaged where all are",
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
    """What a message calls an argument that is not a function that builds an nnx module."""
    if isinstance(given, type):
        kind = f"the class {given.__name__}"
    else:
        kind = "None" if given is None else f"an instance of {type(given).__name__}"
    return f"{kind}, a flax.linen module" if _is_linen(given) else kind
