"""A client moves the noiseless release by at most C: neighbouring federations, one client more."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedprox as fp
from fedprox.engine.compiled import layout
from fedprox.protocol.method import Method
from tests.parts.privacy.releases import per_round, released, require_bounded
from tests.parts.privacy.test_mechanism import CLIP, SOLVER, START, A, B
from tests.quadratics import quadratic_federation, quadratic_model

SYSTEMS = {
    "half": fp.Systems(stragglers=0.5),
    "most": fp.Systems(stragglers=0.9),
    "deadline": fp.Systems(deadline=2.0),
}
SEEDS = list(range(6))
ROUNDS = 2


def of_neighbour(
    method: fp.Algorithm, systems: fp.Systems, clients: int, solver: fp.Solver = SOLVER
) -> list[NDArray[np.float64]]:
    """The clipped sums of a federation with so many clients, all of whom take part."""
    return released(
        method,
        clients,
        federation=quadratic_federation(
            A[:clients], B[:clients], rows=[3, 1, 4, 2, 5, 2][:clients]
        ),
        model=quadratic_model(START),
        solver=solver,
        cohort=fp.Cohort(clients),
        systems=systems,
        population=fp.Population(step_seconds=fp.LogNormal(0.7, spread=1.0)),
        rounds=ROUNDS,
        seed=SEEDS,
        privacy=fp.Privacy(CLIP, noise_multiplier=0.0, accountant="rdp"),
        evaluation=fp.Evaluation(gradients=solver.gamma is not None),
    )


SAMPLED = layout.sample_rounds


def whole_rounds(method: Method) -> Any:
    """The work of rounds without stragglers, by which programs have one shape whoever is slow."""
    return SAMPLED(replace(method, protocol=replace(method.protocol, systems=fp.Systems())))


NEIGHBOURS = {
    "fedavg": fp.fedavg(),
    "fedprox": fp.fedprox(mu=0.5),
    "scaffold": fp.scaffold(),
    "feddane": fp.feddane(mu=0.5),
    "ditto": fp.ditto(lam=0.5),
    "balanced": fp.feddyn(alpha=0.5, balance=True),
}
"""Methods that drop, keep and correct, exchange twice, have models of clients, and read how many
rows clients have. All methods beside other cohorts stand in `tests/crossings`.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_one_client_more_moves_a_sum_by_at_most_its_bound(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "sample_rounds", whole_rounds)
    method = NEIGHBOURS[name]
    for systems in SYSTEMS.values():
        less, more = (of_neighbour(method, systems, clients) for clients in (5, 6))
        require_bounded(less, more, CLIP, ROUNDS * len(SEEDS) * per_round(method))


SIZES = np.array([3, 1, 40, 11, 8, 25])


@given(
    st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
    st.sampled_from([1, 4]),
    st.sets(st.integers(0, 5)),
    st.integers(0, 5),
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**6),
)
@settings(max_examples=100)
def test_what_a_client_does_is_a_function_of_seed_round_and_client(
    share: float, epochs: int, others: set[int], client: int, seed: int, t: int
) -> None:
    systems, solver = fp.Systems(stragglers=share), fp.Solver(0.1, 4, epochs=epochs)
    alone = np.array([client])
    cohort = np.array([*sorted(others - {client}), client])
    one = systems.work(seed, t, alone, SIZES[alone], solver, independent=True)
    among = systems.work(seed, t, cohort, SIZES[cohort], solver, independent=True)
    assert (one.steps[0], one.stragglers[0]) == (among.steps[-1], among.stragglers[-1])


def test_each_client_is_a_straggler_with_the_probability_that_is_asked_for() -> None:
    cohort, solver = np.arange(200), fp.Solver(0.1, 1, epochs=5)
    sizes = np.full(200, 3)
    systems = fp.Systems(stragglers=0.9)
    rounds = [systems.work(0, t, cohort, sizes, solver, independent=True) for t in range(50)]
    counts = np.array([work.stragglers.sum() for work in rounds])
    assert abs(counts.mean() - 180) < 5 * math.sqrt(200 * 0.09 / 50)
    assert abs(counts.var() / (200 * 0.09) - 1) < 5 * math.sqrt(2 / 50)  # not a fixed count
    epochs = np.concatenate([work.steps[work.stragglers] for work in rounds]) / 3
    found = np.bincount(epochs.astype(int), minlength=6)[1:] / len(epochs)
    assert np.abs(found - 0.2).max() < 5 * math.sqrt(0.16 / len(epochs))


@pytest.mark.slow
def test_gamma_of_a_client_does_not_depend_on_the_others() -> None:
    """A user's function is called for each client alone."""

    def rank(round_: int, clients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        del round_
        return np.linspace(0.9, 0.1, len(clients)) if len(clients) > 1 else np.array([0.5])

    solver = fp.Solver(0.01, "all", epochs=20, gamma=rank)
    less, more = (
        of_neighbour(NEIGHBOURS["fedprox"], fp.Systems(), n, solver=solver) for n in (5, 6)
    )
    require_bounded(less, more, CLIP, ROUNDS * len(SEEDS))


def test_stragglers_epochs_that_see_the_cohort_are_refused() -> None:
    systems = fp.Systems(stragglers=0.5, straggler_epochs=lambda straggler: straggler.slot + 1)
    with pytest.raises(fp.InputError) as error:
        of_neighbour(NEIGHBOURS["fedavg"], systems, 5)
    assert str(error.value) == (
        'systems.straggler_epochs does not go with privacy.unit = "client", since the function '
        "sees who else is in the cohort; leave it out"
    )
