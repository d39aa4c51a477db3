"""Frozen parts: a model some of whose parameters are not trained.

The frozen model has only the other parameters. So the frozen ones are not sent, averaged, clipped
or decayed, and no client has state for them, whatever the method and the optimizer.

The frozen values are constants of the compiled programs. By default JAX writes them into each: with
50 MB of them, compilation took 8 s instead of 2 s, and the compilation cache grew by 177 MB. With
JAX's setting `jax_use_simplified_jaxpr_constants` they are arguments instead, at no such cost.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax

from fedprox.errors import require, shown
from fedprox.model import (
    Model,
    Params,
    check_params,
    dotted,
    fitted_params,
    named_part,
    training_outputs,
)
from fedprox.user_code import SHOWN


class Frozen(NamedTuple):
    """A model with frozen parts; see `freeze`.

    Attributes:
        model: The model of the trained parameters, a dict of arrays by their dotted paths in the
            whole model.
        trained: (parameters of the whole model) -> the trained ones.
        whole: (trained parameters) -> those of the whole model, for its `apply` and for
            `fedprox.save_model`.

    Example:
        >>> import jax
        >>> import fedprox as fp
        >>> whole = fp.models.logistic(fp.datasets.synthetic(clients=2))
        >>> frozen = fp.freeze(whole, whole.init(jax.random.key(0)), ["dense.bias"])
        >>> list(frozen.model.shapes), frozen.whole(frozen.model.init(jax.random.key(1))).keys()
        (['dense.weight'], dict_keys(['dense']))
    """

    model: Model
    trained: Callable[[Params], Params]
    whole: Callable[[Params], Params]


def freeze(model: Model, params: Params, names: Sequence[str]) -> Frozen:
    """Freeze parts of a model, so that only the others are trained.

    For frozen parts of tens of megabytes, set `JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS=1` in the
    environment, so that their values are not written into each compiled program.

    Args:
        model: The whole model.
        params: Parameters of the whole model, such as those of `fedprox.load_model`. They give the
            values of the frozen parts. The others start from `model.init`, or from the `initial` of
            `fedprox.simulate`.
        names: Dotted names of parameters ("dense.weight") or of parts with several ("dense").

    Returns:
        The model of the trained parameters, and functions between these and all parameters.

    Raises:
        InputError: If the parameters are not the model's, a name is not one of its parts, or
            nothing is left to train.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> model = fp.Model(
        ...     lambda key: {"embedding": jnp.ones((5, 2)), "head": jnp.zeros((2, 3))},
        ...     lambda params, x: params["embedding"][x] @ params["head"],
        ... )
        >>> params = model.init(jax.random.key(0))
        >>> frozen = fp.freeze(model, params, ["embedding"])
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
    parts = {name: named_part(name, leaves) for name in names}
    for name, part in parts.items():
        require(part, f"frozen: the model has no part {shown(name)}; it has {', '.join(some)}")
    values = {name: leaves[name] for part in parts.values() for name in part}
    require(
        len(values) < len(leaves), "frozen: these are all parameters of the model; leave some out"
    )

    def trained(whole: Params) -> Params:
        check_params("frozen", whole, given)
        arrays = jax.tree_util.tree_leaves_with_path(whole)
        return {dotted(path): leaf for path, leaf in arrays if dotted(path) not in values}

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

    def representation(part: Params, x: jax.Array) -> jax.Array:
        assert model.representation is not None
        return model.representation(whole(part), x)

    frozen = replace(
        model,
        init=init,
        apply=apply,
        train=train if model.train else None,
        representation=representation if model.representation else None,
    )
    return Frozen(frozen, trained, whole)
