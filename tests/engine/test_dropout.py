"""Models whose outputs are random in training: what the draws are like, and what they depend on."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedprox as fp
from fedprox.engine.compiled import layout
from fedprox.model.model import outputs_of
from fedprox.report.records import metrics_line
from fedprox.streams import Purpose, generator
from tests.quadratics import one_run, quadratic_federation, quadratic_model
from tests.variants import mostly_slow

FEDERATION = fp.datasets.synthetic(clients=4)
WIDTH = FEDERATION.train.x.shape[1]


class Net(nnx.Module):
    def __init__(self, rate: float, rngs: nnx.Rngs) -> None:
        self.body = nnx.Linear(WIDTH, 8, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.again = nnx.Dropout(rate, rngs=rngs)
        self.head = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.again(self.dropout(jnp.tanh(self.body(x)))))


@cache
def net(rate: float) -> fp.Model:
    return fp.Model.from_nnx(lambda rngs: Net(rate, rngs))


def train(model: fp.Model, method: Any = None, **options: Any) -> fp.Run:
    given: dict[str, Any] = {
        "solver": fp.Solver(0.1, 10, epochs=1),
        "rounds": 3,
        "evaluation": fp.Evaluation(gradients=False),
    }
    given |= options
    (run,) = fp.simulate(FEDERATION, model, method or fp.fedavg(), cohort=fp.Cohort(3), **given)
    return run


def same(one: fp.Run, other: fp.Run) -> bool:
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@cache
def shifted(start: float) -> fp.Model:
    """Loss (w + u - b)^2 / 2 of one draw u of a mini-batch in training, and without u else."""
    plain = quadratic_model(np.array([start]))

    def noisy(params: Any, x: jax.Array, key: jax.Array) -> Any:
        return plain.apply(params + jax.random.normal(key), x)

    return replace(plain, train=noisy)


def draw(seed: int, client: int, ticks: int = 1) -> list[float]:
    """The normal numbers of a client's ticks in round 0."""
    stream = generator(seed, Purpose.AUGMENTATION, 0, client)
    words = stream.integers(2**32, size=(ticks, 2), dtype=np.uint32)
    keys = (jax.random.wrap_key_data(jnp.asarray(key)) for key in words)
    return [float(jax.random.normal(jax.random.fold_in(key, 0x6D6F6465))) for key in keys]


@pytest.mark.parametrize("lanes", mostly_slow([1, 3], 3))
def test_the_key_is_a_function_of_seed_round_and_client(
    lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "choose_lanes", lambda *_: lanes)
    federation = quadratic_federation([np.eye(1)] * 6, [np.zeros(1)] * 6)
    run = one_run(federation, shifted(3.0), fp.fedavg(), fp.Solver(0.1, "all", steps=1), seed=5)
    u = np.array([draw(5, k)[0] for k in range(6)])
    np.testing.assert_allclose(run.params, [3 - 0.1 * np.mean(3 + u)], rtol=1e-5)
    assert run.history[0].train_loss == 4.5  # without the draws


@pytest.mark.slow
def test_each_part_of_a_wide_mini_batch_has_a_key_of_its_own() -> None:
    rows = 300  # in ticks of 128, 128 and 44
    federation = quadratic_federation([np.eye(1)], [np.zeros(1)], [rows])
    run = one_run(federation, shifted(3.0), fp.fedavg(), fp.Solver(0.1, "all", steps=1), seed=2)
    u = np.array(draw(2, 0, 3)) @ np.array([128, 128, 44]) / rows
    np.testing.assert_allclose(run.params, [3 - 0.1 * (3 + u)], rtol=1e-5)


@pytest.mark.slow
def test_augmentation_has_another_key_and_keeps_its_own() -> None:
    def augment(key: jax.Array, raw: jax.Array) -> jax.Array:
        return raw * (1 + jax.random.uniform(key))

    plain = quadratic_federation([np.eye(1)] * 3, [np.zeros(1)] * 3)
    run = one_run(
        replace(plain, augment=augment), shifted(3.0), fp.fedavg(), fp.Solver(0.1, "all", steps=1)
    )
    words = [
        generator(0, Purpose.AUGMENTATION, 0, k).integers(2**32, size=2, dtype=np.uint32)
        for k in range(3)
    ]
    scale = [float(jax.random.uniform(jax.random.wrap_key_data(jnp.asarray(w)))) for w in words]
    u = [draw(0, k)[0] for k in range(3)]
    expected = 3 - 0.1 * np.mean([(1 + a) * (3 + b) for a, b in zip(scale, u, strict=True)])
    np.testing.assert_allclose(run.params, [expected], rtol=1e-5)


