"""Faulty clients: left out as if they had not been in the cohort, counted and named."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import (
    Algorithm,
    Cohort,
    Faults,
    Federation,
    InputError,
    Record,
    Rows,
    Run,
    Solver,
    fedavg,
    feddane,
    feddyn,
    fedprox,
    fedsplit,
    scaffold,
    simulate,
)
from fedprox.algorithms.base import Kept, Message, Own, Scalars, Solution, State
from fedprox.simulation import programs, run
from fedprox.simulation.faults import judge
from fedprox.streams import Purpose
from tests import methods
from tests.byhand import START
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_federation, quadratic_model, ragged_quadratics

CLIENTS = 100
FEDERATION = ragged_quadratics(0, [1 + (37 * k) % CLIENTS for k in range(CLIENTS)])
"""Every client has another number of rows, by which a method's functions can tell them apart."""

SHARES = (0.01, 0.1, 0.5, 1.0)


def faulty_clients(share: float) -> list[int]:
    """The clients with the fewest rows: so many of all."""
    return np.flatnonzero(FEDERATION.train.sizes <= share * CLIENTS).tolist()


def corrupting(algorithm: Algorithm, far: float) -> Algorithm:
    """The same method, a share of whose clients send what they should not: swept over.

    In turn NaN, infinity, numbers whose squares overflow, the message times `far`, which is NaN
    where nobody is left to tell it from, and a sound message beside something to keep that is none.
    """
    mean = FEDERATION.train.sizes.mean()

    def message(
        state: State, numbers: Scalars, own: Own, solution: Solution
    ) -> tuple[Message, Kept]:
        sent, keeps = algorithm.message(state, numbers, own, solution)
        rows = jnp.round(own.share * mean).astype(int)
        times = jnp.where(numbers["bad"] < 1, far, jnp.nan)
        kind = jnp.where(rows <= numbers["bad"] * CLIENTS, rows % 5, -1)

        def spoiled(a: jax.Array) -> jax.Array:
            return jnp.select(
                [kind == 0, kind == 1, kind == 2, kind == 3],
                [a * jnp.nan, a.at[0].set(-jnp.inf), a + 1e25, a * times],
                a,
            )

        spoiled_keeps = jax.tree.map(lambda a: jnp.where(kind == 4, jnp.nan, a), keeps)
        if algorithm.kept is None:
            sent = jax.tree.map(lambda a: jnp.where(kind == 4, jnp.nan, a), sent)
        return jax.tree.map(spoiled, sent), spoiled_keeps

    return algorithm._replace(numbers={**algorithm.numbers, "bad": SHARES}, message=message)


CASES: list[tuple[Algorithm, Callable[[], methods.Method], Any, float]] = [
    (fedavg(), lambda: methods.FedProx(START, CLIENTS, drop=True), "clients", math.inf),
    (fedprox(mu=0.5), lambda: methods.FedProx(START, CLIENTS, 0.5), "cohort", 20.0),
    (scaffold(), lambda: methods.Scaffold(START, CLIENTS), "server", math.inf),
    (scaffold(), lambda: methods.Scaffold(START, CLIENTS), "clients", 20.0),
    (feddyn(alpha=0.5), lambda: methods.FedDyn(START, CLIENTS, 0.5), "clients", math.inf),
    (feddyn(alpha=0.5), lambda: methods.FedDyn(START, CLIENTS, 0.5), "server", 20.0),
    (fedsplit(1.0), lambda: methods.FedSplit(START, CLIENTS, 1.0), "server", 20.0),
    (
        fedsplit(1.0, average="all"),
        lambda: methods.FedSplit(START, CLIENTS, 1.0, "all"),
        "cohort",
        math.inf,
    ),
]


@pytest.mark.parametrize(
    ("algorithm", "oracle", "evaluated", "norm"),
    CASES,
    ids=[f"{algorithm.name} {algorithm.variant} {norm}" for algorithm, _, _, norm in CASES],
)
def test_it_is_as_if_faulty_clients_had_not_been_in_the_cohort(
    algorithm: Algorithm, oracle: Callable[[], methods.Method], evaluated: Any, norm: float
) -> None:
    """At 1, 10, 50 and 100 % of all clients, each a point of one sweep, in rounds of ten."""
    setting: dict[str, Any] = {
        "solver": Solver(0.2, 3, steps=3),
        "cohort": Cohort(10),
        "rounds": 5,
    }
    runs = simulate(
        FEDERATION,
        quadratic_model(START),
        corrupting(algorithm, 1e4 if norm < math.inf else math.inf),
        faults=Faults(norm=norm),
        evaluate_every=2,
        evaluate_model=evaluated,
        measure_gradients=False,
        **setting,
    )
    for share, found in zip(SHARES, runs, strict=True):
        bad = set(faulty_clients(share))
        path = methods.run(oracle(), FEDERATION, faulty=bad, **setting)
        expected = getattr(path, evaluated)[-1]
        np.testing.assert_allclose(found.params, expected, rtol=2e-4, atol=2e-5)
        cohorts = [set(Cohort(10).draw(0, t, FEDERATION.train.offsets).clients) for t in range(5)]
        since = [(), cohorts[:2], cohorts[2:4], cohorts[4:]]
        for record, rounds in zip(found.history, since, strict=True):
            names = sorted({int(k) for cohort in rounds for k in cohort & bad})
            assert record.faulty == sum(len(cohort & bad) for cohort in rounds)
            assert record.faulty_clients == [str(k) for k in names]
        assert found.faulty == sum(len(cohort & bad) for cohort in cohorts)
    assert runs[1].faulty
    np.testing.assert_array_equal(runs[-1].params, np.float32(START))


