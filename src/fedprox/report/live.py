"""What is seen of a run from outside while it trains, and how it is asked to stop.

Once a second at most the run's process writes `status.json`, and the same numbers as `metrics.prom`
for the textfile collector of Prometheus' node_exporter; once a minute the report. Between rounds it
looks for a file `stop`. A run that is complete leaves none of these but the report. A study does so
in its own folder, over the rounds of all its runs.
"""

import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fedprox.errors import InputError, foreign, printable, require
from fedprox.files.lock import holder
from fedprox.files.whole import write_whole
from fedprox.report.directory import RunDirectory
from fedprox.report.page import write_report
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.loop.progress import Progress, status
from fedprox.simulation.results.record import Record

STATUS, PROMETHEUS, STOP = FILES = "status.json", "metrics.prom", "stop"
"""Names of the files in a run directory."""

STUDY = "study.json"
"""Name of the file that a complete study has in its folder."""

STATUS_EVERY, PAGE_EVERY = 1.0, 60.0
"""Seconds between two writes of the status, and of the report."""

SPARE = 50
"""How many times as long as a report takes the next one waits at least."""

COSTS = ("rounds", "seconds", "bytes_down", "bytes_up")
"""What is summed for each node of a deployment."""


class Live:
    """Writes what is seen of a run, and stops it when asked to.

    Args:
        directory: The run directory; nothing is written before its first record.
        checkpoints: The checkpoints of the run, by which it stops.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        directory: RunDirectory,
        checkpoints: Checkpoints,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._checkpoints, self._clock = directory, checkpoints, clock
        self._written, self._page_due = -math.inf, clock() + PAGE_EVERY
        self._status: dict[str, Any] = {"began": clock()}
        self._nodes: dict[str, dict[str, float]] = {}
        self._last: tuple[str, int, int] | None = None

    def progress(self, now: Progress) -> None:
        """Note the progress of the rounds."""
        self._status |= _noted(now)
        self._write()

    def record(self, record: Record) -> None:
        """Note a record, of a deployment also what it cost and which nodes were heard of."""
        this = record.method, record.seed, record.round
        if this != self._last:  # the points of a sweep share their messages
            for client in (record.network or {}).values():
                node = self._nodes.setdefault(str(client["node"]), dict.fromkeys(COSTS, 0.0))
                for cost in COSTS:
                    node[cost] += client[cost]
                node["seen"] = self._clock()
            for cost in ("seconds", "bytes_down", "bytes_up"):
                if (value := getattr(record, cost)) is not None:
                    self._status[cost] = self._status.get(cost, 0) + value
        self._last = this
        if "label" not in self._status:  # the records of a checkpoint precede all progress
            rounds = self._directory.experiment["rounds"]
            self.progress(Progress(record.label, record.seed, record.round, rounds))
        accuracy = record.test_accuracy
        self._status["test_accuracy"] = accuracy if math.isfinite(accuracy) else None
        self._write(at_once=record.nodes is not None)
        now, path = self._clock(), self._directory.path
        if now >= self._page_due and self._directory.begun:
            with suppress(Exception):  # a page that fails ends no run
                write_report([path], path / "report.html")
            took = self._clock() - now
            self._page_due = now + max(PAGE_EVERY, SPARE * took)

    def _write(self, *, at_once: bool = False) -> None:
        if not self._directory.begun:
            return
        now, path = self._clock(), self._directory.path
        _stop_if_asked(path, self._checkpoints)
        if now - self._written < STATUS_EVERY and not at_once:
            return
        _write_status(path, {**self._status, "updated": now, "nodes": self._nodes})
        self._written = now

    def clean_up(self) -> None:
        """Remove the files of a run that is complete, or of an earlier one."""
        clean_up(self._directory.path)


class StudyLive:
    """Writes how far a study is into its folder, and stops it when asked to.

    Args:
        folder: The study's folder.
        clock: Seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock, self._written = folder, clock, -math.inf
        clean_up(folder)  # of an earlier process

    def progress(self, now: Progress, checkpoints: Checkpoints) -> None:
        """Note the progress over all rounds, and stop the training of `checkpoints` if asked to."""
        _stop_if_asked(self._folder, checkpoints)
        if (time := self._clock()) - self._written >= STATUS_EVERY:
            _write_status(self._folder, {**_noted(now), "updated": time, "nodes": {}})
            self._written = time


def _noted(now: Progress) -> dict[str, Any]:
    known = {"label": now.label, "seed": now.seed, "round": now.round, "rounds": now.rounds}
    loss = None if now.loss is None or not math.isfinite(now.loss) else now.loss
    return known | {"loss": loss, "state": status(now._replace(loss=None))}


def _stop_if_asked(folder: Path, checkpoints: Checkpoints) -> None:
    if (folder / STOP).exists():
        (folder / STOP).unlink(missing_ok=True)
        checkpoints.stopping = checkpoints.stopping or signal.SIGTERM


