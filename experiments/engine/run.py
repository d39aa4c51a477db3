"""The runner: an item's experiments, then its figure, its data, its table and its report."""

import csv
import io
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.engine.blocks import COLUMNS, blocks
from experiments.engine.figure import figure
from experiments.engine.growing import grown, searched
from experiments.engine.item import (
    DEVICES,
    MORE_RATES,
    RECORDED,
    SHORT,
    Item,
    Scale,
    Statistics,
    Table,
    expand,
    seconds_of,
)
from experiments.engine.results import document
from experiments.engine.series import Measured, Series
from experiments.engine.speeds import read_by_speed, write_by_speed
from experiments.engine.table import duration, table
from fedprox.errors import InputError, require
from fedprox.experiment import Experiment, Resolved, load_data, parse, resolve, train
from fedprox.federation import Federation
from fedprox.files.whole import locked, write_whole
from fedprox.loop.checkpoint import Checkpoints, remove_folder, stopping_on_signals
from fedprox.loop.following import Callback
from fedprox.report.archive import read_archive
from fedprox.report.directory import RunDirectory, write_clients, write_figure
from fedprox.report.page import write_report
from fedprox.results.record import Record

INTERVAL = 300.0
"""Seconds between an experiment's checkpoints."""


class Step(NamedTuple):
    """An experiment of an item that is about to start.

    Attributes:
        name: Name of the experiment's folder.
        number: Number of the experiment among the item's, from 1.
        of: How many experiments the item has.
    """

    name: str
    number: int
    of: int


def reproduce(
    name: str,
    item: Item,
    scale: Scale,
    out: Path,
    data_dir: Path | None = None,
    on_step: Callable[[Step], None] = lambda _: None,
) -> str:
    """Run an item and write its results.

    Experiments are written to `out/runs/NAME`, ordinary run directories that items share: a
    complete one is not run again, and an interrupted one continues from its last checkpoint. The
    results of the item are written to `out/NAME-OF-ITEM`: `figure.png`, `figure.svg`, `metrics.csv`
    (every measure of every run), `results.json`, `table.md`, `report.html`.

    Args:
        name: The item's name, such as "fedprox/figure-1".
        item: The item.
        scale: How much of the paper's work to do.
        out: The folder for all items.
        data_dir: Folder with data files.
        on_step: Called before each experiment.

    Returns:
        The table.

    Raises:
        InputError: An experiment is refused, data are missing, a folder holds other results, or
            another process is writing to it.
        Stopped: A signal stopped the run.
    """
    with locked(out / name):
        return _reproduce(name, item, scale, out, data_dir, on_step)


def _reproduce(
    name: str,
    item: Item,
    scale: Scale,
    out: Path,
    data_dir: Path | None,
    on_step: Callable[[Step], None],
) -> str:
    begin = time.perf_counter()
    plan = {run: expand(paper, scale) for run, paper in item.runs.items()}
    seconds = {run: seconds_of(paper, scale) for run, paper in item.runs.items()}
    add_devices(name, item, plan, data_dir)
    parsed = {
        run + suffix: parse(f"{name}: {run}{suffix}", one)
        for run, tables in plan.items()
        for suffix, one in tables.items()
    }
    limits = {run + suffix: seconds[run] for run, tables in plan.items() for suffix in tables}
    _check_data(name, parsed, data_dir)
    trained: dict[str, bool] = {}

    def run_one(run: str, one: Table, data_seed: int | None = None) -> list[Series]:
        where, path = f"{name}: {run}", out / "runs" / run
        if run not in parsed:  # a rate that a search has added
            parsed[run] = parse(where, one)
        on_step(Step(run, len(trained) + 1, len(parsed)))
        trained[run] = _train(where, parsed[run], path, data_dir, limits.get(run))
        return read_series(path, data_seed, limits.get(run))

    folder, targets = out / name, {} if scale.name == SHORT else searched(item)
    measured: dict[str, list[Series]] = {
        run: grown(run, tables[""], item.runs[run][MORE_RATES], targets[run], run_one)
        if run in targets
        else [
            series
            for suffix, one in tables.items()
            for series in run_one(run + suffix, one, one["data"]["seed"] if suffix else None)
        ]
        for run, tables in plan.items()
    }
    for other, (experiment, series) in item.others.items():
        with _naming(f"{name}: {other}"):
            measured[other] = [
                one for seed in scale.seeds for one in series(experiment, seed, data_dir)
            ]
    for group, joined in item.joined.items():
        measured[group] = [
            _renamed(one, words) for run, words in joined.items() for one in measured.pop(run)
        ]
    statistics = {
        row.title: np.array([_counts(name, row, seed, data_dir) for seed in scale.seeds])
        for row in item.statistics
    }
    seeds = sorted({one.seed for group in measured.values() for one in group}) or scale.seeds
    took = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}, "
    took += duration(time.perf_counter() - begin)
    reused = len(trained) - sum(trained.values())
    if reused:
        took += f" ({reused} of {len(trained)} experiments were there already)"
    found = blocks(item, scale, measured, statistics)
    text = table(name, item, scale, found, took)
    results = document(name, item, scale, seeds, measured, found, took)
    write_whole(folder / "results.json", results)
    write_whole(folder / "table.md", text.encode())
    if item.panels:
        write_figure(folder, figure(item, measured))
    if measured:
        write_whole(folder / "metrics.csv", _csv(measured))
    if trained:
        # no figure of all runs: an item has its own figure, and there may be many runs
        runs = [out / "runs" / run for run in trained]
        write_report(runs, folder / "report.html", together=False)
    return text


