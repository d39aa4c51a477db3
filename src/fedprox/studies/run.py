"""Tuning and training the cells of a study, from their checkpoints or run directories."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedprox.algorithms.base import Algorithm
from fedprox.errors import InputError, check_fields, require, shown
from fedprox.federation import Federation
from fedprox.files.whole import locked
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Callback, Progress, Report, showing
from fedprox.loop.simulate import prepare, simulate
from fedprox.measures import lower_is_better
from fedprox.model import Model
from fedprox.protocol.protocol import Evaluation, measures_of
from fedprox.report.compare import FactorLevels
from fedprox.report.directory import CHECKPOINTS, RunDirectory
from fedprox.report.live import StatusWriter, clean_up, noted
from fedprox.report.records import without_diverged
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.streams import check_seed
from fedprox.studies.grid import METHOD, Arguments, Cell
from fedprox.studies.search import Search, ranges_of
from fedprox.terminal import Stopped


@dataclass(frozen=True)
class Tuning:
    """How a study chooses each method's hyperparameters among those that it tries.

    A method tries every combination of its hyperparameters and learning rates, separately for each
    data set and setting of the study. The combination with the best mean over seeds of a measure on
    validation rows is chosen. One that diverges with some seed is chosen only if all do.

    Attributes:
        measure: The measure, on validation rows. None means their accuracy, or their loss for a
            model without accuracy.
        seeds: The seeds of the choice; the chosen combination is then trained with the seeds of
            the study. None means these seeds: every combination is trained with all of them.
        equal: Whether a study is refused whose methods try different numbers of combinations.
        search: Candidates between the values that are given, in place of every combination of them.
            The chosen one is then trained anew with the seeds of the study.

    Raises:
        InputError: If the measure is not on validation rows, or a seed is invalid.

    Example:
        >>> Tuning(seeds=[100]).equal
        True
    """

    measure: str | None = None
    seeds: Sequence[int] | None = None
    equal: bool = True
    search: Search | None = None

    def __post_init__(self) -> None:
        check_fields("tuning", self)
        require(
            self.measure is None
            or (isinstance(self.measure, str) and self.measure.startswith("validation_")),
            f"tuning.measure = {shown(self.measure)}; it must be a measure on validation rows, "
            "such as validation_accuracy, since test rows choose nothing",
        )
        if self.seeds is not None:
            check_seeds("tuning.seeds", self.seeds)
            object.__setattr__(self, "seeds", tuple(map(int, self.seeds)))

    def check_budgets(self, budgets: Mapping[str, int]) -> None:
        """Raise `InputError` if methods, by name, try different numbers of combinations."""
        require(
            not self.equal or len(set(budgets.values())) < 2,
            "methods: unequal budgets: "
            + ", ".join(f"{name} tries {count}" for name, count in budgets.items())
            + "; give each as many combinations to try, such as more learning rates with "
            "with_solver(learning_rate=[...]), or set tuning.equal to false, and tables say so",
        )

    def sentence(
        self, budgets: Mapping[str, int], measures: Sequence[str], first: Sequence[int] = ()
    ) -> str:
        """How hyperparameters were chosen; empty if no method tries several combinations.

        `first` are the seeds that a study had when they were chosen, if it has more now.
        """
        if set(budgets.values()) == {1}:
            return ""
        least, *more = sorted(set(budgets.values()))
        tried = f"Each method tried {least} combinations of hyperparameters"
        if more:
            each = ", ".join(f"{name} tried {count}" for name, count in budgets.items())
            tried = f"Budgets are unequal: {each} combinations of hyperparameters"
        tried += f", {self.search.words()}" if self.search else ""
        by = " or ".join(measure.replace("_", " ") for measure in measures)
        seeds = self.seeds or first
        over = f"seed{'s' * (len(seeds) > 1)} {_listed(seeds)}" if seeds else "these seeds"
        return f"{tried}, chosen by the mean {by} over {over}."

    def measure_for(self, where: str, federation: Federation, model: Model) -> tuple[str, bool]:
        """The measure that chooses, and whether smaller values are better.

        Raises:
            InputError: If there are no validation rows, or they do not have the measure.
        """
        known = [m for m in measures_of(model, federation) if m.startswith("validation_")]
        require(
            known,
            f"{where}: no validation rows, on which hyperparameters are chosen; hold some out "
            "(Federation.hold_out, or validation_share in a file), or give each method one value",
        )
        preferred = [m for m in ("validation_accuracy", "validation_loss") if m in known]
        measure = self.measure or preferred[0]
        require(
            measure in known,
            f"tuning.measure = {measure!r}; {where} has {', '.join(known)}",
        )
        return measure, lower_is_better(measure, model.metrics)


def _listed(seeds: Sequence[int]) -> str:
    """Some seeds as text."""
    return ", ".join(map(str, seeds[:5])) + ", ..." * (len(seeds) > 5)


def check_seeds(name: str, seeds: object) -> None:
    """Raise `InputError` unless some seeds are valid and distinct."""
    require(
        isinstance(seeds, Sequence) and not isinstance(seeds, str | bytes) and len(seeds),
        f"{name} = {shown(seeds)}; it must be a list of seeds, such as [0, 1, 2]",
    )
    assert isinstance(seeds, Sequence)
    for seed in seeds:
        check_seed(seed, name)
        require(seeds.count(seed) == 1, f"{name}: {seed} is given more than once")


def best_label(runs: Sequence[Run], measure: str, *, lower: bool) -> str:
    """The label with the best mean of a measure over its runs, on ties the first."""
    means, sign = means_of(runs, measure, lower=lower), 1 if lower else -1
    return min(means, key=lambda label: sign * means[label])


def means_of(runs: Sequence[Run], measure: str, *, lower: bool) -> dict[str, float]:
    """The mean of a measure over the runs of each label; infinitely bad if one has diverged."""
    values: dict[str, list[float]] = {}
    worst = float("inf") if lower else -float("inf")
    for run in runs:
        value = run.model_record.value(measure)
        known = without_diverged([run]) and value == value
        values.setdefault(run.label, []).append(value if known else worst)
    return {label: fmean(each) for label, each in values.items()}


Guard = Callable[[Checkpoints], AbstractContextManager[None]]
"""A context around each training, which decides how it answers signals."""


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
        guard: The context around each training.
    """

    out: Path | None = None
    force: bool | None = None
    every: int | None = None
    guard: Guard = lambda _: nullcontext()


