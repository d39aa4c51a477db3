"""An audit in one run: what canaries reveal stays below the epsilon that is claimed.

Canaries are clients, or rows of one client, whose updates are random unit vectors (Andrew et al.
2023, "One-shot Empirical Privacy Estimation for Federated Learning"). The sum of what is released
tells how well each canary can be recognized. Their statistics are almost Gaussian, and the epsilon
that tells their distribution from that of vectors that took no part is a lower bound of the
mechanism's.
"""

import functools
import math
from types import ModuleType
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.parts.privacy import examples, setting
from fedprox.parts.privacy.numerics import standard_normals
from fedprox.parts.privacy.setting import Unit

CANARIES, DIMENSION, ROUNDS = 400, 8_000, 2
Z, DELTA = math.sqrt(2.0), 1e-4
ERRORS = 3.0
"""Standard errors by which the estimated effect is lowered: false alarms of 0.13 %."""

TIGHT = 1.7
"""The claim is at most this factor above the audit's bound."""

UNITS: dict[Unit, ModuleType] = {"client": setting, "example": examples}
"""What hides, and the module that adds its noise."""


@functools.cache
def unit_vectors(seed: int) -> np.ndarray[Any, Any]:
    vectors = np.random.default_rng(seed).normal(size=(CANARIES, DIMENSION))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def audited(unit: Unit) -> tuple[float, float]:
    """The audit's lower bound of epsilon, and the epsilon that the run claims."""
    canaries, others = unit_vectors(1), unit_vectors(2)
    x, y = np.zeros((CANARIES, 1)), (1000 * canaries).astype(np.float32)
    model = fp.Model(  # whose programs no other run has
        lambda _: jnp.zeros(DIMENSION),
        lambda w, x: jnp.broadcast_to(w, (len(x), DIMENSION)),
        lambda w, y: 0.5 * jnp.sum((w - y) ** 2, axis=1),
        None,
    )
    clients = [(x[:1], row[None]) for row in y] if unit == "client" else [(x, y)]
    (run,) = fp.simulate(
        fp.Federation.from_arrays(clients),
        model,
        fp.fedavg(),
        solver=fp.Solver(1.0, "all", steps=1),
        cohort=fp.Cohort(len(clients)),
        rounds=ROUNDS,
        privacy=fp.Privacy(1.0, noise_multiplier=Z, delta=DELTA, unit=unit),
        evaluation=fp.Evaluation(every=ROUNDS, gradients=False),
        progress=False,
    )
    released = CANARIES * np.asarray(run.params, np.float64)  # the sum of all rounds' sums
    present, absent = canaries @ released, others @ released
    effect = present.mean() - absent.mean()
    effect -= ERRORS * math.sqrt((present.var() + absent.var()) / CANARIES)
    noise = max(present.std(), absent.std()) * (1 + ERRORS / math.sqrt(2 * CANARIES))
    claimed = run.final.epsilon
    assert claimed is not None
    return dp_accounting.get_epsilon_gaussian(noise / effect, DELTA), claimed


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_the_audit_stays_below_the_claim_and_comes_near(unit: Unit) -> None:
    bound, claimed = audited(unit)
    assert bound < claimed < TIGHT * bound


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_the_audit_finds_noise_that_is_half_of_what_is_claimed(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(words: jax.Array, purpose: int, tree: Any) -> Any:
        return jax.tree.map(lambda a: a / 2, standard_normals(words, purpose, tree))

    monkeypatch.setattr(UNITS[unit], "standard_normals", halved)
    bound, claimed = audited(unit)
    assert bound > claimed
