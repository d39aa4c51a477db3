"""Clients that trust nobody: noise of each client's own, and what it costs."""

import math
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld

import fedprox as fp
from fedprox.engine.planning.batch_plan import round_key
from fedprox.parts.privacy.accounting import epsilon_of, statement
from fedprox.parts.privacy.correlated import Strategy
from fedprox.parts.privacy.numerics import MESSAGES, standard_normals
from fedprox.parts.privacy.setting import Privacy, mechanism_of
from fedprox.protocol.method import noise_words
from tests.parts.privacy.test_mechanism import CLIP, SOLVER, START, A, B, run
from tests.quadratics import quadratic_federation, quadratic_model
from tests.settings import privacy

Z, CLIENTS, DELTA = 2.0, len(B), 0.01


def own(**settings: Any) -> Privacy:
    return privacy(CLIP, DELTA, **{"noise_multiplier": Z, "trust": "none"} | settings)


ON_QUADRATICS: dict[str, Any] = {
    "federation": quadratic_federation(A, B),
    "model": quadratic_model(START),
    "solver": SOLVER,
    "cohort": fp.Cohort(CLIENTS),
    "rounds": 1,
    "evaluation": fp.Evaluation(gradients=False),
    "progress": False,
    "privacy": own(),
}


def moved(given: Privacy, seed: int = 0) -> Any:
    """The model after a round of FedAvg."""
    return np.asarray(run(fp.fedavg(), given, seed=seed).params, np.float64)


def noise_of(client: int, seed: int, t: int) -> Any:
    """The standard normal numbers of a client of FedAvg in a round."""
    key = jax.random.wrap_key_data(jnp.asarray(round_key(seed, t)), impl="threefry2x32")
    for word in noise_words(fp.fedavg(), SOLVER, {"learning_rate": 0.1}):
        key = jax.random.fold_in(key, word)
    words = jax.random.key_data(jax.random.fold_in(key, client))
    return np.asarray(standard_normals(words, MESSAGES, np.zeros(3, np.float32)))


def test_the_mean_is_of_clipped_messages_with_noise_of_each_client() -> None:
    silent = moved(own(noise_multiplier=0.0))
    server = moved(privacy(CLIP, DELTA, noise_multiplier=0.0))
    np.testing.assert_array_equal(silent, server)
    total = sum(noise_of(client, 3, 0) for client in range(CLIENTS))
    silent = moved(own(noise_multiplier=0.0), seed=3)
    expected = silent + Z * CLIP * total / CLIENTS
    np.testing.assert_allclose(moved(own(), seed=3), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_noise_is_that_of_all_clients_of_the_cohort() -> None:
    """Its variance over 120 seeds is within 4.5 deviations of z^2 C^2 / K for each number."""
    found = fp.simulate(methods=fp.fedavg(), seed=list(range(120)), **ON_QUADRATICS)
    models = np.stack([np.asarray(each.params, np.float64) for each in found])
    noise = (models - moved(own(noise_multiplier=0.0))) / (Z * CLIP / math.sqrt(CLIENTS))
    many = noise.size  # local steps read all rows of a client, so seeds differ in noise alone
    assert abs((noise**2).mean() - 1) < 4.5 * math.sqrt(2 / many)
    assert abs(noise.mean()) < 4.5 / math.sqrt(many)


def test_a_message_that_is_not_finite_has_noise_as_others() -> None:
    """So the server cannot tell, and no client is missing from the sum."""
    federation = quadratic_federation([10 * A[0], *A[1:]], [np.full(3, 3e38), *B[1:]])
    noised = run(fp.fedavg(), own(), federation=federation)
    silent = run(fp.fedavg(), own(noise_multiplier=0.0), federation=federation)
    total = sum(noise_of(client, 0, 0) for client in range(CLIENTS))
    expected = np.asarray(silent.params) + Z * CLIP * total / CLIENTS
    np.testing.assert_allclose(noised.params, expected, rtol=1e-5, atol=1e-6)
    assert noised.final.faulty == 0


@pytest.mark.slow
def test_sweep_points_and_rounds_have_noise_of_their_own() -> None:
    both = fp.simulate(methods=fp.fedprox(mu=[0.0, 1e-9]), **ON_QUADRATICS)
    one, two = (np.asarray(each.params, np.float64) for each in both)
    assert np.linalg.norm(one - two) > 0.1 * Z * CLIP / math.sqrt(CLIENTS)


def gaussian(noise: float, times: int, delta: float = DELTA) -> float:
    """Epsilon of some Gaussian mechanisms, by dp-accounting."""
    each = dp_accounting.GaussianDpEvent(noise)
    composed = dp_accounting.SelfComposedDpEvent(each, times)
    epsilon: float = pld.PLDAccountant().compose(composed).get_epsilon(delta)
    return epsilon


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["bernoulli", "uniform"])
def test_epsilon_is_that_of_all_rounds_whatever_the_cohorts(sampling: str) -> None:
    mechanism = mechanism_of(own(), 100, 10, sampling, rounds=20)
    assert epsilon_of(mechanism, 20) == pytest.approx(gaussian(Z, 20), rel=5e-3)
    assert epsilon_of(mechanism, 20) >= gaussian(Z, 20) * (1 - 1e-3)


def test_epsilon_of_cohorts_in_turn_is_that_of_a_clients_rounds() -> None:
    strategy = Strategy("independent", 5, 20)
    mechanism = mechanism_of(own(), 100, 10, "cyclic", rounds=20, strategy=strategy)
    assert epsilon_of(mechanism, 20) == pytest.approx(gaussian(Z, 4), rel=5e-3)


def test_noise_is_calibrated_to_all_rounds() -> None:
    given = own(noise_multiplier=None, epsilon=3.0)
    mechanism = mechanism_of(given, 100, 10, "bernoulli", rounds=20)
    spent = gaussian(mechanism.noise_multiplier, 20)
    assert spent == pytest.approx(3.0, rel=5e-3)


def test_the_statement_says_whom_clients_trust() -> None:
    mechanism = mechanism_of(own(), 100, 10, "bernoulli", rounds=20)
    first, *_, trust, _ = statement(mechanism, 20, trusted=False)
    assert first.startswith("The messages of a client in all 20 rounds together are")
    assert trust.startswith("Trust: each client, which clips its own messages and adds the noise;")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"unit": "example"}, r'privacy.trust = "none"; it is for privacy.unit = "client"'),
        ({"capacity": 9}, "privacy.capacity = 9; with privacy.trust = "),
        ({"trust": "nobody"}, "privacy.trust = 'nobody'"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        own(**settings)