def check_cell(cell: Cell, settings: Arguments, seeds: Sequence[int]) -> None:
    """Raise `InputError` if a cell cannot be trained."""
    settings = {name: value for name, value in settings.items() if name != "callbacks"}
    known = seeds[:1] if cell.data_per_seed else list(dict.fromkeys(seeds))
    try:
        prepare(cell.method, seed=known, **settings)
    except InputError as error:
        raise InputError(f"{cell.name}: {error}") from error


def train_cells(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    more: Sequence[int],
    tuning: Tuning,
    place: Place,
    rounds: int,
    *,
    progress: bool = True,
) -> list[Outcome]:
    """Tune and train all cells, which takes so many rounds; with `more` seeds what was chosen."""
    names = folder_names([cell.levels for cell in cells])
    with ExitStack() as opened:
        if place.out:
            opened.enter_context(locked(place.out))
        report = opened.enter_context(showing(progress))
        trainer = _Trainer(place, report, len(cells), rounds)
        try:
            outcomes = [
                trainer.outcome(cell, name, seeds, more, tuning)
                for cell, name in zip(cells, names, strict=True)
            ]
        finally:
            for status in trainer.statuses:  # the last one, of what is stopped or fails
                status.end()
        if place.out:
            clean_up(place.out)
    return outcomes


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


