"""Frozen parts: a model of which some parameters stay as they are.

The frozen model has the other parameters alone. So the frozen ones are not sent, averaged, clipped
or decayed, and no client keeps a state for them, whatever the method and the optimizer.

The frozen values are constants of the compiled programs, and by default JAX writes them into each:
with 50 MB of them compilation took 8 s in place of 2, and the compilation cache grew by 177 MB.
With JAX's setting `jax_use_simplified_jaxpr_constants` they are arguments instead, and both stay as
without them.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax

from fedprox.errors import require, shown
from fedprox.model import Model, Params, check_params, dotted, fitted_params, training_outputs
from fedprox.user_code import SHOWN


class Frozen(NamedTuple):
    """A model with frozen parts.

    Attributes:
        model: The model of the parameters that are trained: a dict of arrays by their dotted paths
            in the whole model.
        trained: Parameters of the whole model -> those that are trained.
        whole: Trained parameters -> those of the whole model, for `save_model` and its `apply`.
    """

    model: Model
    trained: Callable[[Params], Params]
    whole: Callable[[Params], Params]


def freeze(model: Model, params: Params, names: Sequence[str]) -> Frozen:
    """Freeze parts of a model.

    Of a large frozen part, tens of megabytes, set `JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1` in the
    environment, so that its values are not written into each compiled program.

    Args:
        model: The whole model.
        params: Its parameters, of which the frozen ones keep their values, such as `load_model`
            gives. The others begin as `model.init` says, or with `simulate(initial=...)`.
        names: Names of parameters as messages show them ("dense.kernel"), or of parts that hold
            several ("dense").

    Raises:
        InputError: The parameters are not the model's, a name is not one of its parts, or nothing
            is left to train.

    Example:
        >>> import jax.numpy as jnp
        >>> model = Model(
        ...     lambda key: {"embedding": jnp.ones((5, 2)), "head": jnp.zeros((2, 3))},
        ...     lambda params, x: params["embedding"][x] @ params["head"],
        ... )
        >>> params = model.init(jax.random.key(0))
        >>> frozen = freeze(model, params, ["embedding"])
        >>> list(frozen.model.init(jax.random.key(1)))
        ['head']
        >>> list(frozen.whole({"head": jnp.ones((2, 3))}))
        ['embedding', 'head']
    """
    require(
        isinstance(names, Sequence)
        and not isinstance(names, str)
        and len(names) > 0
        and all(isinstance(name, str) for name in names),
        f"frozen = {shown(names)}; it must be a list of names of parameters",
    )
    given = fitted_params("frozen", model, params)
    paths, structure = jax.tree_util.tree_flatten_with_path(given)
    leaves = {dotted(path): leaf for path, leaf in paths}
    require(len(leaves) == len(paths), "frozen: two parameters of the model have the same name")
    some = [*list(leaves)[:SHOWN], *(["..."] if len(leaves) > SHOWN else [])]
    parts = {name: _part(name, leaves) for name in names}
    for name, part in parts.items():
        require(part, f"frozen: the model has no part {shown(name)}; it has {', '.join(some)}")
    values = {name: leaves[name] for part in parts.values() for name in part}
    require(
        len(values) < len(leaves), "frozen: these are all parameters of the model; leave some out"
    )

    def trained(whole: Params) -> Params:
        check_params("frozen", whole, given)
        found = jax.tree_util.tree_leaves_with_path(whole)
        return {dotted(path): leaf for path, leaf in found if dotted(path) not in values}

    def whole(part: Params) -> Params:
        check_params("frozen", part, {n: leaf for n, leaf in leaves.items() if n not in values})
        return jax.tree.unflatten(structure, [{**values, **part}[name] for name in leaves])

    def init(key: jax.Array) -> Params:
        return trained(model.init(key))

    @functools.wraps(getattr(model.apply, "function", model.apply))
    def apply(part: Params, x: jax.Array) -> jax.Array:
        return model.apply(whole(part), x)

    def train(part: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        return training_outputs(model, whole(part), x, key)

    frozen = replace(model, init=init, apply=apply, train=train if model.train else None)
    return Frozen(frozen, trained, whole)


def _part(name: str, known: Iterable[str]) -> list[str]:
    """The parameters that a name stands for."""
    return [each for each in known if each == name or each.startswith(f"{name}.")]
