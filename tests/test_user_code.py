"""Mistakes in functions of the user's own: each is one line that names the function."""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fedprox as fp
from fedprox.diagnostics.clients import client_measures
from fedprox.losses import met_by_labels, top_1
from fedprox.report.directory import RunDirectory, write_clients
from tests.changes import changed
from tests.quadratics import one_run

CLIENTS = [(np.random.default_rng(k).normal(size=(6, 4)), np.arange(6) % 3) for k in range(3)]
FEDERATION = fp.Federation.from_arrays(CLIENTS, CLIENTS)
SOLVER = fp.Solver(0.1, 3, steps=1)


def init(_: jax.Array) -> Any:
    return {"bias": jnp.zeros(3), "kernel": jnp.ones((4, 3))}


def linear(params: Any, x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"]


MODEL = fp.Model(init, linear)
X = jnp.ones((2, 4))


def message_of(what: Callable[[], object]) -> str:
    with pytest.raises(fp.InputError) as refused:
        what()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def simulated(model: fp.Model, method: fp.Algorithm | None = None) -> Callable[[], object]:
    return lambda: one_run(FEDERATION, model, method or fp.fedavg(), SOLVER)


# The structure of parameters


def nested(**changes: Any) -> Any:
    return {key: value for key, value in (init(X) | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"foo": jnp.zeros(3), "zoo": jnp.ones((4, 3))},
            "parameters have 'foo', 'zoo' where 'bias', 'kernel' are needed",
        ),
        (nested(bias=None, b=jnp.zeros(3)), "parameters have 'b' where 'bias' is needed"),
        (nested(bias=None), "parameters lack 'bias'"),
        (nested(scale=jnp.ones(3)), "parameters have 'scale', which the model does not"),
        (nested(kernel=jnp.ones((3, 4))), "kernel: shape (3, 4) where (4, 3) is needed"),
        (jnp.ones(3), "parameters have one array where 'bias', 'kernel' are needed"),
        (None, "parameters lack 'bias', 'kernel'"),
        ({**nested(), 3: jnp.ones(1)}, "its parameters raised ValueError: Comparator raised"),
    ],
)
def test_parameters_of_another_structure_are_refused_by_path(params: Any, message: str) -> None:
    if not isinstance(params, dict) or 3 not in params:  # jit itself refuses unlike keys
        assert message_of(lambda: jax.jit(MODEL.apply)(params, X)) == f"model: {message}"
    assert message_of(lambda: MODEL.apply(params, X)).startswith(f"model: {message}")


def test_keys_of_another_type_are_shown_with_it() -> None:
    model = fp.Model(lambda _: {0: jnp.ones(4)}, lambda p, x: x @ p[0])
    expected = "model: parameters have ['0'] where [0] is needed"
    assert message_of(lambda: model.apply({"0": jnp.ones(4)}, X)) == expected
    as_list = message_of(
        lambda: fp.Model(lambda _: [jnp.ones(4)], lambda p, x: x @ p[0]).apply({0: jnp.ones(4)}, X)
    )
    assert as_list == "model: parameters have [0] where [0] is needed"


def test_models_of_the_same_functions_are_equal_and_compiled_once() -> None:
    assert fp.Model(init, linear) == MODEL
    assert hash(fp.Model(init, linear)) == hash(MODEL)
    assert dataclasses.replace(MODEL) == MODEL
    assert fp.Model(init, MODEL.apply) == MODEL
    assert fp.Model(lambda key: init(key), linear) != MODEL
    traced = []

    def noted(params: Any, x: jax.Array) -> jax.Array:
        traced.append(x.shape)
        return linear(params, x)

    for _ in range(2):
        model = fp.Model(init, noted)
        client_measures(FEDERATION, model, init(X))["test_accuracy"]
    assert len(traced) == 2  # to look for convolutions, and for the one program


# What functions of one's own raise


def traced_if(params: Any, x: jax.Array) -> jax.Array:
    return linear(params, x) if x.sum() > 0 else x


def missing(*_: Any) -> Any:
    raise KeyError("kernal")


def looped(outputs: jax.Array, y: jax.Array) -> jax.Array:
    _, left = jax.lax.while_loop(lambda a: a[0] < 3, lambda a: (a[0] + 1, a[1] / 2), (0, outputs))
    return left.sum(axis=1) + 0 * y


