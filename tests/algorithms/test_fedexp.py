"""FedExP against its formula, FedAvg and the oracle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, InputError, Privacy, Solver, fedavg, fedexp
from tests import methods
from tests.byhand import CLIENTS, START, beside_the_oracle
from tests.quadratics import (
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)

ONE_STEP = Solver(0.1, "all", steps=1)


@settings(max_examples=8)
@given(seed=st.integers(0, 99), epsilon=st.sampled_from([1e-6, 1e-3, 0.1, 10.0]))
def test_the_servers_step_follows_from_the_clients_gradients(seed: int, epsilon: float) -> None:
    a, b = random_quadratics(seed, 4, 3)
    # unequal rows, which do not count
    federation = quadratic_federation(a, b, rows=[1, 2, 5, 3])
    run = one_run(federation, quadratic_model(START), fedexp(epsilon=epsilon), ONE_STEP)
    d = np.array([-0.1 * a_k @ (START - b_k) for a_k, b_k in zip(a, b, strict=True)])
    mean = d.mean(axis=0)
    step = max(1.0, (d**2).sum() / (2 * 4 * (mean @ mean + epsilon)))
    np.testing.assert_allclose(run.params, START + step * mean, rtol=1e-4, atol=1e-5)


def test_opposed_clients_lengthen_the_step() -> None:
    """Updates 3 and -1: (9 + 1) / (2 * 2 * (1 + 1/4)) = 2 times their mean 1."""
    federation = quadratic_federation([np.eye(1)] * 2, [np.array([3.0]), np.array([-1.0])])
    solver = Solver(1.0, "all", steps=1)
    run = one_run(federation, quadratic_model(np.zeros(1)), fedexp(epsilon=0.25), solver)
    np.testing.assert_allclose(run.params, [2.0], rtol=1e-6)


def test_with_identical_clients_it_is_fedavg_bit_for_bit() -> None:
    a, b = random_quadratics(3, 1, 3)
    federation, model = quadratic_federation(a * 4, b * 4), quadratic_model(START)
    setting: dict[str, Any] = {
        "solver": Solver(0.1, "all", steps=5),
        "cohort": Cohort(2),
        "rounds": 4,
    }
    ours = one_run(federation, model, fedexp(), **setting)
    theirs = one_run(federation, model, fedavg(average="clients"), **setting)
    np.testing.assert_array_equal(ours.params, theirs.params)


def test_runs_are_the_oracles() -> None:
    beside_the_oracle(
        fedexp(epsilon=[1e-4, 0.1]),
        lambda hparams, _: methods.Ruled(
            methods.FedProx(START, CLIENTS, drop=True, by_rows=False),
            methods.Extrapolation(hparams["epsilon"]),
        ),
    )


def test_privacy_is_refused() -> None:
    federation, privacy = ragged_quadratics(0, [1, 2]), Privacy(1.0, noise_multiplier=1.0)
    with pytest.raises(InputError, match=r"fedexp: a message holds the squared norm .*, so priv"):
        one_run(federation, quadratic_model(START), fedexp(), ONE_STEP, privacy=privacy)
