"""Callbacks: what they are given, in which order, what an error in one does, and their seconds."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox import InputError
from fedprox.loop import checkpoint, snapshot
from fedprox.loop.train import Stopwatch
from fedprox.report.table import notes_on
from tests.settings import SELDOM, runs


def run(*callbacks: fp.Callback, **changes: Any) -> list[fp.Run]:
    methods = [fp.fedavg(), fp.fedprox(mu=[0.1, 1.0])]
    usual = SELDOM | {"methods": methods, "rounds": 4, "seed": [0, 1]}
    return runs(callbacks=callbacks, **usual | changes)


class Seen:
    """A callback that keeps everything that it is given."""

    def __init__(self) -> None:
        self.planned: list[tuple[Any, ...]] = []
        self.records: list[fp.Record] = []
        self.ends: list[Sequence[fp.Run] | None] = []
        self.callback = fp.Callback(self.start, self.records.append, self.ends.append)

    def start(self, runs: Sequence[fp.Run]) -> None:
        assert not self.records
        assert not any(run.history for run in runs)
        self.planned += [
            (run.label, run.seed, run.hparams, run.learning_rate, run.experiment) for run in runs
        ]


def test_a_callback_is_given_the_runs_their_records_and_the_finished_runs() -> None:
    seen = Seen()
    found = run(seen.callback)
    assert seen.planned == [
        (run.label, run.seed, run.hparams, run.learning_rate, run.experiment) for run in found
    ]
    assert found[0].experiment["rounds"] == 4
    assert len(seen.records) == 6 * 3
    for each in found:
        history = [r for r in seen.records if (r.label, r.seed) == (each.label, each.seed)]
        assert history == each.history
    assert seen.ends == [found]


@pytest.mark.slow
def test_a_callback_of_a_resumed_run_is_given_all_records(tmp_path: Path) -> None:
    def fail(record: fp.Record) -> None:
        if (record.method, record.seed, record.round) == ("fedprox", 0, 4):
            raise KeyError("late")

    first, resumed = Seen(), Seen()
    with pytest.raises(InputError):
        run(first.callback, fp.Callback(on_record=fail), checkpoints=fp.Checkpoints(tmp_path, 2))
    assert first.ends == [None]
    run(resumed.callback, checkpoints=fp.Checkpoints(tmp_path, resume=True))
    whole = Seen()
    run(whole.callback)
    np.testing.assert_equal(resumed.records, whole.records)
    assert resumed.planned == whole.planned


def wrong(_: Any) -> None:
    raise KeyError("kernal")


@pytest.mark.parametrize("name", ["on_start", "on_record", "on_end"])
def test_an_error_in_a_callback_ends_the_run_and_names_it(name: str) -> None:
    before, after = Seen(), Seen()
    with pytest.raises(InputError) as raised:
        run(before.callback, fp.Callback(**{name: wrong}), after.callback)
    assert str(raised.value) == f"callbacks: {name} = wrong raised KeyError: 'kernal'"
    assert isinstance(raised.value.__cause__, KeyError)
    # who was told of the start is told of the end, once
    assert len(before.ends) == 1
    assert after.ends == ([] if name == "on_start" else [None])
    assert len(before.records) == {"on_start": 0, "on_record": 1, "on_end": 18}[name]


def test_an_error_at_the_end_of_a_failed_run_does_not_hide_the_first(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match="on_record = wrong"):
        run(fp.Callback(on_record=wrong, on_end=wrong))
    assert caplog.messages == ["callbacks: on_end = wrong raised KeyError: 'kernal'"]


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: run(print),  # type: ignore[arg-type]
            "callbacks[0] = print, a function that was not called; it must be a fedprox.Callback",
        ),
        (lambda: fp.run("a.toml", callbacks=None), "callbacks = None; it must be a list of fedp"),  # type: ignore[arg-type]
        (lambda: fp.Callback(on_end=3), "on_end = 3; it must be a function"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_callback_is_refused(make: Any, line: str) -> None:
    with pytest.raises(InputError) as raised:
        make()
    assert str(raised.value).startswith(line)


NAP = 0.2


@pytest.mark.slow
def test_seconds_leave_out_callbacks_progress_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, naps = snapshot.write_state, list[str]()

    def nap(what: str) -> None:
        naps.append(what)
        time.sleep(NAP)

    def write_slowly(*given: Any) -> None:
        write(*given)
        nap("checkpoint")

    monkeypatch.setattr(checkpoint, "write_state", write_slowly)
    (found,) = run(
        fp.Callback(on_record=lambda _: nap("record")),
        on_progress=lambda now: nap("progress") if now.round == 2 else None,
        checkpoints=fp.Checkpoints(tmp_path, 2),
        methods=fp.fedavg(),
        seed=0,
    )
    assert naps.count("record") == 3
    assert naps.count("progress") >= 1
    assert naps.count("checkpoint") >= 2
    assert found.run_seconds < 2 * NAP
    called = NAP * (len(naps) - naps.count("checkpoint"))
    assert called * 0.9 < found.callback_seconds < called + 2 * NAP


class Computed:
    """An array that the devices have computed after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def block_until_ready(self) -> None:
        time.sleep(self.seconds)


@pytest.mark.parametrize(("computing", "alone"), [(0.0, 1.0), (0.5, 0.5), (2.0, 0.0)])
def test_seconds_count_what_the_devices_compute_while_callbacks_run(
    computing: float, alone: float
) -> None:
    watch = Stopwatch(run=3.0, callbacks=1.0)
    with watch.calling_back([Computed(computing * NAP)]):
        time.sleep(NAP)
    assert watch.callbacks == pytest.approx(1.0 + alone * NAP, abs=0.25 * NAP)
    assert watch.run == pytest.approx(3.0 + (1 - alone) * NAP, abs=0.5 * NAP)
    watch.close()


@pytest.mark.slow
def test_callbacks_are_said_where_they_took_long() -> None:
    known = run(seed=0)
    assert not any("callbacks" in line for line in notes_on(known))
    for each in known:
        each.run_seconds, each.callback_seconds = 20.0, 3.0 * each.sweep_points
    assert "seconds leave out 9.0 s of callbacks and loggers" in notes_on(known)