def _write_status(folder: Path, shown: Mapping[str, Any]) -> None:
    with suppress(OSError):  # a full disk is said by what matters
        write_whole(folder / STATUS, json.dumps(shown).encode() + b"\n")
        write_whole(folder / PROMETHEUS, prometheus(shown).encode())


def clean_up(folder: Path) -> None:
    """Remove the files of what is complete, or of an earlier process."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


GAUGES = {
    "round": "Rounds done.",
    "rounds": "Rounds of the run.",
    "loss": "Training loss at the last evaluation.",
    "test_accuracy": "Test accuracy at the last evaluation.",
    "seconds": "Seconds of rounds and evaluations.",
    "bytes_down": "Bytes that nodes received.",
    "bytes_up": "Bytes that nodes sent.",
    "updated": "Time of this status.",
}
"""The numbers of a status that `metrics.prom` has, and what they are."""


def prometheus(shown: Mapping[str, Any]) -> str:
    r"""A status in the text format of Prometheus.

    >>> node = {"rounds": 3.0, "seconds": 4.5, "bytes_down": 9.0, "bytes_up": 8.0, "seen": 7.0}
    >>> known = {"label": "fedavg", "seed": 0, "round": 3, "loss": None, "nodes": {"a": node}}
    >>> print(prometheus(known))
    # HELP fedprox_round Rounds done.
    # TYPE fedprox_round gauge
    fedprox_round{method="fedavg",seed="0"} 3
    # HELP fedprox_node_seen Time at which a node was last heard of.
    # TYPE fedprox_node_seen gauge
    fedprox_node_seen{node="a"} 7.0
    <BLANKLINE>
    """
    of = f'{{method="{_escaped(shown["label"])}",seed="{shown["seed"]}"}}'
    lines = []
    for name, about in GAUGES.items():
        if shown.get(name) is not None:
            lines += _metric(name, about, [f"fedprox_{name}{of} {shown[name]}"])
    seen = [
        f'fedprox_node_seen{{node="{_escaped(name)}"}} {node["seen"]}'
        for name, node in shown["nodes"].items()
    ]
    if seen:
        lines += _metric("node_seen", "Time at which a node was last heard of.", seen)
    return "\n".join(lines) + "\n"


def _metric(name: str, about: str, samples: list[str]) -> list[str]:
    return [f"# HELP fedprox_{name} {about}", f"# TYPE fedprox_{name} gauge", *samples]


def _escaped(label: str) -> str:
    return printable(label).replace("\\", "\\\\").replace('"', '\\"')


def status_lines(folder: Path, now: float) -> list[str]:
    """What `fedprox status` prints of a run or a study, at a time in seconds since 1970.

    Raises:
        InputError: If its folder is neither's, or its status is damaged.
    """
    complete = any((folder / name).is_file() for name in ("summary.json", STUDY))
    begun = complete or any((folder / name).is_file() for name in ("experiment.toml", STATUS))
    require(begun, f"{folder}: no run directory or study, or not begun yet")
    writer = holder(folder)
    if writer is None and complete:
        return [f"{folder}: complete"]
    state = f"running, {writer}" if writer else "not running, and not complete"
    try:
        known = json.loads((folder / STATUS).read_bytes())
        lines = [f"{folder}: {state}; {_ago(now - known['updated'])} ago:", _of_run(known)]
        for name, node in sorted(known["nodes"].items()):
            lines.append(
                f"node {foreign(name)}: seen {_ago(now - node['seen'])} ago, {node['rounds']:.0f} "
                f"rounds of its clients, {node['seconds']:.1f} s, "
                f"{decimal(int(node['bytes_down']))} down, {decimal(int(node['bytes_up']))} up"
            )
    except FileNotFoundError:
        return [f"{folder}: {state}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{folder / STATUS}: damaged") from None
    return lines


def _of_run(known: Mapping[str, Any]) -> str:
    parts = [f"{foreign(known['label'])}, seed {known['seed']}: round {known['round']}"]
    parts[0] += f" of {known['rounds']}"
    parts += [known["state"]] if known["state"] else []
    parts += [f"loss {known['loss']:.4g}"] if known["loss"] is not None else []
    if known.get("test_accuracy") is not None:
        parts.append(f"test accuracy {100 * known['test_accuracy']:.2f} %")
    if "bytes_up" in known:
        parts.append(f"{known['seconds']:.1f} s")
        parts.append(f"{decimal(known['bytes_down'])} down, {decimal(known['bytes_up'])} up")
    return ", ".join(parts)


def _ago(seconds: float) -> str:
    """A time in words.

    >>> _ago(2.3), _ago(150), _ago(9000)
    ('2 s', '2 min', '2.5 h')
    """
    seconds = max(seconds, 0.0)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def ask_to_stop(folder: Path) -> str:
    """Ask the process that trains in a run directory to stop, and return who it is.

    Raises:
        InputError: If none does.
    """
    writer = holder(folder) if (folder / STATUS).is_file() else None
    if writer is None:
        raise InputError(f"{folder}: no run is under way here")
    write_whole(folder / STOP, b"")
    return writer
