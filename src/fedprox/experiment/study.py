"""Studies in experiment files: `[study]` becomes cells, each an experiment of one method."""

import itertools
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.errors import InputError, require
from fedprox.experiment.resolved import (
    described_by,
    limited,
    load_data,
    method_of,
    resolve_with,
    solver_of,
)
from fedprox.experiment.schema import Table, build, checked
from fedprox.experiment.sections import Experiment, StudySection, parse
from fedprox.federation import Federation
from fedprox.results.target import Target
from fedprox.studies.grid import DATA, METHOD, RESERVED, Arguments, Cell
from fedprox.studies.results import Study
from fedprox.studies.run import Place, Tuning
from fedprox.studies.study import run_study

KEPT = 2
"""Federations that are kept in memory: the cells of one data set follow each other."""


class StudyFile(NamedTuple):
    """An experiment file with `[study]`: the levels of each cell, and its experiment."""

    section: StudySection
    tuning: Tuning
    experiments: list[tuple[dict[str, str], Experiment]]

    @property
    def clients_per_round(self) -> int:
        """The largest cohort."""
        return max(each.cohort.clients_per_round for _, each in self.experiments)

    def target(self, study: Study) -> Target | None:
        """The target of the first cell, given the results; None without one."""
        validated = any(run.validated for run in study.runs)
        return self.experiments[0][1].target(validated=validated)


def read_study(where: str, table: Table) -> StudyFile:
    """Read the table of the experiment file `where`, which has a section `[study]`."""
    base = dict(table)
    given = base.pop("study")
    require(isinstance(given, dict), f"{where}: study = {given!r}; write a section [study]")
    try:
        section = checked(StudySection, given, "study")
        factors = _factors(section.vary, base)
        tuning = build(section.tuning) or Tuning()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    experiments = list[tuple[dict[str, str], Experiment]]()
    for levels in itertools.product(*(factor.items() for factor in factors.values())):
        names = dict(zip(factors, (name for name, _ in levels), strict=True))
        merged = base
        for _, changes in levels:
            merged = _changed(merged, changes)
        cell = f"{where}: {', '.join(names.values())}"
        experiment = parse(cell, merged)
        require(len(experiment.method) == 1, f"{cell}: several methods; a level has one")
        seeds = experiments[0][1].seeds if experiments else experiment.seeds
        require(experiment.seeds == seeds, f"{cell}: seed: all levels have the same seeds")
        experiments.append((names, experiment))
    return StudyFile(section, tuning, experiments)


def run_study_file(
    file: StudyFile,
    place: Place,
    *,
    data_dir: Path | None = None,
    devices: int | None = None,
    progress: bool = True,
) -> Study:
    """Run a study that a file describes."""
    section, seeds = file.section, file.experiments[0][1].seeds
    made = len({*seeds, *(file.tuning.seeds or ())}) if section.data_per_seed else 0

    @lru_cache(KEPT + made)
    def load(data: str, rows: int | None, share: float | None) -> tuple[Federation, Table]:
        federation, shown = load_data(json.loads(data), data_dir)
        return limited(federation, rows, share), shown

    cells = [
        _cell(names, experiment, section, load, data_dir, devices)
        for names, experiment in file.experiments
    ]
    tuning, measure = file.tuning, section.measure
    return run_study(cells, seeds, tuning, measure, section.against, place, progress=progress)


def _factors(vary: Mapping[str, Any], base: Table) -> dict[str, dict[str, Table]]:
    """The levels of each factor by their names, data outermost and methods innermost."""
    factors: dict[str, dict[str, Table]] = {}
    for name, levels in vary.items():
        where = f"study.vary.{name}"
        require(
            name == METHOD or name not in RESERVED,
            f"{where}: {name!r} is a column of every study; give the factor another name",
        )
        require(
            isinstance(levels, dict) and levels,
            f"{where} = {levels!r}; it must be a table from names to changes",
        )
        for level, changes in levels.items():
            require(
                isinstance(changes, dict) and level.strip() and level.isprintable(),
                f"{where}.{level} = {changes!r}; it must be a table of changes under a name",
            )
        factors[name] = levels
    if METHOD not in factors:
        methods = base.get(METHOD, [])
        methods = methods if isinstance(methods, list) else [methods]
        names = [str(each.get("name")) if isinstance(each, dict) else str(each) for each in methods]
        for name in names:
            require(
                names.count(name) == 1,
                f"method: {name!r} is given twice; name the methods in [study.vary.method]",
            )
        require(names, "the section [[method]] is missing")
        factors[METHOD] = {n: {METHOD: each} for n, each in zip(names, methods, strict=True)}
    order = sorted(factors, key=lambda name: (name == METHOD) - (name == DATA))
    return {name: factors[name] for name in order}


def _changed(table: Table, changes: Table) -> Table:
    """A table with changes: sections are changed key by key, those with a name are replaced."""
    changed = dict(table)
    for key, value in changes.items():
        before = changed.get(key)
        if key == METHOD and isinstance(value, dict):
            changed[key] = [value]
        elif isinstance(before, dict) and isinstance(value, dict) and "name" not in value:
            changed[key] = _changed(before, value)
        else:
            changed[key] = value
    return changed


def _cell(
    levels: dict[str, str],
    experiment: Experiment,
    section: StudySection,
    load: Any,
    data_dir: Path | None,
    devices: int | None,
) -> Cell:
    """The cell of an experiment."""
    solver, _ = solver_of(experiment.solver)
    method, _ = method_of(experiment.method[0], experiment.solver, solver, METHOD)

    def settings(seed: int) -> Arguments:
        data = experiment.data | ({"seed": seed} if section.data_per_seed else {})

        def loaded() -> tuple[Federation, Table]:
            key = json.dumps(data, sort_keys=True)
            return load(key, experiment.client_rows, experiment.validation_share)

        resolved = resolve_with(experiment, loaded, data_dir=data_dir)
        for unused in ("deployment", "study"):
            resolved.table.pop(unused, None)
        return resolved.settings | {
            "devices": devices,
            "callbacks": [described_by(resolved)],
        }

    return Cell(levels, method, solver, settings, data_per_seed=section.data_per_seed)
