"""Training the cells of a study, each from its checkpoints or from its complete run directory."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.algorithms.base import Algorithm
from fedprox.errors import InputError
from fedprox.files.lock import locked
from fedprox.loop.checkpoint import Checkpoints, Stopped
from fedprox.loop.following import Callback, Progress, Report, showing
from fedprox.loop.simulate import prepare, simulate
from fedprox.report.compare import FactorLevels
from fedprox.report.directory import CHECKPOINTS, RunDirectory
from fedprox.report.live import StatusWriter, clean_up, noted
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.studies.grid import METHOD, Cell, Settings, check_budgets
from fedprox.studies.tuning import Tuning, best_label

Guard = Callable[[Checkpoints], AbstractContextManager[None]]
"""What surrounds each training: how it answers signals."""


class Outcome(NamedTuple):
    """The results of a cell.

    Attributes:
        levels: The level of each factor by its name, the method's last.
        runs: One run for each seed, with the chosen hyperparameters.
        tried: How many combinations of hyperparameters were tried.
        folders: Names of the run directories in which the runs are.
    """

    levels: Mapping[str, str]
    runs: list[Run]
    tried: int
    folders: list[str]

    @property
    def method(self) -> str:
        """The method's name."""
        return self.levels[METHOD]

    @property
    def others(self) -> FactorLevels:
        """The levels of the other factors."""
        return tuple((factor, level) for factor, level in self.levels.items() if factor != METHOD)


class Place(NamedTuple):
    """Where and how cells are trained.

    Attributes:
        out: The folder of their run directories; None for none.
        force: Whether results of other experiments in them are replaced; None for a caller that
            has no option for it.
        every: Rounds between checkpoints; None for one at the end of each seed.
        guard: What surrounds each training; None for nothing.
    """

    out: Path | None = None
    force: bool | None = None
    every: int | None = None
    guard: Guard | None = None


def train_cells(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    tuning: Tuning,
    check: Callable[[Cell, Settings], None],
    place: Place = Place(),  # noqa: B008 (immutable)
    *,
    more: Sequence[int] = (),
    progress: bool = True,
) -> tuple[list[Outcome], str]:
    """Tune and train all cells, and say in a sentence how hyperparameters were chosen.

    The sentence is empty if no method has several. Hyperparameters are chosen over `seeds`, unless
    `tuning` has its own; with `more` only what was chosen is trained. `check` is called with each
    cell and its settings before anything is trained.
    """
    budgets = check_budgets(cells)
    tuning.check_budgets(budgets)
    trained, measures = list[int](), dict[str, None]()
    for cell in cells:  # what is wrong with the last one is said before the first is trained
        settings = cell.settings(seeds[0])
        check(cell, settings)
        _prepare(cell, settings, [*seeds, *(tuning.seeds or ()), *more])
        if len(cell.points) > 1:
            name, _ = tuning.measure_for(cell.name, settings["federation"], settings["model"])
            measures[name] = None
        trained.append(settings["rounds"] * (_seed_runs(cell, seeds, tuning) + len(more)))
    names = folder_names([cell.levels for cell in cells])
    with ExitStack() as opened:
        if place.out is not None:
            opened.enter_context(locked(place.out))
        report = opened.enter_context(showing(progress))
        trainer = _Trainer(place, report, len(cells), sum(trained))
        try:
            outcomes = [
                trainer.outcome(cell, name, seeds, more, tuning)
                for cell, name in zip(cells, names, strict=True)
            ]
        finally:
            trainer.end()
        if place.out is not None:
            clean_up(place.out)
    return outcomes, tuning.sentence(budgets, list(measures), seeds if more else ())


def _prepare(cell: Cell, settings: Settings, seeds: Sequence[int]) -> None:
    """Raise `InputError` if a cell cannot be trained."""
    settings = {name: value for name, value in settings.items() if name != "callbacks"}
    known = seeds[:1] if cell.data_per_seed else list(dict.fromkeys(seeds))
    try:
        prepare(cell.method, seed=known, **settings)
    except InputError as error:
        raise InputError(f"{cell.name}: {error}") from error


def folder_names(levels: Sequence[Mapping[str, str]]) -> list[str]:
    """A folder's name for each cell, in which a digest tells levels apart that look alike.

    >>> folder_names([{"stragglers": "0 %", "method": "a"}, {"stragglers": "90 %", "method": "a"}])
    ['0-a', '90-a']
    """
    plain = [
        "-".join(re.sub(r"[^\w.=+]+", "-", level).strip("-.") for level in each.values())[:100]
        for each in levels
    ]
    digests = [hashlib.sha256(json.dumps(dict(each)).encode()).hexdigest()[:12] for each in levels]
    return [
        name
        if plain.count(name) == 1 and name.isascii() and name.strip("-")
        else f"{name}-{digest}"
        for name, digest in zip(plain, digests, strict=True)
    ]


def _seed_runs(cell: Cell, seeds: Sequence[int], tuning: Tuning) -> int:
    """How many seeds are trained for a cell, those of its tuning included."""
    tuned_apart = len(cell.points) > 1 and tuning.seeds is not None
    return len(seeds) + (len(tuning.seeds or ()) if tuned_apart else 0)