def spoiled(federation: Federation, clients: dict[int, float]) -> Federation:
    """The same, all features of some clients being another number."""
    x = federation.train.x.copy()
    for k, value in clients.items():
        x[federation.train.offsets[k] : federation.train.offsets[k + 1]] = value
    return replace(federation, train=Rows(x, federation.train.y, federation.train.offsets))


BAD_ROWS = {1: math.nan, 3: math.inf, 4: 1e30, 7: -3e38}
SOME_ROWS = [1 + (7 * k) % 9 for k in range(10)]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("batched", [True, False])
def test_rows_that_are_no_numbers_spoil_their_clients_alone(
    devices: int, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and in evaluations, beside a point of the sweep that would diverge."""
    mesh = jax.make_mesh((devices,), ("lanes",), devices=jax.local_devices()[:devices])
    monkeypatch.setattr(run, "lane_mesh", lambda: mesh)
    if not batched:
        monkeypatch.setattr(programs, "SMALL_MODEL", 0)
    federation = ragged_quadratics(0, SOME_ROWS)
    setting: dict[str, Any] = {"cohort": Cohort(6), "rounds": 4}
    calm, wild = simulate(
        spoiled(federation, BAD_ROWS),
        quadratic_model(START),
        feddyn(alpha=0.7),
        solver=Solver([0.1, 1e30], 3, epochs=1),
        faults=Faults(),
        evaluate_every=2,
        **setting,
    )
    oracle = methods.FedDyn(START, 10, 0.7)
    solver = Solver(0.1, 3, epochs=1)
    path = methods.run(oracle, federation, solver=solver, faulty=BAD_ROWS, **setting).server
    np.testing.assert_allclose(calm.params, path[-1], rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(wild.params, np.float32(START))
    good = Federation.from_arrays([federation.train.client(k) for k in (0, 2, 5, 6, 8, 9)])
    for record in calm.history:
        loss = methods.objective(good, path[record.round])
        np.testing.assert_allclose(record.train_loss, loss, rtol=2e-4)
        assert record.unmeasured == 4
        assert math.isfinite(record.dissimilarity)
    drawn = [Cohort(6).draw(0, t, federation.train.offsets).clients for t in range(4)]
    assert wild.faulty == 24
    assert calm.faulty == sum(k in BAD_ROWS for clients in drawn for k in clients)
    assert calm.final.gamma_max < 1
    assert math.isnan(wild.final.gamma_max)


def test_faulty_gradients_of_a_first_exchange_are_left_out() -> None:
    """FedDANE with everybody in both cohorts is FedDANE of the sound clients."""
    federation, sound = ragged_quadratics(0, SOME_ROWS), [0, 2, 5, 6, 8, 9]
    solver = Solver(0.1, "all", steps=4)
    others = Federation.from_arrays([federation.train.client(k) for k in sound])
    model, method = quadratic_model(START), feddane(mu=1.0)
    expected = one_run(others, model, method, solver, rounds=3)
    bad = spoiled(federation, BAD_ROWS)
    for norm in (10.0, math.inf):
        found = one_run(bad, model, method, solver, rounds=3, faults=Faults(norm=norm))
        np.testing.assert_allclose(found.params, expected.params, rtol=1e-5)
        assert found.final.gamma_mean == pytest.approx(expected.final.gamma_mean, rel=1e-4)
        assert found.final.gradient_variance == pytest.approx(
            expected.final.gradient_variance, rel=1e-4
        )
        # a client's gradient, and its work
        assert (found.final.faulty, found.final.faulty_clients) == (8, ["1", "3", "4", "7"])


def test_without_a_sound_gradient_of_the_first_exchange_nothing_changes() -> None:
    federation = spoiled(ragged_quadratics(0, [2, 3]), {0: math.nan})
    first = Cohort(1)
    solver = Solver(0.1, "all", steps=2)
    found = one_run(
        federation,
        quadratic_model(START),
        feddane(mu=1.0),
        solver,
        rounds=8,
        cohort=first,
        faults=Faults(),
    )
    losses = [record.train_loss for record in found.history]
    offsets = federation.train.offsets
    still = []
    for t in range(8):
        cohorts = [first.draw(0, t, offsets), first.draw(0, t, offsets, Purpose.GRADIENT_COHORT)]
        bad = [int(drawn.clients[0]) == 0 for drawn in cohorts]
        assert found.history[t + 1].faulty == sum(bad)
        assert (losses[t + 1] == losses[t]) == any(bad)
        still.append(tuple(bad))
    assert len(set(still)) == 4


def pulled(b: list[float], faults: Faults, method: Algorithm | None = None, rounds: int = 1) -> Run:
    """Clients who come to b_k in one step from 0."""
    federation = quadratic_federation([np.eye(1)] * len(b), [np.array([v]) for v in b])
    if not all(map(math.isfinite, b)):
        y = np.array(b, np.float32)[:, None]
        federation = replace(federation, train=replace(federation.train, y=y))
    model, solver = quadratic_model(np.zeros(1)), Solver(1.0, "all", steps=1)
    return one_run(federation, model, method or fedavg(), solver, faults=faults, rounds=rounds)