def test_dropout_changes_training_alone_and_none_of_it_nothing() -> None:
    none, half = net(0.0), net(0.5)
    # a part of it is frozen, which keeps the dropout
    frozen = fp.freeze(half, jax.jit(half.init)(jax.random.key(0)), ["body"])

    @jax.jit
    def outputs(x: jax.Array, key: jax.Array) -> Any:
        params, rest = half.init(jax.random.key(0)), frozen.init(jax.random.key(0))
        trained = [outputs_of(each, params, x, key) for each in (none, half)]
        in_part = outputs_of(frozen, rest, x, key)
        return none.apply(params, x), half.apply(params, x), *trained, in_part

    x = np.asarray(FEDERATION.train.x[:4])
    plain, applied, trained, dropped, in_part = outputs(x, jax.random.key(1))
    np.testing.assert_array_equal(applied, plain)
    np.testing.assert_allclose(trained, plain, rtol=1e-6)
    assert (np.asarray(dropped) != plain).any()
    np.testing.assert_allclose(in_part, dropped, rtol=1e-5)


def test_a_layer_that_drops_half_keeps_its_mean_and_evaluation_is_deterministic() -> None:
    model = fp.Model.from_nnx(lambda rngs: nnx.Dropout(0.5, rngs=rngs), correct=None)
    assert model.train is not None
    x = np.ones((2000, 3), np.float32)
    two = fp.Model.from_nnx(
        lambda rngs: nnx.Sequential(nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))
    )
    assert two.train is not None
    train = model.train, model.train, two.train
    first, second, both = jax.jit(
        lambda x: [each({}, x, jax.random.key(k)) for k, each in enumerate(train)]
    )(x)
    assert set(np.unique(first)) == {0.0, 2.0}
    assert float(first.mean()) == pytest.approx(1, abs=0.05)
    assert not np.array_equal(first, second)
    # two layers draw independently
    assert (np.asarray(both) > 0).mean() == pytest.approx(0.25, abs=0.03)


@pytest.mark.slow
def test_runs_repeat_and_do_not_depend_on_calls() -> None:
    federation = quadratic_federation([np.eye(1)] * 6, [np.zeros(1)] * 6)

    def run(every: int, seed: int = 0) -> fp.Run:
        evaluation = fp.Evaluation(every, gradients=False)
        options: dict[str, Any] = {"rounds": 3, "evaluation": evaluation, "seed": seed}
        solver = fp.Solver(0.1, "all", steps=1)
        return one_run(federation, shifted(3.0), fp.fedavg(), solver, **options)

    seldom, often = run(every=3), run(every=1)
    assert same(seldom, often)
    assert metrics_line(seldom.final) == metrics_line(often.final)
    assert not same(seldom, run(every=3, seed=1))


@pytest.mark.slow
def test_runs_do_not_depend_on_lanes_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(0.5)
    run = train(model)
    others = [train(model, devices=jax.device_count())]
    monkeypatch.setattr(layout, "choose_lanes", lambda *_: 3)
    others.append(train(model))
    for other in others:
        for a, b in zip(jax.tree.leaves(run.params), jax.tree.leaves(other.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    # what is measured is what `apply` gives
    found = fp.evaluate(model, run.params, FEDERATION)
    assert found.train_loss == pytest.approx(run.final.train_loss, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "method", "solver", "line"),
    [
        (net(0.5), fp.fedavg(), fp.Solver(0.1, 10, epochs=1, gamma=0.5), "solver.gamma"),
        (
            net(0.5),
            fp.fedavg(),
            fp.Solver(1.0, "all", steps=1, optimizer=fp.line_search_descent),
            "does not go with dropout, or other noise, since each mini-batch",
        ),
        (net(0.5), fp.feddane(mu=1.0), fp.Solver(0.1, 10, epochs=1), "feddane: .*, so dropout"),
        (net(0.5), fp.qffl(q=1.0), fp.Solver(0.1, 10, epochs=1), "qffl: .*, so dropout"),
        (
            replace(net(0.0), train=lambda *given: given[1]),
            fp.fedavg(),
            fp.Solver(0.1, 10, epochs=1),
            r"model.train\(params, x, key\) returns float32\[2,60\]; it must return what model.app",
        ),
        (
            replace(net(0.0), train=lambda *given: given[7]),
            fp.fedavg(),
            fp.Solver(0.1, 10, epochs=1),
            r"model.train\(params, x, key\) raised ",
        ),
    ],
)
def test_what_cannot_be_trained_so_is_refused(
    model: fp.Model, method: Any, solver: fp.Solver, line: str
) -> None:
    with pytest.raises(fp.InputError, match=line):
        train(model, method, solver=solver, evaluation=fp.Evaluation())