class _Trainer:
    """Trains cell after cell, and reports the progress over the rounds of all."""

    def __init__(self, place: Place, report: Report, cells: int, rounds: int) -> None:
        self._place, self._report, self._cells, self._rounds = place, report, cells, rounds
        self._cell = self._done = 0
        self._status = None if place.out is None else StatusWriter(place.out)

    def outcome(
        self, cell: Cell, name: str, seeds: Sequence[int], more: Sequence[int], tuning: Tuning
    ) -> Outcome:
        """Tune a cell and train it with all seeds."""
        self._cell += 1
        method, points, point = cell.method, cell.points, None
        if len(points) > 1:
            where = name if tuning.seeds is None else f"{name}@tuning"
            runs, folders = self._train_seeds(cell, method, tuning.seeds or seeds, where)
            labels, label = list(dict.fromkeys(r.label for r in runs)), _chosen(cell, runs, tuning)
            point = points[labels.index(label)]
            method = _fixed(cell, point)
            runs = [run for run in runs if run.label == label]
        if point is None or tuning.seeds is not None:
            runs, folders = self._train_seeds(cell, method, seeds, name, point)
        further, others = self._train_seeds(cell, method, more, name, point, apart=True)
        runs += [relabelled(run, runs[0].label) for run in further]
        return Outcome(cell.levels, runs, len(points), folders + others)

    def end(self) -> None:
        """Write the last status of a study that is stopped or fails."""
        if self._status is not None:
            self._status.end()

    def _train_seeds(
        self,
        cell: Cell,
        method: Algorithm,
        seeds: Sequence[int],
        name: str,
        point: Mapping[str, float] | None = None,
        *,
        apart: bool = False,
    ) -> tuple[list[Run], list[str]]:
        """The runs of all seeds, in one call unless data depend on the seed, and their folders."""
        if not (apart or cell.data_per_seed):
            return self._train(cell, method, seeds, name, point), [name]
        names = {seed: f"{name}@seed-{seed}" for seed in seeds}
        trained = [self._train(cell, method, [s], n, point) for s, n in names.items()]
        return [run for runs in trained for run in runs], list(names.values())

    def _train(
        self,
        cell: Cell,
        method: Algorithm,
        seeds: Sequence[int],
        name: str,
        point: Mapping[str, float] | None,
    ) -> list[Run]:
        """Train, and write the run directory unless it is complete."""
        settings, place, out = cell.settings(seeds[0]), self._place, self._place.out
        rounds: dict[int, int] = {}
        written: list[RunDirectory] = []
        checkpoints, callbacks = None, settings.pop("callbacks", [])

        def report(now: Progress) -> None:
            rounds[now.seed] = now.round
            label = f"study, cell {self._cell} of {self._cells}"
            done = self._done + sum(rounds.values())
            whole = now._replace(label=label, round=done, rounds=self._rounds)
            self._report(whole)
            if self._status is not None and checkpoints is not None:
                self._status.write({**noted(whole), "nodes": {}}, checkpoints)

        with ExitStack() as opened:

            def begin(runs: Sequence[Run]) -> None:
                assert out is not None
                experiment, force = _of_runs(runs[0].experiment, seeds, point), place.force
                folder = RunDirectory(out / name, experiment, replace=force, extend=not force)
                if not folder.done:
                    written.append(opened.enter_context(folder))

            def record(record: Record) -> None:
                for folder in written:
                    folder.record(record)

            if out is not None:
                folder = out / name / CHECKPOINTS
                checkpoints = Checkpoints(folder, every=place.every, resume=not place.force)
                callbacks = [*callbacks, Callback(begin, record)]
                if place.guard is not None:
                    opened.enter_context(place.guard(checkpoints))
            runs = simulate(
                **settings,
                methods=method,
                seed=list(seeds),
                checkpoints=checkpoints,
                callbacks=callbacks,
                on_progress=report,
                progress=False,
            )
            for run in runs:
                run.experiment = _of_runs(run.experiment, seeds, point)
            for each in written:
                each.finish(runs, settings.get("target"), draw=False)  # the study draws its own
        self._done += settings["rounds"] * len(seeds)
        if checkpoints is not None and checkpoints.stopping:
            raise Stopped(f"after {cell.name}", checkpoints.folder, checkpoints.stopping)
        return runs


def relabelled(run: Run, label: str) -> Run:
    """A run with the label of the other seeds: that of one trained alone is shorter."""
    run.label, run.history = label, [replace(record, label=label) for record in run.history]
    return run


def _chosen(cell: Cell, tried: Sequence[Run], tuning: Tuning) -> str:
    """The label of the chosen combination of hyperparameters."""
    settings = cell.settings(tried[0].seed)
    where, model = settings["federation"], settings["model"]
    measure, lower = tuning.measure_for(cell.name, where, model)
    return best_label(tried, measure, lower=lower)


def _fixed(cell: Cell, point: Mapping[str, float]) -> Algorithm:
    """The method of a cell with the chosen combination."""
    method = cell.method
    hparams = {name: point[name] for name in method.hparams}
    several = len(method.solver(cell.solver).rates) > 1
    rate = {"learning_rate": point["learning_rate"]} if several else {}
    return method._replace(hparams=hparams).with_solver(**rate)


def _of_runs(
    experiment: Mapping[str, Any], seeds: Sequence[int], point: Mapping[str, float] | None
) -> dict[str, Any]:
    """The description of some runs, if that of their experiment has more seeds or combinations."""
    (method,) = experiment["method"]
    if point is not None:
        hparams = {name: value for name, value in point.items() if name in method}
        own = method.get("solver", {}) | {"learning_rate": point["learning_rate"]}
        method = method | hparams | ({"solver": own} if _several_rates(experiment, method) else {})
    return {**experiment, "seed": list(seeds), "method": [method]}


def _several_rates(experiment: Mapping[str, Any], method: Mapping[str, Any]) -> bool:
    """Whether a method tries several learning rates."""
    rates = method.get("solver", {}).get("learning_rate", experiment["solver"]["learning_rate"])
    return isinstance(rates, list) and len(rates) > 1
