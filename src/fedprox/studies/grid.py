"""The cells of a study: each method at each combination of levels, with its own settings."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fedprox.algorithms.base import Algorithm
from fedprox.errors import InputError, require, shown
from fedprox.federation import Federation
from fedprox.loop.simulate import simulate
from fedprox.model import Model
from fedprox.protocol.method import sweep_points
from fedprox.protocol.protocol import OBJECTS
from fedprox.solver import Solver
from fedprox.user_code import call

Arguments = dict[str, Any]
"""Arguments of `simulate`."""

DATA, METHOD = "data", "method"
"""The factors that every study may have."""

RESERVED = (METHOD, "seed", "label")
"""Names that are no factors of a user's own, since the columns of a study have them."""

_OF_THE_STUDY = ("methods", "seed", "checkpoints", "callbacks", "on_progress", "progress")
SETTINGS = [name for name in inspect.signature(simulate).parameters if name not in _OF_THE_STUDY]
"""The arguments of `simulate` that a study may set."""


class Cell(NamedTuple):
    """One method at one combination of levels, for all seeds.

    Attributes:
        levels: The level of each factor by its name, the method's last.
        method: The method, whose hyperparameters may have several values to try.
        solver: Its solver, before the method's own settings.
        settings: (seed of the run) -> the other arguments of `simulate`.
        data_per_seed: Whether the data depend on the seed.
    """

    levels: dict[str, str]
    method: Algorithm
    solver: Solver
    settings: Callable[[int], Arguments]
    data_per_seed: bool = False

    @property
    def name(self) -> str:
        """The levels as text."""
        return ", ".join(self.levels.values())

    @property
    def points(self) -> list[dict[str, float]]:
        """The combinations of hyperparameters that the method tries."""
        return sweep_points(self.method, self.method.solver(self.solver))


def cells_of(
    methods: object, data: object, vary: Mapping[str, Any], common: Arguments
) -> list[Cell]:
    """The cells of a study, data sets outermost and methods innermost; see `fedprox.study`."""
    require(isinstance(vary, Mapping), f"vary = {shown(vary)}; it must be a dict of factors")
    if isinstance(methods, Algorithm):
        methods = [methods]
    if isinstance(methods, Sequence) and all(isinstance(each, Algorithm) for each in methods):
        names = [" ".join(filter(None, (each.name, each.variant))) for each in methods]
        for name in names:
            require(
                names.count(name) == 1, f"methods: several are called {name!r}; name them by a dict"
            )
        methods = dict(zip(names, methods, strict=True))
    factors: dict[str, object] = {DATA: data} if isinstance(data, Mapping) else {}
    for factor, levels in vary.items():
        require(
            factor not in (*RESERVED, *factors),
            f"vary: {factor!r} is a column of every study; give the factor another name",
        )
        factors[factor] = levels
    factors[METHOD] = methods
    by_level = {factor: _levels(factor, levels) for factor, levels in factors.items()}
    if DATA not in by_level:
        common = common | _settings(DATA, data)
    return [
        _cell(dict(zip(by_level, levels, strict=True)), by_level, common)
        for levels in itertools.product(*by_level.values())
    ]


def _levels(factor: str, levels: object) -> dict[str, Arguments]:
    """The settings of each level of a factor."""
    where = {DATA: "data", METHOD: "methods"}.get(factor, f"vary[{factor!r}]")
    require(
        isinstance(levels, Mapping) and levels,
        f"{where} = {shown(levels)}; it must be a dict from names to settings",
    )
    assert isinstance(levels, Mapping)
    for name in (factor, *levels):
        require(
            isinstance(name, str) and name.strip() and name.isprintable(),
            f"{where}: {shown(name)} is no name; it must be a text on one line",
        )
    return {name: _settings(f"{where}[{name!r}]", value) for name, value in levels.items()}


def _settings(where: str, value: object) -> Arguments:
    """The arguments of `simulate` that a level stands for."""
    if isinstance(value, Mapping):
        known = [*SETTINGS, METHOD]
        for key in value:
            require(key in known, f"{where}: unknown setting {key!r}; allowed: {', '.join(known)}")
        settings = dict(value)
    elif isinstance(value, Algorithm):
        settings = {METHOD: value}
    else:
        kinds = [name for name, kind in OBJECTS.items() if isinstance(value, kind)]
        of_data = where.startswith(DATA) and callable(value)
        require(
            kinds or of_data,
            f"{where} = {shown(value)}; it must be a dict of settings, or one that its type tells, "
            "such as fedprox.Systems(stragglers=0.5)",
        )
        settings = {kinds[0] if kinds else "federation": value}
    federation = settings.get("federation")
    if callable(federation) and not isinstance(federation, Federation):
        # once for each seed, however many cells have these data
        made = lru_cache(None)(
            lambda seed: call(f"{where}, a function of a seed", federation, seed)
        )
        settings["federation"] = made
    return settings


def _cell(levels: dict[str, str], by_level: Mapping[str, Any], common: Arguments) -> Cell:
    """The cell of a combination of levels; later factors replace the settings of earlier ones."""
    merged = dict(common)
    for factor, level in levels.items():
        merged |= by_level[factor][level]
    name = ", ".join(levels.values())
    method, solver = merged.pop(METHOD, None), merged.get("solver")
    require(
        isinstance(method, Algorithm),
        f"methods[{levels[METHOD]!r}]: {shown(method)} is no method; it must be an algorithm, such "
        "as fedprox.fedavg(), or a dict of settings with one as 'method'",
    )
    for needed in ("federation", "model", "solver", "cohort", "rounds"):
        require(needed in merged, f"{name}: no {needed}; give it to the study, or to its levels")
    if not isinstance(solver, Solver):
        raise InputError(f"{name}: solver = {shown(solver)}; it must be a fedprox.Solver")
    made = not isinstance(merged["federation"], Federation)

    def settings(seed: int) -> Arguments:
        found = dict(merged)
        if made:
            found["federation"] = merged["federation"](seed)
        require(
            isinstance(found["federation"], Federation),
            f"{name}: data = {shown(found['federation'])}; it must be a fedprox.Federation",
        )
        if not isinstance(found["model"], Model):
            require(
                callable(found["model"]),
                f"{name}: model = {shown(found['model'])}; it must be a fedprox.Model, or a "
                "function of the federation that makes one",
            )
            found["model"] = call(f"{name}: model", found["model"], found["federation"])
        return found

    require(made or isinstance(merged["federation"], Federation), f"{name}: data are no federation")
    return Cell(levels, method, solver, settings, data_per_seed=made)
