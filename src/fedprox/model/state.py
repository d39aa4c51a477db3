"""A model at a state: what clients' local steps see of a model whose state moves with them.

A method's local problem is about the parameters alone. So a step reads the model with the client's
current state in it, whose functions are those of a model without state, and the state moves on
beside the step.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.errors import require
from fedprox.model.convolution import fast, plain
from fedprox.model.model import Model, arguments, loss_of_outputs, named
from fedprox.model.variables import Params, Variables
from fedprox.user_code import call, describe


def at_state(model: Model, state: Any, mask: jax.Array | None, *, moves: bool) -> Model:
    """The model without state that one with state is at a given one.

    Local steps of one that `moves` compute by `train`, of a mini-batch of which the rows of a mask
    (B,) count; those of another as evaluations do.
    """
    user: Any = model
    apply, represent = fast(user.apply.function), model.representation

    def train(params: Params, x: Any, key: jax.Array) -> Any:
        return _moved(model, (params, state), x, key, mask)[0]

    of_params = replace(
        model,
        init=user.init.params,
        apply=plain(lambda params, x: apply(params, state, x)),
        train=plain(train) if moves else None,
        representation=represent and plain(lambda params, x: fast(represent)(params, state, x)),
        state=None,
    )
    # else these shapes would be traced each time
    vars(of_params.apply)["shapes"] = model.shapes.params
    return of_params


def opened_at(model: Model, whole: Params, mask: jax.Array, *, moves: bool) -> tuple[Model, Params]:
    """A model as one without state, by `at_state` if it has one, and the parameters it takes."""
    if model.state is None:
        return model, whole
    return at_state(model, whole.state, mask, moves=moves), whole.params


def loss_and_next_state(
    model: Model,
    whole: Variables,
    x: Any,
    y: jax.Array,
    weights: jax.Array,
    key: jax.Array | None,
    mask: jax.Array,
) -> tuple[jax.Array, Any]:
    """`weighted_loss` and `next_state` of one pass: XLA does not find all that two would share."""
    outputs, state = _moved(model, arguments(whole, model.base), x, key, mask)
    return loss_of_outputs(model, outputs, y, weights), state


def next_state(
    model: Model, whole: Variables, x: Any, key: jax.Array | None, mask: jax.Array
) -> Any:
    """The state after a mini-batch, with the types of the one before."""
    return _moved(model, arguments(whole, model.base), x, key, mask)[1]


def _moved(model: Model, given: tuple[Any, ...], x: Any, key: Any, mask: Any) -> Any:
    """The outputs for a mini-batch and the next state."""
    train: Any = model.train
    called = named("train", given, ", key")
    result = call(called, fast(train), *given, x, key, mask, given={"x": x})
    require(
        isinstance(result, tuple) and len(result) == 2,
        f"{called} returns {describe(result)}; it must return the outputs and the next state",
    )
    state, before = result[1], given[1]
    require(
        _like(state) == _like(before),
        f"{called}: the next state is {describe(state)}; it must be like the state before, "
        f"{describe(before)}",
    )
    return result


def _like(tree: Any) -> Any:
    """A tree's structure, and the shapes and types of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
