"""The status of a run while it trains, for others to read, and how it is asked to stop.

With each record the run's process writes `status.json`, and the same numbers as `metrics.prom` for
the textfile collector of Prometheus' node_exporter; once a minute the report. All measures of a
status are those of one record. Between rounds the process looks for a file `stop`. A run that is
complete leaves none of these but the report. A study does so in its own folder, over the rounds of
all its runs.
"""

import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedprox.errors import printable
from fedprox.files.whole import write_whole
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Progress, status
from fedprox.report.directory import RunDirectory
from fedprox.report.page import write_report
from fedprox.report.records import has, json_number
from fedprox.report.status import FILES, PROMETHEUS, STATUS, STOP
from fedprox.results.record import Record

STATUS_MOST, PAGE_EVERY = 1.0, 60.0
"""Seconds that a status waits at most after the one before, and a report at least."""

WAIT_FACTOR = 50
"""How many times as long as writing took the next status or report waits, within these bounds."""

OF_A_RECORD = "clients", "faulty", "epsilon"
"""Further measures of the record in a status, where it has them."""

COSTS_OF_A_NODE = ("rounds", "seconds", "bytes_down", "bytes_up")
"""The costs that are summed for each node of a deployment."""


class StatusWriter:
    """Writes statuses into a folder, and stops the training of a run or a study when asked to.

    Statuses are written at once, but for those that follow each other very fast. The status of a
    study has no loss, which would be that of one run: its rounds are those of all.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        clean_up(folder)  # of an earlier process
        self._folder, self._clock, self._due = folder, clock, -math.inf
        self._waits: Mapping[str, Any] = {}

    def write(
        self, status: Mapping[str, Any], checkpoints: Checkpoints, *, at_once: bool = False
    ) -> None:
        """Write a status, unless a later one may take its place, and see whether to stop."""
        if (self._folder / STOP).exists():
            (self._folder / STOP).unlink(missing_ok=True)
            checkpoints.stopping = checkpoints.stopping or signal.SIGTERM
        began = self._clock()
        self._waits = {**status, "updated": began}
        if began >= self._due or at_once:
            self.end()
            now = self._clock()
            self._due = now + min(STATUS_MOST, WAIT_FACTOR * (now - began))

    def end(self) -> None:
        """Write the last status if it was not written, of what is stopped or fails."""
        shown, self._waits = self._waits, {}
        if shown:
            with suppress(OSError):  # a full disk is said by what matters
                write_whole(self._folder / STATUS, json.dumps(shown).encode() + b"\n")
                write_whole(self._folder / PROMETHEUS, prometheus(shown).encode())


class Live(StatusWriter):
    """Writes what is seen of a run, but nothing before its first record, and stops it if asked."""

    def __init__(
        self,
        directory: RunDirectory,
        checkpoints: Checkpoints,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(directory.path, clock)
        self._directory, self._checkpoints = directory, checkpoints
        self._began, self._page_due = clock(), clock() + PAGE_EVERY
        self._progress, self._measured = dict[str, Any](), dict[str, Any]()
        self._nodes: dict[str, dict[str, float]] = {}
        self._last: tuple[str, int, int] | None = None

    def progress(self, now: Progress) -> None:
        """Note the progress of the rounds."""
        before = self._progress.get("label"), self._progress.get("seed")
        if now.round == 0 and (now.label, now.seed) != before:
            self._measured = {}  # those of another run
        self._progress = noted(now)
        self._write()

    def record(self, record: Record) -> None:
        """Note a record, of a deployment also what it cost and which nodes were heard of."""
        this = record.method, record.seed, record.round
        another = this != self._last  # the points of a sweep share their messages
        self._last = this
        if not self._progress or (another and record.round == 0 and self._measured):
            # all records of a checkpoint precede the progress, and a finished run has none
            rounds = self._directory.experiment["rounds"]
            self._measured = {}
            self._progress = noted(Progress(record.label, record.seed, record.round, rounds))
        if another:
            self._note_costs(record)
        known, loss = self._measured.get("loss"), json_number(record.train_loss)
        if another or (loss is not None and (known is None or loss < known)):
            accuracy = json_number(record.test_accuracy)
            self._measured |= {"round": record.round, "loss": loss, "test_accuracy": accuracy}
            known = {name: getattr(record, name) for name in OF_A_RECORD}
            self._measured |= {name: json_number(value) for name, value in known.items()}
        done = max(self._progress["rounds_done"], record.round)
        self._progress["rounds_done"] = done
        self._write(at_once=has(record, "nodes"))
        now, path = self._clock(), self._directory.path
        if now >= self._page_due and self._directory.begun:
            with suppress(Exception):  # a page that fails ends no run
                write_report([path], path / "report.html")
            took = self._clock() - now
            self._page_due = now + max(PAGE_EVERY, WAIT_FACTOR * took)

    def _note_costs(self, record: Record) -> None:
        """Add what the rounds since the last record cost."""
        for client in (record.network or {}).values():
            node = self._nodes.setdefault(str(client["node"]), dict.fromkeys(COSTS_OF_A_NODE, 0.0))
            for cost in COSTS_OF_A_NODE:
                node[cost] += client[cost]
            node["seen"] = self._clock()
        for cost in ("seconds", "bytes_down", "bytes_up"):
            if has(record, cost):
                self._measured[cost] = self._measured.get(cost, 0) + getattr(record, cost)

    def _write(self, *, at_once: bool = False) -> None:
        if self._directory.begun:
            status = {"began": self._began, **self._progress, **self._measured}
            self.write(status | {"nodes": self._nodes}, self._checkpoints, at_once=at_once)


def noted(now: Progress) -> dict[str, Any]:
    """The progress of rounds as a status has it."""
    known = {"label": now.label, "seed": now.seed, "rounds_done": now.round, "rounds": now.rounds}
    return known | {"state": status(now._replace(loss=None))}


def clean_up(folder: Path) -> None:
    """Remove the files of what is complete, or of an earlier process."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


