"""What must hold of a run beside a feature, whatever else is set."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedprox as fp
from fedprox.streams import Purpose, Streams

LOST = 0.3
"""The chance that a client is lost."""

DEVICES = fp.Population(step_seconds=1.0)


def run(**options: Any) -> tuple[list[fp.Run], list[fp.Record]]:
    """The runs, and the records that callbacks receive of the first."""
    seen: list[fp.Record] = []
    runs = fp.simulate(callbacks=[fp.Callback(on_record=seen.append)], **options)
    return runs, [r for r in seen if (r.label, r.seed) == (runs[0].label, runs[0].seed)]


def hides_clients(privacy: fp.Privacy | None = None, **_: Any) -> bool:
    """Whether settings hide clients."""
    return privacy is not None and privacy.unit == "client"


SEEDS_TRIED = 100_000


def with_empty_round(at: int, **options: Any) -> dict[str, Any]:
    """The same settings, such that nobody's message arrives in a round of the first seed.

    All clients of this round are lost, of the first one, by which shapes are chosen, none, and of
    the others few; with privacy of clients the seed draws nobody.
    """
    lost = 0.0 if hides_clients(**options) else LOST
    if lost:
        population = options.get("population") or DEVICES
        options |= {"population": replace(population, available=None, dropout=lost)}
    given = options.get("seed", 0)
    seed, *others = np.atleast_1d(given).tolist()
    offsets, rounds = options["federation"].train.offsets, range(options["rounds"])

    def arriving(t: int) -> float:
        """The share of a cohort that is not lost."""
        drawn = options["cohort"].draw(seed, t, offsets, poisson=not lost).clients.tolist()
        streams = Streams(seed, Purpose.DROPOUT)
        return sum(streams.at(t, k).random() >= lost for k in drawn) / max(len(drawn), 1)

    first = seed
    while arriving(at) > 0 or arriving(0) < 1 or any(arriving(t) <= 0.5 for t in rounds if t != at):
        assert seed < first + SEEDS_TRIED, "no seed has such a round: is a cohort never empty?"
        seed += 1
    seeds = [seed, *others]
    return options | {"seed": np.array(seeds) if isinstance(given, np.ndarray) else seeds}


def require_empty_round(at: int, options: dict[str, Any]) -> list[fp.Run]:
    """The runs of settings, whose round `at` has no clients: it changes nothing."""
    runs, seen = run(**options)
    first, every = runs[0], options["evaluation"].every
    assert first.empty_rounds == 1
    assert first.final.round == options["rounds"]
    before, empty = first.history[at // every], first.history[at // every + 1]
    assert empty.empty_rounds == 1
    assert first.final.total_steps > empty.total_steps
    for record in first.history:
        assert math.isfinite(record.train_loss)
    if every == 1:
        assert (empty.round, empty.solves, empty.client_steps) == (at + 1, 0, 0)
        assert empty.dropped == empty.clients
        assert math.isnan(empty.gamma_mean)
        assert empty.total_steps == before.total_steps
        if not hides_clients(**options):  # else the model has the round's noise
            assert empty.train_loss == before.train_loss
        clients = seen[at + 1].by_client
        if clients is not None:
            assert not clients.rounds.any()
            assert not clients.steps.any()
    return runs


class Killed(BaseException):
    """A run is killed."""


def require_resumed(once: list[fp.Run], at: int, options: dict[str, Any], folder: Path) -> None:
    """Assert that a run that is killed after `at` rounds, and goes on, ends as the whole run."""

    def kill(record: fp.Record) -> None:
        if record.round > at:
            raise Killed

    checkpoints = fp.Checkpoints(folder, every=at)
    with suppress(Killed):
        fp.simulate(**options, checkpoints=checkpoints, callbacks=[fp.Callback(on_record=kill)])
    assert checkpoints.made == 1
    same(once, fp.simulate(**options, checkpoints=fp.Checkpoints(folder, resume=True)))


TIMES = ("callback_seconds", "compile_seconds", "run_seconds")


def same(one: Any, other: Any) -> None:
    """Assert that all parts are equal and of equal types."""
    for (path, a), (there, b) in zip(parts(one), parts(other), strict=True):
        assert path == there
        if not path.endswith(TIMES):
            np.testing.assert_equal(a, b, err_msg=path)


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A value's parts by their paths, with the type of each; arrays are parts."""
    yield f"{path}: type", (type(value), getattr(value, "dtype", None))
    if isinstance(value, dict):
        inner: dict[Any, Any] = value
    elif dataclasses.is_dataclass(value):
        inner = vars(value)
    elif hasattr(value, "_asdict"):
        inner = value._asdict()
    elif isinstance(value, list | tuple):
        inner = dict(enumerate(value))
    else:
        yield path, value
        return
    for key, each in inner.items():
        yield f"{path}.{key}: type of key", type(key)
        yield from parts(each, f"{path}.{key}")