def add_devices(
    name: str, item: Item, plan: Mapping[str, dict[str, Table]], data_dir: Path | None
) -> None:
    """Add the `[population]` of devices that depend on the data to an item's experiments."""
    loaded: dict[str, Federation] = {}
    for run, tables in plan.items():
        devices = item.runs[run].get(DEVICES)
        if devices is None:
            continue
        for suffix, one in tables.items():
            data = json.dumps(one["data"], sort_keys=True)
            if data not in loaded:
                with _naming(f"{name}: {run}{suffix}"):
                    loaded[data], _ = load_data(one["data"], data_dir)
            one["population"] = devices(loaded[data])


def _renamed(series: Series, words: Mapping[str, str]) -> Series:
    """A line of a joined run, whose label has other words for the method."""
    method, *rest = series.label.split()
    return series._replace(label=" ".join([words[method], *rest]))


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Begin the message of an `InputError` with the item and its experiment."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _resolve(where: str, experiment: Experiment, data_dir: Path | None) -> Resolved:
    with _naming(where):
        return resolve(experiment, data_dir)


def _check_data(name: str, parsed: Mapping[str, Experiment], data_dir: Path | None) -> None:
    """Load each data set once before training, so that a missing file is reported at once."""
    loaded = set()
    for run, experiment in parsed.items():
        data = json.dumps(experiment.data | {"seed": 0}, sort_keys=True)
        if data not in loaded:
            loaded.add(data)
            _resolve(f"{name}: {run}", experiment, data_dir)


def _train(
    where: str,
    experiment: Experiment,
    path: Path,
    data_dir: Path | None,
    seconds: float | None = None,
) -> bool:
    """Run an experiment into its run directory; False if that is already complete.

    With `seconds` it ends at the first evaluation after so much of the devices' time.
    """

    def stop(record: Record) -> bool:
        assert record.time is not None
        assert seconds is not None
        return record.time >= seconds

    resolved = _resolve(where, experiment, data_dir)
    directory = RunDirectory(path, resolved.table)
    if directory.complete:
        return False
    with directory:
        if directory.complete:  # by another process, meanwhile
            return False
        checkpoints = Checkpoints(directory.checkpoints, interval=INTERVAL, resume=True)
        with (
            _naming(where),
            stopping_on_signals(checkpoints),
            warnings.catch_warnings(),
        ):
            # warnings on settings and data are of no use: they are the paper's
            warnings.filterwarnings("ignore", category=UserWarning, module=__name__)
            record = Callback(on_record=directory.record)
            runs = train(
                experiment,
                resolved,
                [record],
                checkpoints=checkpoints,
                stop=None if seconds is None else stop,
            )
        write_clients(path, resolved.federation, resolved.model, runs)
        if resolved.population is not None:
            write_by_speed(path, resolved.population)
        directory.finish(runs, resolved.target)
        remove_folder(checkpoints.folder)
    return True


def read_series(
    directory: Path, data_seed: int | None = None, seconds: float | None = None
) -> list[Series]:
    """The runs of a run directory.

    Args:
        directory: The run directory.
        data_seed: Seed of the data if each seed has a directory, which replaces the run's seed.
        seconds: The devices' time that counts; None for all of it.
    """
    found = []
    speeds = {} if seconds is None else read_by_speed(directory)
    for run in read_archive(directory).runs:
        one = Series(
            run.label,
            run.seed if data_seed is None else data_seed,
            np.array([record.round for record in run.history], np.int64),
            {
                key: np.array([_measure(record, key) for record in run.history], np.float64)
                for key in RECORDED
            },
            run.models_a_round,
        )
        if seconds is not None:
            enough = one.diverged or one.values["time"][-1] >= seconds
            require(enough, f"{directory}: its rounds end before {seconds:g} s of devices' time")
            one = one.until(seconds)
            for name, value in speeds[run.label, run.seed].items():
                one.values[name] = np.full(len(one.rounds), value)
        found.append(one)
    return found


def _measure(record: Record, name: str) -> float:
    value = record.hparams.get("mu") if name == "mu" else getattr(record, name)
    return np.nan if value is None else value


def _counts(where: str, row: Statistics, seed: int, data_dir: Path | None) -> NDArray[np.float64]:
    """What a row counts, shape (columns,), of data drawn with a seed."""
    with _naming(where):
        federation, _ = load_data(row.data | {"seed": seed}, data_dir)
    train, test = federation.train.sizes, federation.test.sizes
    sizes = train + test
    counts = {
        "clients": len(sizes),
        "examples": sizes.sum(),
        "mean": sizes.mean(),
        "standard deviation": sizes.std(),
        "training examples": train.sum(),
        "test examples": test.sum(),
    }
    return np.array([counts[column] for column in COLUMNS[len(row.paper)]], np.float64)


def _csv(measured: Measured) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    groups = measured.values()
    keys = list(dict.fromkeys(key for group in groups for series in group for key in series.values))
    writer.writerow(["run", "label", "seed", "round", *keys])
    for run, group in measured.items():
        for series in group:
            missing = np.full(len(series.rounds), np.nan)
            columns = [series.values.get(key, missing) for key in keys]
            for round_, *values in zip(series.rounds, *columns, strict=True):
                shown = ["" if np.isnan(value) else f"{value:.6g}" for value in values]
                writer.writerow([run, series.label, series.seed, round_, *shown])
    return text.getvalue().encode()
