"""A method, one's own too, is what the engine counts on: checked before anything is compiled.

The engine's program holds a model, a message and what a client keeps in arrays of one shape. With a
method whose functions give other ones tracing would end in the middle of it.
"""

from typing import Any, get_args

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import Algorithm, Average, ClientContext, Solution, Stragglers, add
from fedprox.errors import InputError, require, require_one_of
from fedprox.model import Params
from fedprox.subproblem import Subproblem
from fedprox.user_code import describe, shapes_of

GIVEN = ("learning_rate", "participation")
"""Hyperparameters that every method's functions are given beside its own."""


def check_algorithm(algorithm: Algorithm, params: Params) -> None:
    """Raise `InputError` unless a method is as its docstring says and its functions fit together.

    Nothing is computed: they are traced. What one of them raises becomes one line that names it.

    Args:
        algorithm: The method.
        params: The model's parameters, in shape.

    >>> from fedprox.algorithms.scaffold import scaffold
    >>> check_algorithm(scaffold(), jax.ShapeDtypeStruct((3,), jnp.float32))
    """
    name = algorithm.name
    require_one_of(f"{name}: stragglers", algorithm.stragglers, get_args(Stragglers))
    require_one_of(f"{name}: average", algorithm.average, get_args(Average))
    for taken in GIVEN:
        require(
            taken not in algorithm.hparams,
            f"{name}: hparams: {taken!r}; every method is given this one; choose another name",
        )
    require(
        algorithm.exchange is None or algorithm.own_gradient,
        f"{name}: exchange: own_gradient must be True beside it, since both read gradients at w^t "
        "in one pass",
    )
    number: Any = jax.ShapeDtypeStruct((), jnp.float32)
    hparams = dict.fromkeys((*algorithm.hparams, *GIVEN), number)
    state = shapes_of(f"{name}: init(params)", algorithm.init, params)
    sent = shapes_of(f"{name}: params(state)", algorithm.params, state)
    _same(f"{name}: its params give", sent, "the model", params)
    if algorithm.evaluated is not None:
        found = shapes_of(f"{name}: evaluated(state)", algorithm.evaluated, state)
        _same(f"{name}: its evaluated gives", found, "the model", params)
    if algorithm.exchange is not None:
        found = shapes_of(f"{name}: exchange(state, mean)", algorithm.exchange, state, params)
        _same(f"{name}: its exchange gives", found, "the state before", state)
    client_state = None
    if algorithm.client_state is not None:
        client_state = shapes_of(f"{name}: client_state(params)", algorithm.client_state, params)
    context = ClientContext(params if algorithm.own_gradient else None, client_state, number)
    subproblem = f"{name}: subproblem(state, hparams, context)"
    problem = shapes_of(subproblem, algorithm.subproblem, state, hparams, context)
    require(
        isinstance(problem, Subproblem),
        f"{subproblem} returns {_kind(problem)}; it must return a fedprox.Subproblem",
    )
    _same(f"{name}: its local problem starts from", problem.start, "the model", params)
    require(
        (problem.mu is None) == (problem.anchor is None),
        f"{name}: its local problem has one of mu and anchor; give both or neither",
    )
    if problem.mu is not None:
        _same(f"{name}: mu of its local problem is", problem.mu, "a number", number)
        _same(f"{name}: the anchor of its local problem is", problem.anchor, "the model", params)
    if problem.linear is not None:
        _same(f"{name}: linear of its local problem is", problem.linear, "the model", params)
    steps: Any = jax.ShapeDtypeStruct((), jnp.int32)
    solution = Solution(problem, params, steps)
    send = f"{name}: message(state, hparams, context, solution)"
    pair = shapes_of(send, algorithm.message, state, hparams, context, solution)
    require(
        type(pair) is tuple and len(pair) == 2,
        f"{send} returns {_kind(pair)}; it must return two values, what the client sends and its "
        "new state",
    )
    message, new_state = pair
    _same(f"{name}: the new state of a client is", new_state, "its state before", client_state)
    for leaf in jax.tree.leaves(message):
        if jnp.result_type(leaf.dtype, jnp.float32) != leaf.dtype:
            raise InputError(
                f"{name}: its message is {describe(message)}, of which no mean can be taken; it "
                "must be float32"
            )
    if algorithm.adapt is not None:
        adapting = {key: value for key, value in hparams.items() if key != "participation"}
        memory = shapes_of(f"{name}: adapt.init", algorithm.adapt.init, adapting, number)
        pair = shapes_of(f"{name}: adapt.update", algorithm.adapt.update, adapting, memory, number)
        _same(f"{name}: its adapt.update gives", pair, "what it is given", (adapting, memory))
    size = shapes_of(f"{name}: size(message)", algorithm.size, message)
    _same(f"{name}: the size of its message is", size, "a number", number)
    if algorithm.update is add:
        _same(f"{name}: its message is", message, "the model", params)
    after = shapes_of(
        f"{name}: update(state, mean, hparams)",
        *(algorithm.update, state, message, hparams),
        given={"state": state, "mean": message},
    )
    _same(f"{name}: its update gives", after, "the state before", state)


def _kind(value: Any) -> str:
    """What a function returned, by its type."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _same(what: str, found: Any, name: str, expected: Any) -> None:
    """Raise `InputError` unless two trees have the same structure, shapes and types."""

    def alike(a: Any, b: Any) -> bool:
        return a.shape == b.shape and a.dtype == b.dtype

    structure: Any = jax.tree.structure(found)
    same = structure == jax.tree.structure(expected)
    if same and all(map(alike, jax.tree.leaves(found), jax.tree.leaves(expected))):
        return
    raise InputError(f"{what} {describe(found)}; it must be like {name}, {describe(expected)}")
