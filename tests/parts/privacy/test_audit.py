"""An audit in one run: what canary clients reveal stays below the epsilon that is claimed.

Canaries are clients whose updates are random unit vectors (Andrew et al. 2023, "One-shot Empirical
Privacy Estimation for Federated Learning"). The sum of the released means tells how well each
canary can be recognized. Their statistics are almost Gaussian, and the epsilon that tells their
distribution from that of vectors that took no part is a lower bound of the mechanism's.
"""

import math
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.parts.privacy import setting as module
from fedprox.parts.privacy.numerics import standard_normals
from tests.variants import mostly_slow

CANARIES, DIMENSION, ROUNDS = 1000, 20_000, 2
Z, DELTA = math.sqrt(2.0), 1e-4
ERRORS = 3.0
"""Standard errors by which the estimated effect is lowered: false alarms of 0.13 %."""

TIGHT = 1.5
"""The claim is at most this factor above the audit's bound."""

METHODS = {"fedavg": fp.fedavg(), "fedprox": fp.fedprox(mu=0.1)}


def unit_vectors(count: int, seed: int) -> np.ndarray[Any, Any]:
    vectors = np.random.default_rng(seed).normal(size=(count, DIMENSION))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


Vectors = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    """The canaries, and as many vectors that take no part."""
    return unit_vectors(CANARIES, 1), unit_vectors(CANARIES, 2)


def audited(method: fp.Algorithm, vectors: Vectors) -> tuple[float, float]:
    """The audit's lower bound of epsilon, and the epsilon that the run claims."""
    canaries, others = vectors
    federation = fp.Federation.from_arrays(
        [(np.zeros((1, 1)), (1000 * v[None]).astype(np.float32)) for v in canaries]
    )
    model = fp.Model(
        lambda _: jnp.zeros(DIMENSION),
        lambda w, x: jnp.broadcast_to(w, (len(x), DIMENSION)),
        lambda w, y: 0.5 * jnp.sum((w - y) ** 2, axis=1),
        None,
    )
    (run,) = fp.simulate(
        federation,
        model,
        method,
        solver=fp.Solver(0.1, "all", steps=1),
        cohort=fp.Cohort(CANARIES),
        rounds=ROUNDS,
        privacy=fp.Privacy(1.0, noise_multiplier=Z, delta=DELTA),
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


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("name", mostly_slow(METHODS, "fedavg"))
def test_the_audit_stays_below_the_claim_and_comes_near(name: str, vectors: Vectors) -> None:
    bound, claimed = audited(METHODS[name], vectors)
    assert bound < claimed < TIGHT * bound


@pytest.mark.usefixtures("optimized")
def test_the_audit_finds_noise_that_is_half_of_what_is_claimed(
    monkeypatch: pytest.MonkeyPatch, vectors: Vectors
) -> None:
    def halved(words: jax.Array, purpose: int, tree: Any) -> Any:
        return jax.tree.map(lambda a: a / 2, standard_normals(words, purpose, tree))

    monkeypatch.setattr(module, "standard_normals", halved)
    bound, claimed = audited(METHODS["fedavg"], vectors)
    assert bound > claimed