class _Trainer:
    """Trains cell after cell, and reports the progress over the rounds of all."""

    def __init__(self, place: Place, report: Report, cells: int, rounds: int) -> None:
        self._place, self._report, self._cells, self._rounds = place, report, cells, rounds
        self._cell = self._done = 0
        self._storage: Any = None
        self.statuses = [StatusWriter(place.out)] if place.out else []

    def outcome(
        self, cell: Cell, name: str, seeds: Sequence[int], more: Sequence[int], tuning: Tuning
    ) -> Outcome:
        """Tune a cell and train it with all seeds."""
        self._cell += 1
        method, points, point = cell.method, cell.points, dict[str, float]()
        if len(points) > 1 and tuning.search:
            point = self._searched(cell, name, tuning.seeds or seeds, tuning, tuning.search)
            method = _fixed(cell, point)
        elif len(points) > 1:
            where = f"{name}@tuning" if tuning.seeds else name
            runs, folders = self._train_seeds(cell, method, tuning.seeds or seeds, where, point)
            settings = cell.settings(runs[0].seed)
            of_data = settings["federation"], settings["model"]
            measure, lower = tuning.measure_for(cell.name, *of_data)
            label = best_label(runs, measure, lower=lower)
            point = points[list(dict.fromkeys(run.label for run in runs)).index(label)]
            method = _fixed(cell, point)
            runs = [run for run in runs if run.label == label]
        if not point or tuning.seeds or tuning.search:
            runs, folders = self._train_seeds(cell, method, seeds, name, point)
        further, others = self._train_seeds(cell, method, more, name, point, apart=True)
        runs += [relabelled(run, runs[0].label) for run in further]
        return Outcome(cell.levels, runs, tried(cell, tuning), folders + others)

    def _searched(
        self, cell: Cell, name: str, seeds: Sequence[int], tuning: Tuning, search: Search
    ) -> dict[str, float]:
        """The combination that a search finds best."""
        settings = cell.settings(seeds[0])
        of_data, rounds = (settings["federation"], settings["model"]), settings["rounds"]
        measure, lower = tuning.measure_for(cell.name, *of_data)

        def means(batch: int, until: int, points: Sequence[dict[str, float]]) -> list[float]:
            method, where = _together(cell, points), f"{name}@search-{batch}-{until}"
            runs, _ = self._train_seeds(cell, method, seeds, where, {}, until=until)
            return list(means_of(runs, measure, lower=lower).values())

        self._storage = self._storage or search.storage(self._place.out)
        ranges = ranges_of(cell.method, cell.method.solver(cell.solver))
        return search.best(cell.name, ranges, rounds, self._storage, means, lower=lower)

    def _train_seeds(
        self,
        cell: Cell,
        method: Algorithm,
        seeds: Sequence[int],
        name: str,
        point: Mapping[str, float],
        *,
        apart: bool = False,
        until: int | None = None,
    ) -> tuple[list[Run], list[str]]:
        """The runs of all seeds, in one call unless data depend on the seed, and their folders."""
        groups = {name: seeds}
        if apart or cell.data_per_seed:
            groups = {f"{name}@seed-{seed}": [seed] for seed in seeds}
        trained = [self._train(cell, method, each, n, point, until) for n, each in groups.items()]
        return [run for runs in trained for run in runs], list(groups)

    def _train(
        self,
        cell: Cell,
        method: Algorithm,
        seeds: Sequence[int],
        name: str,
        point: Mapping[str, float],
        until: int | None,
    ) -> list[Run]:
        """Train, and write the run directory unless it is complete.

        Candidates of a search are trained for the rounds `until`, and have checkpoints alone.
        """
        settings, place = cell.settings(seeds[0]), self._place
        callbacks = settings.pop("callbacks", [])
        if until is not None:
            evaluation = settings.get("evaluation", Evaluation())
            every = min(evaluation.every, until)
            settings |= {"rounds": until, "evaluation": replace(evaluation, every=every)}
        rounds: dict[int, int] = {}
        written: list[RunDirectory] = []
        checkpoints: Checkpoints | None = None

        def report(now: Progress) -> None:
            rounds[now.seed] = now.round
            label = f"study, cell {self._cell} of {self._cells}"
            done = self._done + sum(rounds.values())
            whole = now._replace(label=label, round=done, rounds=self._rounds)
            self._report(whole)
            for status in self.statuses:
                assert checkpoints
                status.write({**noted(whole), "nodes": {}}, checkpoints)

        with ExitStack() as opened:
            if place.out:
                folder, force = place.out / name, place.force
                checkpoints = Checkpoints(folder / CHECKPOINTS, every=place.every, resume=not force)

                def begin(runs: Sequence[Run]) -> None:
                    experiment = _of_runs(runs[0].experiment, seeds, point)
                    directory = RunDirectory(folder, experiment, replace=force, extend=not force)
                    if not directory.done:
                        written.append(opened.enter_context(directory))

                def record(record: Record) -> None:
                    for directory in written:
                        directory.record(record)

                if until is None:
                    callbacks = [*callbacks, Callback(begin, record)]
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
            for directory in written:  # the study draws its own figure
                directory.finish(runs, settings.get("target"), draw=False)
        self._done += settings["rounds"] * len(seeds)
        if checkpoints and checkpoints.stopping:
            raise Stopped(f"after {cell.name}", checkpoints.folder, checkpoints.stopping)
        return runs