NUMPY = "uses NumPy on a traced array; use jax.numpy instead"
BRANCH = (
    "uses a traced value as a Python condition (if, while, and, or, not); use jnp.where instead"
)
MODELS: list[tuple[dict[str, Any], str]] = [
    ({"init": lambda _: {"n": jnp.zeros(2, int)}}, "model.init(key) returns n of type int32; pa"),
    ({"init": lambda _: None}, "model.init(key) returns no array; it must return the parameters"),
    ({"init": missing}, "model.init(key) raised KeyError: 'kernal'"),
    ({"init": 3}, "model.init = 3; it must be a function"),
    ({"apply": lambda _, x: np.asarray(x) @ np.ones((4, 3))}, f"model.apply(params, x) {NUMPY}"),
    ({"apply": traced_if}, f"model.apply(params, x) {BRANCH}; it was given x float32[2,4]"),
    ({"apply": lambda _, x: x[x > 0]}, "model.apply(params, x) indexes with a traced mask"),
    ({"apply": lambda _, x: x * float(x[0, 0])}, "model.apply(params, x) needs the value of a tr"),
    ({"apply": lambda _, x: [1, 2][x[0, 0].astype(int)]}, "model.apply(params, x) uses a traced v"),
    ({"apply": lambda x: x}, "model.apply(params, x) raised TypeError: "),
    ({"apply": lambda *_: None}, "model: outputs nothing; a loss needs one array"),
    ({"loss": lambda outputs: outputs}, "model.loss(outputs, y) raised TypeError: "),
    (
        {"loss": missing},
        "model.loss(outputs, y) raised KeyError: 'kernal'; it was given outputs fl",
    ),
    ({"loss": lambda *_: None}, "model.loss: an array of shape () for 2 examples"),
    ({"loss": looped}, "model: jax.grad of its loss raised ValueError: Reverse-mode differentiat"),
    ({"correct": lambda o, _: np.asarray(o) > 0}, f"model.correct(outputs, y) {NUMPY}"),
    ({"correct": lambda o, y: 1.0 * (o[:, 0] == y)}, "model.correct: an array of type float32; it"),
    ({"correct": lambda _, y: y}, "model.correct: an array of type int32; it must be booleans"),
    ({"correct": lambda *_: None}, "model.correct: an array of shape () for labels of shape"),
]


@pytest.mark.parametrize(("change", "message"), MODELS)
def test_a_mistake_in_a_model_is_named(change: dict[str, Any], message: str) -> None:
    run = lambda: simulated(dataclasses.replace(MODEL, **change))()  # noqa: E731
    assert message_of(run).startswith(message)


def test_a_wrong_input_width_is_one_line_with_the_shapes() -> None:
    eager = message_of(lambda: MODEL.apply(init(X), jnp.ones((2, 5))))
    pattern = (
        r"model.apply\(params, x\) raised TypeError: dot_general .*\(5,\) and \(4,\).*; it was "
    )
    assert re.fullmatch(pattern + r"given x float32\[2,5\]", eager)
    wide = fp.Federation.from_arrays([(np.ones((3, 5)), [0, 1, 2])])
    for run in (
        lambda: one_run(wide, MODEL, fp.fedavg(), SOLVER),
        lambda: fp.diagnose(wide, MODEL, solver=SOLVER, cohort=fp.Cohort(1), rounds=1),
    ):
        assert message_of(run) == eager
    with pytest.raises(fp.InputError) as refused:
        MODEL.apply(init(X), jnp.ones((2, 5)))
    assert isinstance(refused.value.__cause__, TypeError)


@pytest.mark.parametrize("features", [1, 59, 61])
@pytest.mark.parametrize("rows", [2, 100])
def test_models_of_the_library_take_rows_of_their_width_only(features: int, rows: int) -> None:
    federation = fp.datasets.synthetic(clients=2)
    model = fp.models.logistic(federation)
    params = model.init(jax.random.key(0))
    message = f"model: rows of {features} features where 60 are needed"
    assert message_of(lambda: model.apply(params, jnp.ones((rows, features)))) == message


def test_a_mistake_in_what_prepares_rows_is_named() -> None:
    raw = fp.Rows(fp.Prepared(np.ones((3, 4)), missing), np.arange(3), np.array([0, 3]))
    prepared = "Prepared.prepare(raw) raised KeyError: 'kernal'; it was given raw float32[1,4]"
    assert message_of(lambda: raw.x.shape) == prepared

    def run(augment: Any) -> Callable[[], object]:
        changed = dataclasses.replace(FEDERATION, augment=augment)
        return lambda: one_run(changed, MODEL, fp.fedavg(), SOLVER)

    assert message_of(run(lambda key, rows: missing(key, rows))) == (
        "federation.augment(key, rows) raised KeyError: 'kernal'; it was given rows float32[2,4]"
    )
    assert message_of(run(lambda _, rows: rows[:, 1:])) == (
        "federation.augment(key, rows) returns float32[2,3] for float32[2,4]; it must return "
        "features of shape (2, 4)"
    )


