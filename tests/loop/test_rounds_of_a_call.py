"""Methods with client state run several rounds in one call, with the bits of one round a call."""

from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.engine.compiled import layout
from fedprox.loop.local import LocalSeed
from tests.byhand import CLIENTS, START, ragged_runs

ROUNDS, EVERY = 9, 6


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rounds of each call."""
    counts: list[int] = []
    compute = LocalSeed.next

    def noted(self: LocalSeed, now: Any) -> Any:
        computed = compute(self, now)
        counts.append(computed.round - now.round)
        return computed

    monkeypatch.setattr(LocalSeed, "next", noted)
    return counts


def runs(method: fp.Algorithm, **options: Any) -> list[fp.Run]:
    evaluation = fp.Evaluation(every=EVERY, gradients=False)
    usual = {"solver": fp.Solver(0.05, 3, epochs=2), "rounds": ROUNDS, "evaluation": evaluation}
    return ragged_runs(method, **usual | options)


def same_bits(some: list[fp.Run], others: list[fp.Run]) -> None:
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a.params, b.params)
        np.testing.assert_equal(a.history, b.history)


MEASURED = fp.Evaluation(every=EVERY)
TWO_RATES = fp.Solver([0.05, 0.1], 3, epochs=2)
ANY = fp.Cohort(5, "bernoulli")
KEEPING: dict[str, tuple[fp.Algorithm, dict[str, Any]]] = {
    "models": (fp.ditto(lam=0.5), {"devices": 1, "seed": [0, 1]}),
    "gradients": (fp.scaffold(), {"solver": TWO_RATES, "evaluation": MEASURED}),
    "evaluated": (
        fp.feddyn(alpha=0.7),
        {"evaluation": fp.Evaluation(every=EVERY, model="clients", gradients=False)},
    ),
    "a stop rule": (
        fp.fedsplit(step_size=1.0),
        {"solver": fp.Solver(0.05, 3, epochs=2, gamma=0.5), "evaluation": MEASURED},
    ),
    "faults": (fp.fedadmm(rho=0.5), {"faults": fp.Faults(), "client_store": "disk", "cohort": ANY}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", KEEPING)
def test_rounds_have_the_same_bits_in_one_call_or_many(
    case: str, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, options = KEEPING[case]
    together = runs(method, **options)
    seeds = len(options.get("seed", [0]))
    assert calls == [EVERY, ROUNDS - EVERY] * seeds
    calls.clear()
    monkeypatch.setattr(layout, "STATE_BYTES", 0)
    same_bits(runs(method, **options), together)
    assert calls == [1] * ROUNDS * seeds


@pytest.mark.slow
@pytest.mark.usefixtures("optimized")  # else the programs of one round differ in the last bit
def test_rounds_whose_sizes_are_compared_have_the_same_bits_in_one_call_or_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"faults": fp.Faults(norm=2.0), "cohort": ANY}
    together = runs(fp.feddyn(alpha=0.7), **options)
    monkeypatch.setattr(layout, "STATE_BYTES", 0)
    same_bits(runs(fp.feddyn(alpha=0.7), **options), together)
    assert together[0].faulty


@pytest.mark.slow
def test_sweep_points_one_after_another_have_the_same_bits_in_one_call_or_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "batch_points", lambda _: False)
    options: dict[str, Any] = {"solver": TWO_RATES, "evaluation": MEASURED}
    together = runs(fp.scaffold(), **options)
    monkeypatch.setattr(layout, "STATE_BYTES", 0)
    same_bits(runs(fp.scaffold(), **options), together)


@pytest.mark.slow
def test_a_call_has_only_rounds_whose_state_fits(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = START.size * 4
    together = runs(fp.scaffold(), systems=fp.Systems())
    for size, rounds in ((CLIENTS * state, EVERY), (5 * 2 * state, 2), (5 * 2 * state - 1, 1)):
        calls.clear()
        monkeypatch.setattr(layout, "STATE_BYTES", size)
        same_bits(runs(fp.scaffold(), systems=fp.Systems()), together)
        assert max(calls) == rounds