GAUGES = {
    "rounds_done": "Rounds done.",
    "rounds": "Rounds of the run.",
    "round": "Round of the last evaluation.",
    "loss": "Training loss at the last evaluation, of a sweep the lowest.",
    "test_accuracy": "Test accuracy at the last evaluation, of a sweep that with this loss.",
    "clients": "Clients of the last round before this evaluation.",
    "faulty": "Faulty updates since the evaluation before.",
    "epsilon": "Epsilon of differential privacy that is spent.",
    "seconds": "Seconds of rounds and evaluations up to this evaluation.",
    "bytes_down": "Bytes that nodes received up to this evaluation.",
    "bytes_up": "Bytes that nodes sent up to this evaluation.",
    "updated": "Time of this status.",
    "node_seen": "Time at which a node was last heard of.",
}
"""The numbers of a status that `metrics.prom` has, and what they are."""


def prometheus(shown: Mapping[str, Any]) -> str:
    r"""A status in the text format of Prometheus.

    >>> node = {"rounds": 3.0, "seconds": 4.5, "bytes_down": 9.0, "bytes_up": 8.0, "seen": 7.0}
    >>> known = {"label": "fedavg", "seed": 0, "round": 3, "loss": None, "nodes": {"a": node}}
    >>> print(prometheus(known))
    # HELP fedprox_round Round of the last evaluation.
    # TYPE fedprox_round gauge
    fedprox_round{method="fedavg",seed="0"} 3
    # HELP fedprox_node_seen Time at which a node was last heard of.
    # TYPE fedprox_node_seen gauge
    fedprox_node_seen{node="a"} 7.0
    <BLANKLINE>
    """
    of = f'method="{_escaped(shown["label"])}",seed="{shown["seed"]}"'
    samples = {name: {of: shown[name]} for name in GAUGES if shown.get(name) is not None}
    seen = {f'node="{_escaped(name)}"': node["seen"] for name, node in shown["nodes"].items()}
    lines = []
    for name, values in {**samples, "node_seen": seen}.items():
        if values:
            lines += [f"# HELP fedprox_{name} {GAUGES[name]}", f"# TYPE fedprox_{name} gauge"]
            lines += [f"fedprox_{name}{{{labels}}} {value}" for labels, value in values.items()]
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return printable(label).replace("\\", "\\\\").replace('"', '\\"')