def relabelled(run: Run, label: str) -> Run:
    """A run with the label of the other seeds: that of one trained alone is shorter."""
    run.label, run.history = label, [replace(record, label=label) for record in run.history]
    return run


def check_budgets(cells: Sequence[Cell], tuning: Tuning) -> dict[str, int]:
    """How many combinations each method tries, the same at all levels of the other factors."""
    budgets: dict[str, int] = {}
    for cell in cells:
        count, method = tried(cell, tuning), cell.levels[METHOD]
        if budgets.setdefault(method, count) != count:
            raise InputError(
                f"methods: {method!r} tries {budgets[method]} combinations at first and {count} at "
                f"{cell.name}; give all levels as many learning rates"
            )
    tuning.check_budgets(budgets)
    return budgets


def tried(cell: Cell, tuning: Tuning) -> int:
    """How many combinations of hyperparameters a cell tries."""
    count = len(cell.points)
    return tuning.search.trials if tuning.search and count > 1 else count


def _together(cell: Cell, points: Sequence[Mapping[str, float]]) -> Algorithm:
    """The method of a cell with several combinations, which are trained in one program."""
    values = {name: tuple(point[name] for point in points) for name in points[0]}
    rates = (
        {"learning_rate": list(values.pop("learning_rate"))} if "learning_rate" in values else {}
    )
    method = cell.method
    return method._replace(hparams={**method.hparams, **values}, paired=True).with_solver(**rates)


def _fixed(cell: Cell, point: Mapping[str, float]) -> Algorithm:
    """The method of a cell with the chosen combination."""
    method = cell.method
    hparams = {name: point.get(name, value) for name, value in method.hparams.items()}
    several = len(method.solver(cell.solver).rates) > 1
    rate = {"learning_rate": point["learning_rate"]} if several else {}
    return method._replace(hparams=hparams).with_solver(**rate)


def _of_runs(
    experiment: Mapping[str, Any], seeds: Sequence[int], point: Mapping[str, float]
) -> dict[str, Any]:
    """The description of some runs, if that of their experiment has more seeds or combinations."""
    (method,) = experiment["method"]
    if point:
        own = method.get("solver", {})
        rates = own.get("learning_rate", experiment["solver"]["learning_rate"])
        method = method | {name: value for name, value in point.items() if name in method}
        if isinstance(rates, list) and len(rates) > 1:
            method["solver"] = own | {"learning_rate": point["learning_rate"]}
    return {**experiment, "seed": list(seeds), "method": [method]}
