"""What a method's functions return, checked in shape before anything is compiled."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.algorithms.base import Adaptation, Memory, Own, Personal, State
from fedprox.algorithms.check import check_algorithm, context_shape, message_shape
from fedprox.loop.simulate import prepare
from tests.catalogue import VARIANTS
from tests.changes import changed

PARAMS: Any = {
    "a": jax.ShapeDtypeStruct((2,), jnp.float32),
    "b": jax.ShapeDtypeStruct((), jnp.float32),
}


def subproblem(state: State, hparams: Any, context: Any) -> fp.Subproblem:
    """It needs all that a client of this method knows, in its shape."""
    assert context.memory.shape == (3,)
    assert context.loss.shape == context.relative_size.shape == ()
    assert context.gradient.keys() == context.state.model.keys() == {"a", "b"}
    return fp.Subproblem(state["w"], hparams["mu"], state["w"], context.gradient)


def second(_: State, hparams: Any, context: Any) -> fp.Subproblem:
    assert context.gradient is None
    assert context.memory is None
    assert hparams.keys() == {"mu", "learning_rate", "participation"}
    return fp.Subproblem(context.state.model)


def message(state: Any, hparams: Any, context: Any, solution: Any) -> tuple[Any, Any]:
    del state, hparams
    assert solution.steps.dtype == jnp.int32
    return (solution.params, context.loss), context.state


def adapted(hparams: Any, memory: Any, loss: Any) -> tuple[Any, Any]:
    assert hparams.keys() == {"mu", "learning_rate"}
    return hparams, memory + loss


WHOLE = fp.Algorithm(
    "mine",
    subproblem,
    hparams={"mu": 1.0},
    stragglers="keep",
    adapt=Adaptation(lambda _, loss: loss, adapted),
    personal=Personal(lambda own, _: own, second, lambda own, w: own._replace(model=w)),
    server=fp.OnServer(
        init=lambda params: {"w": params, "t": jnp.int32(0)},
        update=lambda state, mean, _: {"w": mean[0], "t": state["t"] + 1},
        params=lambda state: state["w"],
        evaluated=lambda state: state["w"],
    ),
    client=fp.OnClient(
        state=lambda params: Own(params, jnp.bool_(False)),
        message=message,
        size=lambda sent: sent[1],
        memory=Memory(lambda *_: jnp.zeros(3), lambda _, __, context, w: context.memory + w["b"]),
    ),
    first=fp.First(
        gradient=True, loss=True, exchange=lambda state, gradient, _: {**state, "w": gradient}
    ),
)
"""A method with everything that a method can have."""


def test_a_method_with_everything_passes() -> None:
    check_algorithm(WHOLE, PARAMS)
    sent, loss = message_shape(WHOLE, PARAMS)
    assert jax.tree.map(jnp.shape, sent) == {"a": (2,), "b": ()}
    assert loss.shape == ()
    personal = WHOLE.personal
    assert personal is not None
    one_model = personal._replace(subproblem=None, keep=None)
    check_algorithm(WHOLE._replace(personal=one_model), PARAMS)
    plain = fp.Algorithm("plain", lambda w, *_: fp.Subproblem(w), {}, "drop")
    check_algorithm(plain, PARAMS)
    assert jax.tree.map(jnp.shape, message_shape(plain, PARAMS)) == {"a": (2,), "b": ()}
    for method, known in ((WHOLE, True), (plain, False)):
        context = context_shape(method, PARAMS, None)
        assert (context.gradient is not None, context.loss is not None) == (known, known)


def wide(params: Any) -> Any:
    return {**params, "a": jnp.zeros(3)}


def ints(params: Any) -> Any:
    return {**params, "a": jnp.zeros(2, jnp.int32)}


def posed(**terms: Any) -> Any:
    """A method whose local problem has other terms."""
    return {"subproblem": lambda *given: subproblem(*given)._replace(**terms)}


def sends(sent: Any, state: Any) -> Any:
    """A method whose clients send and keep something else, given the parameters."""
    return {
        "client.message": lambda _, hparams, context, solution: (
            (sent(solution.params), hparams["mu"]),
            context.state._replace(model=state(solution.params)),
        )
    }


def as_it_is(value: Any) -> Any:
    return value


MODEL, BEFORE = r"the model, a float32\[2\], b float32\[\]$", r"the state before, t int32\[\], "


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"server.params": lambda state: wide(state["w"])}, f"params.* gives .*like {MODEL}"),
        ({"server.params": lambda state: ints(state["w"])}, f"params.* gives .*like {MODEL}"),
        ({"server.params": lambda state: state["w"]["a"]}, f"params.* gives .*like {MODEL}"),
        ({"server.evaluated": lambda state: wide(state["w"])}, f"evaluated.* gives .*like {MODEL}"),
        ({"first.exchange": lambda *given: wide(given[0])}, f"exchange.* gives .*like {BEFORE}"),
        ({"server.update": lambda *given: given[0]["w"]}, f"update.* gives .*like {BEFORE}"),
        (
            {"server.update": lambda *_: 1 / 0},
            "update.* raised ZeroDivisionError: .*; it was given mean.0.* state.t int32",
        ),
        (posed(start=jnp.zeros(3)), f"its local problem starts from .*like {MODEL}"),
        (posed(mu=None), "its local problem has one of mu and anchor; give both or neither"),
        (posed(anchor=None), "its local problem has one of mu and anchor; give both or neither"),
        (posed(mu=jnp.zeros(2)), "mu of its local problem is .*like a number"),
        (posed(anchor=jnp.zeros(2)), f"the anchor of its local problem is .*like {MODEL}"),
        (posed(linear=jnp.zeros(2)), f"linear of its local problem is .*like {MODEL}"),
        (posed(trained=jnp.bool_(True)), "trained of its local problem is .*must have truth valu"),
        (posed(trained=PARAMS), "trained of its local problem is .*must have truth values for"),
        (
            {"client.message": lambda *given: [*message(*given)]},
            "message.* returns a value of type list; ",
        ),
        (
            {"client.message": lambda *given: (*message(*given), 1)},
            "message.* returns a value of type tup",
        ),
        (sends(as_it_is, wide), "the new state of a client is .*like its state before"),
        (sends(ints, as_it_is), "its message is .*, of which no mean can be taken; it must be fl"),
        ({"client.size": lambda sent: sent[0]["a"]}, "size.message. gives .*like a number"),
        ({"server.update": fp.fedavg().server.update}, f"its message is .*like {MODEL}"),
        ({"hparams": {"participation": 1.0}}, "hparams: 'participation'; every method is given"),
        ({"hparams": {"learning_rate": 1.0}}, "hparams: 'learning_rate'; every method is given"),
        ({"first.gradient": False}, "first.exchange: first.gradient must be True beside it"),
        ({"stragglers": "none"}, "stragglers = 'none'; it must be one of keep, drop"),
        ({"average": "none"}, "average = 'none'; it must be one of rows, clients"),
        ({"first.cohort": "none"}, "first.cohort = 'none'; it must be one of another, own"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], expected: str) -> None:
    refused(changed(WHOLE, change), expected)


def refused(method: fp.Algorithm, expected: str) -> None:
    with pytest.raises(fp.InputError) as error:
        check_algorithm(method, PARAMS)
    assert re.match(f"mine: {expected}", str(error.value).replace("\n", " ")), str(error.value)


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        (
            "client.memory",
            {"update": lambda *given: given[2].memory[:2]},
            "memory.update.* gives .*the memory",
        ),
        ("client.memory", {"init": lambda *_: None}, "memory.update.* raised TypeError"),
        ("adapt", {"update": lambda *given: given[:1]}, "adapt.update gives .*what it is given"),
        ("adapt", {"init": lambda _: 0}, "adapt.init raised TypeError"),
        (
            "personal",
            {"own": lambda own, _: own.model},
            "personal.own.* gives .*a model and a bool",
        ),
        ("personal", {"own": lambda own, _: own._replace(trained=0)}, "personal.own.* gives"),
        ("personal", {"keep": None}, "personal has one of subproblem and keep; give both"),
        ("personal", {"subproblem": None}, "personal has one of subproblem and keep; give both"),
        ("personal", {"keep": lambda _, w: w}, "personal.keep.* gives .*the state before"),
        ("personal", {"subproblem": lambda *_: 1}, "personal.subproblem.* returns a value of type"),
        (
            "personal",
            {"subproblem": lambda *_: fp.Subproblem(jnp.zeros(3))},
            f"personal: its local problem starts from .*like {MODEL}",
        ),
    ],
)
def test_what_does_not_fit_in_a_part_is_named(
    part: str, change: dict[str, Any], expected: str
) -> None:
    refused(changed(WHOLE, {f"{part}.{name}": value for name, value in change.items()}), expected)


MODEL_OF_LAYERS = fp.Model(
    lambda key: {"body": jax.random.normal(key, (2, 3)), "head": jnp.zeros((3, 3))},
    lambda params, x: x @ params["body"] @ params["head"],
    representation=lambda params, x: x @ params["body"],
)
THREE_ROWS = fp.Federation.from_arrays([(np.ones((1, 2)), np.array([k])) for k in range(3)])


def checked(method: fp.Algorithm) -> None:
    """Check a method as `simulate` does; nothing is trained."""
    prepare(
        method,
        seed=0,
        federation=THREE_ROWS,
        model=MODEL_OF_LAYERS,
        solver=fp.Solver(0.1, "all", steps=1),
        cohort=fp.Cohort(3),
        rounds=2,
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_the_model_stays_where_no_client_moves(name: str) -> None:
    checked(VARIANTS[name].method)


def sends_its_model(state: Any, hparams: Any, context: Any, solution: Any) -> tuple[Any, Any]:
    del state, hparams
    return solution.params, context.state


def of_length_one(params: Any, mean: Any, hparams: Any) -> Any:
    del hparams
    norm = optax.tree.norm(mean)
    return jax.tree.map(lambda w, d: w + d / norm, params, mean)


def decayed(params: Any, mean: Any, hparams: Any) -> Any:
    del hparams
    return jax.tree.map(lambda w, d: 0.9 * w + d, params, mean)


WRONG: dict[str, dict[str, Any]] = {
    "the mean as the model": {"server.update": lambda _, mean, __: mean},
    "models instead of updates": {"client.message": sends_its_model},
    "an update of length one": {"server.update": of_length_one},
    "decay": {"server.update": decayed},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_server_that_moves_alone_is_refused(name: str) -> None:
    method = changed(fp.fedprox(mu=0.2), WRONG[name])
    line = r"fedprox: update\(state, mean, hparams\): the server's model moves although no client"
    with pytest.raises(fp.InputError, match=line):
        checked(method)
    checked(method._replace(server=method.server._replace(moves_alone=True)))


def test_an_optimizer_says_whether_it_moves_alone() -> None:
    """And a method that moves alone does so with any rule."""
    adam, moving = fp.server.adam(0.1), changed(fp.fedavg(), {"server.moves_alone": True})
    assert moving.with_server(adam).server.moves_alone
    assert not fp.fedavg().with_server(adam).server.moves_alone
    assert not fp.fedopt(optax.adam).server.moves_alone
    decays = fp.fedopt(optax.adamw)
    assert decays.server.moves_alone
    checked(decays)
    with pytest.raises(fp.InputError, match="moves although"):
        checked(
            decays._replace(
                settings={},
                hparams={"server_learning_rate": 999.0},
                server=decays.server._replace(moves_alone=False),
            )
        )