def posed(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
    del hparams, context
    return fp.Subproblem(params)


def method(**changes: Any) -> fp.Algorithm:
    settings: dict[str, Any] = {"subproblem": posed, "hparams": {}, "stragglers": "keep"}
    return fp.Algorithm("mine", **settings | changes)


def halved_if_large(state: Any, mean: Any, hparams: Any) -> Any:
    del hparams
    return state if mean["bias"].sum() > 1 else mean


SUBPROBLEM, MESSAGE = (
    "mine: subproblem(state, hparams, context)",
    "mine: message(state, hparams, context, solution)",
)
METHODS: list[tuple[dict[str, Any], str]] = [
    ({"subproblem": lambda *_: None}, f"{SUBPROBLEM} returns None; it must return a fedprox.Subpr"),
    ({"subproblem": lambda w, *_: w}, f"{SUBPROBLEM} returns a value of type dict; it must"),
    (
        {"subproblem": lambda w, n: posed(w, n, n)},
        f"{SUBPROBLEM} raised TypeError: <lambda>() take",
    ),
    ({"subproblem": lambda w, n, o: posed(w, n["nu"], o)}, f"{SUBPROBLEM} raised KeyError: 'nu'"),
    ({"client.message": lambda *a: a[3].params}, f"{MESSAGE} returns a value of type dict; it"),
    ({"client.message": lambda *_: None}, f"{MESSAGE} returns None; it must return two values"),
    ({"server.update": halved_if_large}, f"mine: update(state, mean, hparams) {BRANCH}; it was"),
    ({"server.update": missing}, "mine: update(state, mean, hparams) raised KeyError: 'kernal'"),
    ({"server.init": missing}, "mine: init(params) raised KeyError: 'kernal'"),
    ({"server.params": missing}, "mine: params(state) raised KeyError: 'kernal'"),
    ({"server.evaluated": missing}, "mine: evaluated(state) raised KeyError: 'kernal'"),
    ({"client.state": missing}, "mine: client_state(params) raised KeyError: 'kernal'"),
    ({"client.size": missing}, "mine: size(message) raised KeyError: 'kernal'"),
]


@pytest.mark.parametrize(("change", "message"), METHODS)
def test_a_mistake_in_a_method_is_named(change: dict[str, Any], message: str) -> None:
    assert message_of(simulated(MODEL, changed(method(), change))).startswith(message)


class Unfinished(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(4, 3, rngs=rngs)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            nnx.Linear(4, 3, rngs=nnx.Rngs(0)),
            "from_nnx(an instance of Linear); it needs a function",
        ),
        (
            linen.Dense(3),
            "from_nnx(an instance of Dense, a flax.linen module); it needs a function",
        ),
        (linen.Dense, "from_nnx(the class Dense, a flax.linen module); it needs a function that b"),
        (None, "from_nnx(None); it needs a function that builds a flax.nnx module, such as lambda"),
        (lambda _: linen.Dense(3), "build(rngs) returns an instance of Dense, a flax.linen mod"),
        (lambda _: None, "build(rngs) returns None; it needs a function that builds a flax.nnx"),
        (Unfinished, "build(rngs) raised TypeError: "),
    ],
)
def test_what_builds_no_nnx_module_is_refused(build: Any, message: str) -> None:
    assert message_of(lambda: fp.Model.from_nnx(build)).startswith(f"model: {message}")


def test_a_module_that_cannot_be_called_is_named() -> None:
    model = fp.Model.from_nnx(lambda rngs: Unfinished(rngs=rngs))
    expected = (
        "model.apply(params, x) raised TypeError: 'Unfinished' object is not callable; it was"
    )
    assert message_of(simulated(model)).startswith(expected)


# Models without accuracy


def squared(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return (outputs - y) ** 2


REGRESSION = fp.Model(lambda _: jnp.zeros(4), lambda w, x: x @ w, squared)
HALVES = fp.Federation.from_arrays(*[[(x, y / 2) for x, y in CLIENTS]] * 2)


def test_a_regression_has_no_accuracy_anywhere(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 2, "evaluation": fp.Evaluation()}
    run = one_run(HALVES, REGRESSION, fp.fedavg(), SOLVER, **options)
    assert all(math.isnan(record.test_accuracy) for record in run.history)
    assert math.isnan(run.best_accuracy)
    row = [next(iter(column.cells)) for column in fp.table([run]).columns]
    assert row[2:4] == ["-", "-"]
    assert [axis.get_title() for axis in fp.figure([run]).axes][1].startswith("gradient variance")
    with RunDirectory(tmp_path / "run", {"rounds": 2}) as directory:
        for record in run.history:
            directory.record(record)
        directory.finish([run], None)
        write_clients(tmp_path / "run", HALVES, REGRESSION, [run])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["test_accuracy"] for line in lines] == [None] * 3
    (found,) = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["final_test_accuracy"] is None
    assert found["best_test_accuracy"] is None
    (clients,) = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert clients["test_accuracy"] == [None] * 3


def test_an_accuracy_of_ones_own_is_measured_beside_any_loss() -> None:
    def near(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return abs(outputs - y) < 0.75

    model = fp.Model(REGRESSION.init, REGRESSION.apply, squared, near)
    found = client_measures(HALVES, model, np.zeros(4, "f"))["test_accuracy"]
    np.testing.assert_allclose(found, 2 / 3)  # labels 0, 0.5 and 1, outputs 0
    assert fp.Model(init, linear, squared, top_1).correct is top_1
    assert MODEL.correct is met_by_labels


def test_a_target_accuracy_without_accuracy_is_refused() -> None:
    target = fp.Target("test_accuracy", 0.5)
    refused = message_of(lambda: one_run(HALVES, REGRESSION, fp.fedavg(), SOLVER, target=target))
    assert refused == (
        "target: test_accuracy: records do not have it; it must be one of train_loss, test_loss"
    )
