"""Adaptive mu (Li et al. 2020, section 5.3.2)."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.algorithms.fedprox import ADAPTIVE_MU
from tests import methods
from tests.byhand import ROWS, START
from tests.quadratics import quadratic_model, ragged_quadratics

STEP = jax.jit(ADAPTIVE_MU.update)


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


@settings(max_examples=40)
@given(losses=curves(), start=st.sampled_from([0.0, 0.05, 1.0]))
@example(losses=[5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 0.0], start=1.0)  # standing still is no fall
@example(losses=[5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0], start=1.0)
@example(losses=[5.0] * 8, start=1.0)
def test_the_schedule_is_the_papers(losses: list[float], start: float) -> None:
    hparams: Any = {"mu": np.array([start], "f")}
    trend: Any = ADAPTIVE_MU.init(hparams, jnp.array(losses[:1]))
    used = []
    for loss in losses[1:]:
        used.append(float(hparams["mu"][0]))
        hparams, trend = STEP(hparams, trend, np.array([loss], "f"))
    np.testing.assert_allclose(used, by_hand(start, losses), atol=1e-5)


class Adapting(methods.FedProx):
    """The oracle, whose mu follows f."""

    def __init__(self, federation: fp.Federation, mu: float) -> None:
        super().__init__(START, len(federation), mu)
        self.federation, self.first, self.used = federation, mu, list[float]()
        self.losses = [methods.objective(federation, START)]

    def finish(self, *given: Any) -> None:
        super().finish(*given)
        self.used.append(self.mu)
        self.losses.append(methods.objective(self.federation, self.params))
        self.mu = by_hand(self.first, [*self.losses, 0.0])[-1]


def test_a_run_uses_the_mu_that_its_losses_ask_for() -> None:
    """The schedule looks at every round, whatever is recorded."""
    federation = ragged_quadratics(0, ROWS[:6])
    setting: dict[str, Any] = {"solver": fp.Solver(0.3, 3, epochs=2), "cohort": fp.Cohort(2)}
    runs = fp.simulate(
        federation,
        quadratic_model(START),
        fp.fedprox(mu=[0.0, 1.0], adapt=True),
        rounds=20,
        evaluation=fp.Evaluation(every=8, gradients=False),
        **setting,
    )
    for run in runs:
        oracle = Adapting(federation, run.hparams["mu"])
        path = methods.run(oracle, federation, rounds=20, **setting)
        assert len(set(oracle.used)) > 3
        np.testing.assert_allclose(run.params, path.server[-1], rtol=1e-4, atol=1e-5)
        assert [record.round for record in run.history] == [0, 8, 16, 20]
        for record in run.history[1:]:
            assert record.hparams["mu"] == pytest.approx(oracle.used[record.round - 1], abs=1e-5)
        assert run.label == f"fedprox mu={run.hparams['mu']:g} adaptive"


def test_feddane_adapts_as_fedprox_does() -> None:
    assert fp.feddane(mu=1.0, adapt=True).adapt is ADAPTIVE_MU
    assert fp.fedprox(mu=1.0, adapt=True).adapt is ADAPTIVE_MU
    assert fp.feddane(mu=1.0).adapt is None
