"""Adaptive mu (Li et al. 2020, section 5.3.2)."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedprox import (
    Cohort,
    Evaluation,
    Solver,
    Systems,
    datasets,
    feddane,
    fedprox,
    models,
    simulate,
)
from fedprox.algorithms.fedprox import ADAPTIVE_MU


def by_hand(mu: float, losses: list[float]) -> list[float]:
    """mu in force in each round, given f(w^0), f(w^1), ..."""
    used, falls = [], 0
    for before, after in itertools.pairwise(losses):
        used.append(mu)
        if after > before or not math.isfinite(after):
            mu, falls = mu + 0.1, 0
        elif after < before:
            falls += 1
            if falls == 5:
                mu, falls = max(mu - 0.1, 0.0), 0
        else:
            falls = 0
    return used


@st.composite
def curves(draw: st.DrawFn) -> list[float]:
    """Losses that mostly fall, so that five falls in a row are common."""
    changes = draw(st.lists(st.sampled_from([-1] * 6 + [0, 1, 2]), min_size=20, max_size=40))
    losses = list(map(float, itertools.accumulate(changes, initial=40)))
    for at in draw(st.sets(st.integers(1, len(changes)), max_size=2)):
        losses[at] = draw(st.sampled_from([math.nan, math.inf]))
    return losses


@given(losses=curves(), start=st.sampled_from([0.0, 0.05, 1.0]))
@example(losses=[5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 0.0], start=1.0)  # standing still is no fall
@example(losses=[5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0], start=1.0)
@example(losses=[5.0] * 8, start=1.0)
def test_the_schedule_is_the_papers(losses: list[float], start: float) -> None:
    hparams: Any = {"mu": jnp.array([start])}
    trend = ADAPTIVE_MU.init(hparams, jnp.array([losses[0]]))
    used, step = [], jax.jit(ADAPTIVE_MU.update)
    for loss in losses[1:]:
        used.append(float(hparams["mu"][0]))
        hparams, trend = step(hparams, trend, jnp.array([loss]))
    np.testing.assert_allclose(used, by_hand(start, losses), atol=1e-5)


@pytest.mark.parametrize("method", [fedprox, feddane])
def test_a_run_uses_the_mu_that_its_losses_ask_for(method: type) -> None:
    federation = datasets.synthetic(clients=10)
    runs = simulate(
        federation,
        models.logistic(federation),
        method(mu=[0.0, 1.0], adapt=True),
        solver=Solver(0.03, batch_size=10, epochs=5),
        cohort=Cohort(3),
        systems=Systems(0.5),
        rounds=25,
        seed=1,
        evaluation=Evaluation(gradients=False),
    )
    for run in runs:
        losses = [record.train_loss for record in run.history]
        used = [record.hparams["mu"] for record in run.history[1:]]
        np.testing.assert_allclose(used, by_hand(run.hparams["mu"], losses), atol=1e-5)
    assert len({record.hparams["mu"] for record in runs[0].history}) > 2
    assert [run.label for run in runs] == [
        f"{runs[0].method} mu=0 adaptive",
        f"{runs[0].method} mu=1 adaptive",
    ]


def test_the_schedule_looks_at_every_round_whatever_is_recorded() -> None:
    federation = datasets.synthetic(clients=10)
    often, seldom = (
        simulate(
            federation,
            models.logistic(federation),
            fedprox(mu=0.0, adapt=True),
            solver=Solver(0.03, batch_size=10, epochs=5),
            cohort=Cohort(3),
            rounds=12,
            evaluation=Evaluation(every=every, gradients=False),
        )[0]
        for every in (1, 5)
    )
    assert [record.round for record in seldom.history] == [0, 5, 10, 12]
    assert repr(seldom.final) == repr(often.final)  # with repr NaN is NaN


def test_an_adaptive_mu_stands_beside_fixed_ones() -> None:
    federation = datasets.synthetic(clients=6)
    fixed, adaptive = simulate(
        federation,
        models.logistic(federation),
        [fedprox(mu=0.5), fedprox(mu=0.5, adapt=True)],
        solver=Solver(0.01, batch_size=10, epochs=2),
        cohort=Cohort(3),
        rounds=1,
        evaluation=Evaluation(gradients=False),
    )
    # nothing is known before the first round: it is the same for both
    assert fixed.final.train_loss == pytest.approx(adaptive.final.train_loss, rel=1e-6)
