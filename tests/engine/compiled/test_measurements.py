"""Gradient variance, B(w) and gamma."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprox import Cohort, Evaluation, Run, Solver, Target, fedprox, simulate
from fedprox.engine.compiled.gradients import per_lane
from fedprox.measures import dissimilarity, include, nothing
from fedprox.report.table import common_target
from fedprox.results.record import Record
from tests.catalogue import VARIANTS
from tests.engine.compiled.test_inexactness import (
    MU,
    QUADRATICS,
    ROWS,
    SHARES,
    START,
    descent,
    stopped,
)
from tests.quadratics import quadratic_federation, quadratic_model, random_quadratics
from tests.settings import runs
from tests.variants import mostly_slow


@pytest.mark.parametrize("seed", [0, 1, 2, None])
def test_b_and_variance_equal_their_definitions(seed: int | None) -> None:
    """With None of clients that are alike."""
    a, b = random_quadratics(seed or 0, 4, 3)
    if seed is None:
        a, b = a[:1] * 4, b[:1] * 4
    run = stopped(0.1, 1.0, MU, quadratic_federation(a, b, rows=ROWS))[0]
    gradients = np.array([a_k @ (START - b_k) for a_k, b_k in zip(a, b, strict=True)])
    mean = SHARES @ gradients
    variance = SHARES @ ((gradients - mean) ** 2).sum(axis=1)
    b_squared = SHARES @ (gradients**2).sum(axis=1) / (mean @ mean)
    assert run.final.gradient_variance == pytest.approx(variance, rel=1e-4, abs=1e-10)
    assert run.final.dissimilarity == pytest.approx(np.sqrt(b_squared), rel=1e-4)
    assert run.final.dissimilarity >= 1
    loss = [(START - b_k) @ g / 2 for b_k, g in zip(b, gradients, strict=True)]
    assert run.final.train_loss == pytest.approx(SHARES @ loss, rel=1e-5)


def test_b_is_one_where_all_gradients_vanish_and_infinite_where_only_their_mean_does() -> None:
    found = dissimilarity(jnp.array([3.0, 0.0, 2.0]), jnp.array([16.0, 0.0, 0.0]))
    np.testing.assert_allclose(found, [np.sqrt(1 + 3 / 16), 1, np.inf], rtol=1e-6)


GRADIENTS = ["fedprox", "scaffold", "feddane", "ditto", "ifca", "mime"]


@pytest.mark.parametrize("name", mostly_slow(GRADIENTS, "fedprox"))
def test_measuring_gradients_changes_no_model(name: str) -> None:
    (run,), (without,) = (
        runs(methods=VARIANTS[name].method, evaluation=Evaluation(gradients=gradients))
        for gradients in (True, False)
    )
    jax.tree.map(np.testing.assert_array_equal, run.params, without.params)
    assert run.final.train_loss == without.final.train_loss


def test_a_client_without_weight_scatters_nothing() -> None:
    # whether it comes first, between others, or last
    gradients, weights = [7, 1, 8, 5, 9], [0, 0.25, 0, 0.75, 0]
    found, add = nothing(np.zeros(1, np.float32)), jax.jit(include)
    for gradient, weight in zip(gradients, weights, strict=True):
        found = add(found, np.full(1, gradient, np.float32), np.float32(weight))
    assert (float(found.weight), found.mean.tolist(), float(found.scatter)) == (1, [4], 3)


def test_the_sums_of_a_lane_are_divided_by_its_own_rows() -> None:
    # three lanes, two points of a sweep
    sums, size = {"w": np.ones((3, 2, 4)), "b": np.ones((3, 2))}, jnp.array([1.0, 2.0, 4.0])
    for leaf in per_lane(sums, size).values():
        for lane, share in zip(leaf, (1, 0.5, 0.25), strict=True):
            np.testing.assert_array_equal(lane, np.full(lane.shape, share))


@pytest.mark.slow
def test_gamma_is_that_of_the_evaluated_round() -> None:
    """Of five rounds in one call it is that of the last, relative to the model before it."""
    cohort, eta = Cohort(2), 0.05
    found = simulate(
        QUADRATICS,
        quadratic_model(START),
        fedprox(mu=[0.0, 0.8]),
        solver=Solver(eta, "all", steps=5),
        cohort=cohort,
        rounds=5,
        evaluation=Evaluation(every=5),
    )
    for run in found:
        w = START
        for t in range(5):
            clients = cohort.draw(0, t, QUADRATICS.train.offsets).clients
            ends = [descent(int(k), w, run.hparams["mu"], eta, 0.0, most=5) for k in clients]
            w = np.average([end.params for end in ends], axis=0, weights=np.array(ROWS)[clients])
        assert run.final.gamma_mean == pytest.approx(np.mean([end.gamma for end in ends]), rel=1e-4)
        assert [record.round for record in run.history] == [0, 5]


def run_with(accuracies: list[float], every: int = 1) -> Run:
    run = Run("m", {}, 0.1, 0, "m")
    run.history = [
        Record(
            *("m", "m", {}, 0.1, 0, every * i),
            {"train_loss": 0.0, "test_accuracy": a, "total_steps": i, "communication": i},
        )
        for i, a in enumerate(accuracies)
    ]
    return run


@pytest.mark.parametrize("best", [0.29, 0.57, 0.58, 1.0])
def test_the_common_target_is_a_whole_per_cent_that_every_sound_run_reaches(best: float) -> None:
    runs = [run_with([0.1, best]), run_with([0.1, best + 0.004])]
    assert common_target(runs) == Target("test_accuracy", best)
    diverged = run_with([0.1, 0.12])
    ruined = {**diverged.history[1].measures, "train_loss": np.inf}
    diverged.history[1] = replace(diverged.history[1], measures=ruined)
    assert common_target([*runs, diverged]) == Target("test_accuracy", best)
    assert common_target([run_with([np.nan, np.nan])]) is None
    assert common_target([run_with([-0.2, -0.1])]) is None
    assert common_target([run_with([0.4, 1.28])]) == Target("test_accuracy", 1.0)
