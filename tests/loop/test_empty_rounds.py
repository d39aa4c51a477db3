"""Rounds without clients, in the middle of a run: they change nothing, and the run goes on."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from tests.catalogue import SAMPLED
from tests.settings import BASE, CASES, CLIENTS, FEDERATION, uncovered
from tests.variants import mostly_slow

EMPTY = 2
"""The round without clients; two rounds are before it, and two after it."""

DEVICES = fp.Population(step_seconds=1.0)

NEVER_EMPTY = ("no barrier",)
"""A step of a server without a barrier has a full buffer."""


def run(**options: Any) -> tuple[list[fp.Run], list[fp.Record]]:
    """The runs, and the records that callbacks receive of the first."""
    seen: list[fp.Record] = []
    runs = fp.simulate(callbacks=[fp.Callback(on_record=seen.append)], **BASE | options)
    return runs, [r for r in seen if (r.label, r.seed) == (runs[0].label, runs[0].seed)]


def hides_clients(privacy: fp.Privacy | None = None, **_: Any) -> bool:
    """Whether settings hide clients."""
    return privacy is not None and privacy.unit == "client"


def with_empty_round(**options: Any) -> dict[str, Any]:
    """The same settings, such that nobody's message arrives in the round `EMPTY` of the first seed.

    All devices go off right after the round has begun, and on again at its end; with privacy of
    clients, which needs all of them on, the seed draws nobody.
    """
    options = BASE | options
    if hides_clients(**options):
        return options | {"seed": empty_draw(options["cohort"])}
    always = replace(options.get("population", DEVICES), available=None)
    (first, *_), _ = run(**options | {"rounds": EMPTY + 1, "population": always})
    begin, end = (record.time or 0.0 for record in first.history[-2:])
    off, period = begin + 1e-3 * (end - begin), 1e3 * end
    device = np.tile(np.arange(CLIENTS), 2).tolist()
    on, off_at = (np.repeat(at, CLIENTS).tolist() for at in ([0.0, end], [off, period]))
    trace = fp.Intervals(device, on, off_at, period)
    return options | {"population": replace(always, available=trace)}


def empty_draw(cohort: fp.Cohort) -> int:
    """A seed that draws nobody in the round `EMPTY` alone."""
    offsets, rounds = FEDERATION.train.offsets, range(BASE["rounds"])

    def empty(seed: int, t: int) -> bool:
        return not len(cohort.draw(seed, t, offsets, poisson=True).clients)

    return next(s for s in range(10_000) if [t for t in rounds if empty(s, t)] == [EMPTY])


def check(**options: Any) -> None:
    """Check a run whose round `EMPTY` has no clients."""
    (first, *_), seen = run(**with_empty_round(**options))
    every = options.get("evaluation", BASE["evaluation"]).every
    assert first.empty_rounds == 1
    assert first.final.round == BASE["rounds"]
    before, empty = first.history[EMPTY // every], first.history[EMPTY // every + 1]
    assert empty.empty_rounds == 1
    assert first.final.total_steps > empty.total_steps
    for record in first.history:
        assert math.isfinite(record.train_loss)
    if every == 1:
        assert (empty.round, empty.solves, empty.client_steps) == (EMPTY + 1, 0, 0)
        assert empty.dropped == empty.clients
        assert math.isnan(empty.gamma_mean)
        assert empty.total_steps == before.total_steps
        if not hides_clients(**options):  # else the model has the round's noise
            assert empty.train_loss == before.train_loss
        clients = seen[EMPTY + 1].by_client
        if clients is not None:
            assert not clients.rounds.any()
            assert not clients.steps.any()


def test_every_setting_is_tried() -> None:
    assert uncovered() == []


@pytest.mark.parametrize(
    "name",
    mostly_slow(
        [name for name in CASES if name not in NEVER_EMPTY],
        *("records of clients", "a stop rule", "private clients", "an attack", "quantized"),
    ),
)
def test_every_setting(name: str) -> None:
    check(**CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, each in SAMPLED.items() if not each.method.pooled])
def test_every_method(name: str) -> None:
    evaluation = fp.Evaluation(gradients=False, by_client=True, client_records=True)
    check(methods=SAMPLED[name].method, evaluation=evaluation, faults=fp.Faults())
