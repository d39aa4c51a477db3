"""Training the cells of a study, each from its checkpoints or from its complete run directory."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.algorithms.base import Algorithm
from fedprox.files.lock import locked
from fedprox.report.directory import CHECKPOINTS, RunDirectory
from fedprox.simulation.loop.callbacks import Callback
from fedprox.simulation.loop.checkpoint import Checkpoints, Stopped
from fedprox.simulation.loop.progress import Progress, Report, showing
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.results.target import Target
from fedprox.simulation.simulate import simulate
from fedprox.studies.grid import Cell, check_budgets
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


class Place(NamedTuple):
    """Where and how cells are trained.

    Attributes:
        out: The folder of their run directories; None for none.
        force: Whether results of other experiments in them are replaced.
        every: Rounds between checkpoints; None for one at the end of each seed.
        guard: What surrounds each training; None for nothing.
    """

    out: Path | None = None
    force: bool = False
    every: int | None = None
    guard: Guard | None = None


def train_cells(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    tuning: Tuning,
    place: Place = Place(),  # noqa: B008 (immutable)
    *,
    progress: bool = True,
) -> tuple[list[Outcome], str]:
    """Tune and train all cells.

    Returns:
        The results of each cell; and how hyperparameters were chosen, in a sentence, empty if no
        method has several.

    Raises:
        InputError: If budgets are unequal, there is nothing to choose by, a setting is invalid, or
            a run directory holds something else.
    """
    budgets = check_budgets(cells)
    tuning.check_budgets(budgets)
    trained, measures = list[int](), dict[str, None]()
    for cell in cells:  # what is wrong with the last one is said before the first is trained
        settings = cell.settings(seeds[0])
        if len(cell.points) > 1:
            name, _ = tuning.measure_for(cell.name, settings["federation"], settings["model"])
            measures[name] = None
        trained.append(settings["rounds"] * _seed_runs(cell, seeds, tuning))
    names = folder_names([cell.levels for cell in cells])
    with ExitStack() as opened:
        if place.out is not None:
            opened.enter_context(locked(place.out))
        report = opened.enter_context(showing(progress))
        whole = _Whole(report, len(cells), sum(trained))
        outcomes = [
            _CellTraining(cell, name, place, whole).outcome(seeds, tuning)
            for cell, name in zip(cells, names, strict=True)
        ]
    return outcomes, tuning.sentence(budgets, list(measures))


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


class _Whole:
    """Progress over all cells: rounds done of all rounds."""

    def __init__(self, report: Report, cells: int, rounds: int) -> None:
        self._report, self._cells, self._rounds = report, cells, rounds
        self._done = self._cell = 0

    @contextmanager
    def cell(self) -> Iterator[None]:
        """The next cell."""
        self._cell += 1
        yield

    @contextmanager
    def training(self, rounds: int, seeds: int) -> Iterator[Report]:
        """A call of `simulate` for some seeds, whose progress is part of the whole."""
        begun: dict[int, int] = {}

        def report(now: Progress) -> None:
            begun[now.seed] = now.round
            label = f"study, cell {self._cell} of {self._cells}"
            done = self._done + sum(begun.values())
            self._report(now._replace(label=label, round=done, rounds=self._rounds))

        yield report
        self._done += rounds * seeds


class _CellTraining(NamedTuple):
    """The training of a cell."""

    cell: Cell
    name: str
    place: Place
    whole: _Whole

    def outcome(self, seeds: Sequence[int], tuning: Tuning) -> Outcome:
        """Tune the cell and train it with all seeds."""
        with self.whole.cell():
            method, points = self.cell.method, self.cell.points
            if len(points) == 1:
                return self._outcome(method, seeds, "", None)
            if tuning.seeds is None:
                tried = self._outcome(method, seeds, "", None)
                label = self._chosen(tried.runs, tuning)
                return tried._replace(runs=[run for run in tried.runs if run.label == label])
            runs = self._outcome(method, tuning.seeds, "@tuning", None).runs
            labels = list(dict.fromkeys(run.label for run in runs))
            point = points[labels.index(self._chosen(runs, tuning))]
            return self._outcome(self._fixed(method, point), seeds, "", point)

    def _chosen(self, runs: Sequence[Run], tuning: Tuning) -> str:
        """The label of the chosen combination."""
        settings = self.cell.settings(runs[0].seed)
        measure, lower = tuning.measure_for(
            self.cell.name, settings["federation"], settings["model"]
        )
        return best_label(runs, measure, lower=lower)

    def _fixed(self, method: Algorithm, point: Mapping[str, float]) -> Algorithm:
        """The method with the chosen combination."""
        hparams = {name: point[name] for name in method.hparams}
        solver = method.solver(self.cell.solver)
        rate = {"learning_rate": point["learning_rate"]} if len(solver.rates) > 1 else {}
        return method._replace(hparams=hparams).with_solver(**rate)

    def _outcome(
        self, method: Algorithm, seeds: Sequence[int], kind: str, point: Mapping[str, float] | None
    ) -> Outcome:
        """The runs of all combinations that a method has, and their folders."""
        groups = [[seed] for seed in seeds] if self.cell.data_per_seed else [list(seeds)]
        runs, folders = list[Run](), list[str]()
        for group in groups:
            of_seed = f"@seed-{group[0]}" if self.cell.data_per_seed else ""
            folders.append(f"{self.name}{kind}{of_seed}")
            runs += self._runs(method, group, folders[-1], point)
        return Outcome(self.cell.levels, runs, len(self.cell.points), folders)

    def _runs(
        self,
        method: Algorithm,
        seeds: Sequence[int],
        name: str,
        point: Mapping[str, float] | None,
    ) -> list[Run]:
        """Train, and write the run directory."""
        settings = self.cell.settings(seeds[0])
        callbacks = settings.pop("callbacks", [])
        with ExitStack() as opened:
            written = checkpoints = None
            if self.place.out is not None:
                folder = self.place.out / name
                checkpoints = Checkpoints(
                    folder / CHECKPOINTS, every=self.place.every, resume=not self.place.force
                )
                written = _Written(folder, seeds, point, opened, force=self.place.force)
                callbacks = [*callbacks, Callback(written.begin, written.record)]
                if self.place.guard is not None:
                    opened.enter_context(self.place.guard(checkpoints))
            report = opened.enter_context(self.whole.training(settings["rounds"], len(seeds)))
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
            if written is not None:
                written.finish(runs, settings.get("target"))
            if checkpoints is not None and checkpoints.stopping:
                raise Stopped(f"after {self.cell.name}", checkpoints.folder, checkpoints.stopping)
        return runs


class _Written:
    """The run directory of a training, which is left as it is if it is complete."""

    def __init__(
        self,
        folder: Path,
        seeds: Sequence[int],
        point: Mapping[str, float] | None,
        opened: ExitStack,
        *,
        force: bool,
    ) -> None:
        self._folder, self._seeds, self._point = folder, seeds, point
        self._opened, self._force = opened, force
        self._directory: RunDirectory | None = None

    def begin(self, runs: Sequence[Run]) -> None:
        """Open the directory, now that the experiment is known."""
        experiment = _of_runs(runs[0].experiment, self._seeds, self._point)
        directory = RunDirectory(
            self._folder, experiment, replace=self._force, extend=not self._force
        )
        if self._force or not directory.complete or directory.extended is not None:
            self._directory = self._opened.enter_context(directory)

    def record(self, record: Record) -> None:
        """Write a record."""
        if self._directory is not None:
            self._directory.record(record)

    def finish(self, runs: Sequence[Run], target: Target | None) -> None:
        """Write the results."""
        if self._directory is not None:
            self._directory.finish(runs, target)


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
