"""What all loggers share: a tool's run for each run of the comparison, and what is logged."""

import hashlib
import importlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedprox.errors import InputError, installing, reason
from fedprox.files.whole import write_whole
from fedprox.loop.following import Callback
from fedprox.report.directory import LOG_ID
from fedprox.report.records import metrics_line
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.user_code import call

OpenRun = tuple[Callable[[dict[str, float], int], None], Callable[[bool], None]]
"""Two functions of a run of a tool that is being written: one writes numbers by name at a step, one
closes it, given whether it has finished."""


def log_each_run(
    name: str, folder: Path, resume: bool, open_run: Callable[[Run, str], OpenRun]
) -> Callback:
    """A callback that writes each run's records to a run of a tool, which has a folder.

    `open_run` opens the tool's run at the first record, given a run without records and an
    identifier. The identifier is the same if the run is resumed or extended.
    """
    planned: dict[tuple[str, int], Run] = {}
    opened: dict[tuple[str, int], OpenRun] = {}
    current: list[tuple[str, int]] = []  # method and seed
    marks: list[str] = []

    def close(finished: bool) -> None:
        while opened:
            _, (_, close_run) = opened.popitem()
            call(name, close_run, finished)

    def start(runs: Sequence[Run]) -> None:
        planned.clear()
        marks.clear()
        planned.update({(run.label, run.seed): run for run in runs})

    def log(record: Record) -> None:
        if not marks:
            marks.append(_mark(folder, resume))
        if current != [(record.method, record.seed)]:  # only sweep points run together
            close(True)
            current[:] = [(record.method, record.seed)]
        key = (record.label, record.seed)
        if key not in opened:
            opened[key] = call(name, open_run, planned[key], _identifier(marks[0], planned[key]))
        log_numbers, _ = opened[key]
        call(name, log_numbers, numbers_of(record), record.round)

    def end(runs: Sequence[Run] | None) -> None:
        close(runs is not None)
        current.clear()

    return Callback(start, log, end)


def load(name: str, *modules: str) -> Any:
    """Import the modules that a logger needs and return the first, or name the extra to install."""
    try:
        first, *_ = [importlib.import_module(module) for module in modules]
    except ImportError as error:
        raise InputError(f"{name}: {reason(error)}: {installing(name)}") from None
    return first


def numbers_of(record: Record) -> dict[str, float]:
    """The finite numbers of a record's line in `metrics.jsonl`, without its seed and its round."""
    return {
        key: value
        for key, value in metrics_line(record).items()
        if isinstance(value, int | float) and key not in ("seed", "round")
    }


def title(run: Run) -> str:
    """The name of a run in a tool."""
    return f"{run.label}, seed {run.seed}"


def hparams_of(run: Run) -> dict[str, Any]:
    """The method, the hyperparameters, the learning rate and the seed of a run."""
    own = {"learning_rate": run.learning_rate, "seed": run.seed}
    return {"method": run.method, **run.hparams, **own}


def parameters_of(run: Run) -> dict[str, Any]:
    """The experiment's settings by their keys, such as "solver.epochs", and the hyperparameters."""
    return flattened(run.experiment) | hparams_of(run)


def flattened(settings: Any, prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their keys.

    >>> flattened({"seed": [0, 1], "method": [{"name": "fedprox", "mu": 0.1}]})
    {'seed': [0, 1], 'method.0.name': 'fedprox', 'method.0.mu': 0.1}
    """
    if isinstance(settings, Sequence) and any(isinstance(each, Mapping) for each in settings):
        settings = {str(i): each for i, each in enumerate(settings)}
    if not isinstance(settings, Mapping):
        return {prefix: settings}
    below = (flattened(value, f"{prefix}.{key}".strip(".")) for key, value in settings.items())
    return {key: value for table in below for key, value in table.items()}


def _mark(folder: Path, resume: bool) -> str:
    """Mark the folder as a logger's by a file with random text, which a resumed run reads again."""
    file = folder / LOG_ID
    if resume and file.is_file():
        return file.read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    text = secrets.token_hex(16)
    write_whole(file, text.encode())
    return text


def _identifier(mark: str, run: Run) -> str:
    """An identifier of a run: no other run has it, in this experiment or in another."""
    settings = {key: value for key, value in run.experiment.items() if key != "rounds"}
    what = [mark, run.label, run.seed, settings]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]
