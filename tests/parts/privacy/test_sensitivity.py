"""A client moves the noiseless release by at most C: neighbouring federations, one client more."""

import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.protocol.cohort import Cohort, Drawn
from tests.parts.privacy.test_mechanism import CLIP, METHODS, SOLVER, START, A, B
from tests.quadratics import quadratic_federation, quadratic_model
from tests.variants import mostly_slow

SYSTEMS = {
    "half": fp.Systems(stragglers=0.5),
    "most": fp.Systems(stragglers=0.9),
    "deadline": fp.Systems(deadline=2.0),
}
SEEDS = list(range(6))
ROUNDS = 2


def released(
    method: fp.Algorithm, systems: fp.Systems, clients: int, **options: Any
) -> list[np.ndarray[Any, Any]]:
    """The clipped sums of all rounds and seeds, as vectors.

    The server's state stays as it is, so that a sum depends on earlier sums through the clients'
    states alone, as a guarantee of composed releases has it.
    """
    sums: list[np.ndarray[Any, Any]] = []

    def seen(mean: Any) -> None:
        sums.append(cohort * np.concatenate([np.ravel(a) for a in jax.tree.leaves(mean)]))

    def unchanged(state: Any, mean: Any, hparams: Any) -> Any:
        del hparams
        jax.debug.callback(seen, mean)
        return state

    def begin(_: Any) -> None:
        """Forget what checks of the method have released."""
        jax.effects_barrier()
        sums.clear()

    cohort = options.pop("clients_per_round", clients)
    exchange = None if method.first.exchange is None else unchanged
    solver = options.pop("solver", SOLVER)
    fp.simulate(
        quadratic_federation(A[:clients], B[:clients], rows=[3, 1, 4, 2, 5, 2][:clients]),
        quadratic_model(START),
        method._replace(
            server=method.server._replace(update=unchanged),
            first=method.first._replace(exchange=exchange),
        ),
        solver=solver,
        cohort=fp.Cohort(cohort, options.pop("sampling", "uniform")),
        systems=systems,
        population=fp.Population(step_seconds=fp.LogNormal(0.7, spread=1.0)),
        rounds=ROUNDS,
        seed=SEEDS,
        privacy=fp.Privacy(CLIP, noise_multiplier=0.0, accountant="rdp"),
        evaluation=fp.Evaluation(gradients=solver.gamma is not None),
        devices=1,
        progress=False,
        callbacks=[fp.Callback(on_start=begin)],
        **options,
    )
    return sums


def require_bounded(less: list[Any], more: list[Any], releases: int = 1) -> None:
    """Assert that no sum moves by more than C, and that one moves by about C."""
    assert len(less) == len(more) == releases * ROUNDS * len(SEEDS)
    moved = [float(np.linalg.norm(a - b)) for a, b in zip(less, more, strict=True)]
    assert max(moved) <= CLIP * (1 + 1e-5)
    assert max(moved) > 0.5 * CLIP


@pytest.mark.parametrize("setting", mostly_slow(SYSTEMS, "half"))
@pytest.mark.parametrize("name", mostly_slow(METHODS, "fedavg", "fedprox", "scaffold"))
def test_one_client_more_moves_a_sum_by_at_most_its_bound(name: str, setting: str) -> None:
    less, more = (released(METHODS[name], SYSTEMS[setting], clients) for clients in (5, 6))
    require_bounded(less, more, releases=1 + (METHODS[name].first.exchange is not None))


@pytest.mark.parametrize("setting", mostly_slow(SYSTEMS, "half"))
def test_so_it_does_where_cohorts_are_samples(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poisson samples of the same clients, with and without one more, in another order."""

    def draw(*args: Any, **options: Any) -> Drawn:
        del args, options
        return Drawn(cohort, np.ones_like(cohort))

    monkeypatch.setattr(Cohort, "draw", draw)
    sums: list[list[np.ndarray[Any, Any]]] = []
    for drawn in ([4, 1, 3], [5, 3, 1, 4]):
        cohort = np.array(drawn)
        options: dict[str, Any] = {"sampling": "bernoulli", "clients_per_round": 3}
        sums.append(released(METHODS["fedprox"], SYSTEMS[setting], 6, **options))
    require_bounded(sums[0], sums[1])


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


def test_gamma_of_a_client_does_not_depend_on_the_others() -> None:
    """A user's function is called for each client alone."""

    def rank(round_: int, clients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        del round_
        return np.linspace(0.9, 0.1, len(clients)) if len(clients) > 1 else np.array([0.5])

    solver = fp.Solver(0.01, "all", epochs=20, gamma=rank)
    less, more = (released(METHODS["fedprox"], fp.Systems(), n, solver=solver) for n in (5, 6))
    require_bounded(less, more)


def test_stragglers_epochs_that_see_the_cohort_are_refused() -> None:
    systems = fp.Systems(stragglers=0.5, straggler_epochs=lambda straggler: straggler.slot + 1)
    with pytest.raises(fp.InputError) as error:
        released(METHODS["fedavg"], systems, 5)
    assert str(error.value) == (
        'systems.straggler_epochs does not go with privacy.unit = "client", since the function '
        "sees who else is in the cohort; leave it out"
    )
