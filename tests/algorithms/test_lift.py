"""A lifted method computes what the method computes, and no field of `Algorithm` is forgotten."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprox.algorithms import Algorithm
from fedprox.algorithms.base import ClientContext, First, Memory, OnClient, OnServer, Solution
from fedprox.algorithms.check import GIVEN, context_shape
from fedprox.algorithms.lift import lift
from fedprox.subproblem import Subproblem
from tests.catalogue import VARIANTS

PARAMS: Any = {
    "body": jax.ShapeDtypeStruct((3,), jnp.float32),
    "head": jax.ShapeDtypeStruct((2,), jnp.float32),
}
STEPS: Any = jax.ShapeDtypeStruct((), jnp.int32)
NUMBER: Any = jax.ShapeDtypeStruct((), jnp.float32)


class Outer(NamedTuple):
    """A state with something beside it."""

    state: Any
    beside: Any


def boxed(state: Any, _: Any = None) -> Outer:
    return Outer(state, np.arange(7))


def opened(outer: Outer) -> Any:
    assert outer.beside.shape == (7,)
    return outer.state


SERVER = ("init", "params", "evaluated", "update")
STATE = (*(f"server.{name}" for name in SERVER), "first.probe", "first.exchange")
CLIENTS = (
    *("subproblem", "client.message", "client.state", "client.memory"),
    *("server.received", "client.model_state", "personal"),
)
STATELESS = (
    *("client.solver", "client.round_steps", "client.objective", "client.size", "client.possible"),
    *("adapt", "first.sent", "inside"),
)


def test_every_function_of_a_method_is_lifted_or_sees_no_state() -> None:
    kinds = ("Callable", "Objective", "Adaptation", "Memory", "Personal")
    parts = {"": Algorithm, "client.": OnClient, "server.": OnServer, "first.": First}
    functions = {
        part + name
        for part, of in parts.items()
        for name, kind in of.__annotations__.items()
        if any(word in str(kind) for word in kinds)
    }
    assert {*STATE, *CLIENTS, *STATELESS} == functions


def computed(method: Algorithm, box: Any, unbox: Any) -> Callable[..., dict[str, Any]]:
    """All that a method computes from its own states and a client's model."""

    def compute(
        state: Any, context: ClientContext, hparams: Any, params: Any, steps: Any
    ) -> dict[str, Any]:
        outer, own = box(state), box(context.state)
        known = method.begun(outer, context._replace(state=own))
        problem = method.subproblem(outer, hparams, known)
        found = {"memory": known.memory, "problem": tuple(problem)}
        if method.client.memory is not None:
            known = known._replace(
                memory=method.client.memory.update(outer, hparams, known, params)
            )
        sent, after = method.client.message(outer, hparams, known, Solution(problem, params, steps))
        found |= {"sent": sent, "own": unbox(after), "after": known.memory}
        found["update"] = unbox(method.server.update(outer, sent, hparams))
        of_state = method.server.params, method.server.evaluated, method.first.probe
        found["of the state"] = [function and function(outer) for function in of_state]
        if method.first.exchange is not None:
            found["exchange"] = unbox(method.first.exchange(outer, params, hparams))
        if method.server.received is not None:
            found["received"] = method.server.received(outer, known)
        personal = method.personal
        if personal is not None:
            found["own model"] = personal.own(own, params)
            if personal.keep is not None and personal.subproblem is not None:
                found["kept"] = unbox(personal.keep(own, params))
                found["second"] = tuple(personal.subproblem(outer, hparams, known))
        found["first"] = unbox(method.initial(*[params] * method.server.starts))
        if method.client.state is not None:
            first = unbox(method.client.state(params))
            found["first own"] = first
        return found

    return compute


@pytest.mark.parametrize("name", VARIANTS)
def test_a_method_inside_other_states_computes_the_same(name: str) -> None:
    """Both are traced to the same program."""
    method = VARIANTS[name].method
    state, own = method.state_like(PARAMS), method.client.state
    context = context_shape(method, PARAMS, own and jax.eval_shape(own, PARAMS))
    hparams = dict.fromkeys((*method.hparams, *GIVEN), NUMBER)
    given = state, context, hparams, PARAMS, STEPS
    lifted = lift(method, server=boxed, client=boxed)
    alone = jax.make_jaxpr(computed(method, lambda s: s, lambda s: s))(*given)
    inside = jax.make_jaxpr(computed(lifted, boxed, opened))(*given)
    assert str(inside) == str(alone)


def test_what_clients_see_and_receive_can_change() -> None:
    """Seen state and hyperparameters reach client functions, and the server's see neither."""
    found = []

    def reads(state: Any, hparams: Any, *_: Any) -> Any:
        found.append((state, hparams))
        return state

    inner = Algorithm(
        "reader",
        lambda state, hparams, _: Subproblem(reads(state, hparams)),
        hparams={},
        stragglers="keep",
        client=OnClient(
            message=lambda state, hparams, *_: (reads(state, hparams), None),
            memory=Memory(lambda state, _: reads(state, "none"), reads),
        ),
        server=OnServer(update=lambda state, _, hparams: reads(state, hparams)),
    )

    def on_client(given: Any, context: ClientContext | None) -> Any:
        return given if context is None else f"{given} on a client"

    method = lift(
        inner,
        server=Outer,
        seen=lambda outer, context: f"{outer.state} seen by {context.relative_size}",
        hparams=on_client,
    )
    state: Any = Outer("state", "beside")
    hparams: Any = "hparams"
    size: Any = "1"
    context = context_shape(inner, PARAMS, None)._replace(relative_size=size)
    solution: Any = None
    assert method.client.memory is not None
    method.subproblem(state, hparams, context)
    method.client.message(state, hparams, context, solution)
    method.client.memory.update(state, hparams, context, "params")
    assert found == [("state seen by 1", "hparams on a client")] * 3
    found.clear()
    assert method.client.memory.init(state, context) == "state seen by 1"
    assert method.server.update(state, solution, hparams) == state
    assert found[1] == ("state", "hparams")
