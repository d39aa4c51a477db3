"""The objects that an experiment file describes, and training with them."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.algorithms import ALGORITHMS, Algorithm
from fedprox.algorithms.server import RULES, Rule
from fedprox.datasets import DATASETS
from fedprox.datasets.skewed import STRENGTHS, skewed_features
from fedprox.datasets.sources import data_folder, path_candidates
from fedprox.datasets.table import laid_out
from fedprox.errors import InputError, require, require_share, require_whole, shown
from fedprox.experiment.schema import (
    SCALES,
    SCHEDULES,
    Section,
    Table,
    build,
    checked,
    named,
    optimizer_keys,
    with_optimizers,
)
from fedprox.experiment.sections import (
    ARGUMENTS,
    DEPLOYED,
    Experiment,
    LoraSection,
    SkewSection,
    SolverSection,
    TopLevelKeys,
)
from fedprox.federation import Federation
from fedprox.loop.following import Callback
from fedprox.loop.simulate import simulate
from fedprox.losses import LOSSES
from fedprox.model import Model, Params, with_loss
from fedprox.model.variants import freeze, lora, mixed_precision
from fedprox.models import MODELS
from fedprox.parts.population import Population, read_population
from fedprox.protocol.protocol import Protocol, measures_of
from fedprox.report.saved import load_model
from fedprox.results.run import Run
from fedprox.solver import Solver
from fedprox.streams import check_seed
from fedprox.table_layout import Layout
from fedprox.user_code import call, import_function


class Resolved(NamedTuple):
    """The objects that an experiment describes.

    Attributes:
        methods: The methods to compare.
        table: The experiment as TOML would hold it, with every default.
        settings: The other arguments of `fedprox.simulate` that it sets, but seeds; each is an
            attribute, too.
    """

    methods: list[Algorithm]
    table: Table
    settings: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name not in self.settings:
            raise AttributeError(name)
        return self.settings[name]


def train(
    experiment: Experiment,
    resolved: Resolved,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> list[Run]:
    """Run a resolved experiment, with further arguments of `fedprox.simulate`."""
    return simulate(
        **resolved.settings,
        methods=resolved.methods,
        seed=experiment.seed,
        callbacks=[described_by(resolved), *callbacks],
        **options,
    )


def described_by(resolved: Resolved) -> Callback:
    """A callback that sets `Run.experiment` to the experiment, for those after it and the user."""

    def describe(runs: Sequence[Run] | None) -> None:
        for run in runs or ():
            run.experiment = resolved.table

    return Callback(on_start=describe, on_end=describe)


def resolve(experiment: Experiment, data_dir: Path | None = None) -> Resolved:
    """Load the data and build the objects that an experiment names."""
    experiment.target()  # raises before data are loaded
    if experiment.validation_share is not None:
        require_share("validation_share", experiment.validation_share)

    def load() -> tuple[Federation, Table]:
        federation, table = load_data(experiment.data, data_dir)
        return limited(federation, experiment.client_rows, experiment.validation_share), table

    resolved = resolve_with(experiment, load, data_dir=data_dir)
    if "deployment" not in experiment.model_fields_set:
        del resolved.table["deployment"]  # a simulation does not use it
    return resolved


class Described(NamedTuple):
    """The part of an experiment that is known before its data.

    Attributes:
        solver: The local solver.
        methods: The methods to compare.
        parts: The objects of the sections in `ARGUMENTS`, by name.
        make_model: (a federation) -> the model, of which all parameters are trained.
        table: The experiment as TOML would hold it, with every default but those of its data.
    """

    solver: Solver
    methods: list[Algorithm]
    parts: dict[str, Any]
    make_model: Callable[[Federation], Model]
    table: Table


def describe(experiment: Experiment, data_dir: Path | None = None) -> Described:
    """Build the objects that an experiment names and that need no data."""
    solver, solver_table = solver_of(experiment.solver)
    parts = {name: _part(name, getattr(experiment, name), data_dir) for name in ARGUMENTS}
    methods = [
        method_of(table, experiment.solver, solver, f"method.{i}")
        for i, table in enumerate(experiment.method)
    ]
    for key in BASED:
        require(
            key not in experiment.model or experiment.initial is not None,
            f"model.{key}: it needs initial, from which the frozen values come",
        )
    make_model, model_table = _model(experiment.model)
    table = experiment.model_dump(exclude_none=True)
    table |= {
        "model": model_table | _based_table(experiment.model),
        "method": [each for _, each in methods],
    }
    table["solver"] |= solver_table
    return Described(solver, [method for method, _ in methods], parts, make_model, table)


def resolve_with(
    experiment: Experiment,
    load: Callable[[], tuple[Federation, Table]],
    *,
    data_dir: Path | None = None,
) -> Resolved:
    """Build the objects that an experiment names, on data from elsewhere.

    `load` is called after all other sections but the model's have been checked, and returns the
    federation and its `[data]` section. Initial parameters may be in the data folder.
    """
    solver, methods, parts, make_model, table = describe(experiment, data_dir)
    federation, table["data"] = load()
    if parts["evaluation"].of(federation).clients is None:
        table["evaluation"].pop("clients", None)
    model = make_model(federation)
    initial = _initial(experiment.initial, model, data_dir)
    if initial is not None and any(key in experiment.model for key in BASED):
        model, initial = based(experiment.model, model, initial), None
    known = measures_of(model, federation)
    selection = parts["selection"] = parts["selection"].among(known)
    if selection.measure is not None:
        table["selection"]["measure"] = selection.measure
    target = experiment.target(validated=bool(federation.validation))
    if target is not None:
        target = target.among(known, model.metrics)
        if target.key != "target_metric":  # accuracies and losses have their own keys
            table.pop("target_metric", None)
        table[target.key] = target.setting
    plain = {name: getattr(experiment, name) for name in PLAIN}
    settings = {"federation": federation, "model": model, "solver": solver, "initial": initial}
    settings |= {**plain, **parts, "target": target}
    return Resolved(methods, table, settings)


PLAIN = TopLevelKeys.model_fields.keys() & {each.name for each in fields(Protocol)} - {"initial"}
"""The top-level keys that are arguments of `fedprox.simulate` as they are."""


def limited(
    federation: Federation, client_rows: int | None, validation_share: float | None
) -> Federation:
    """A federation with at most so many rows a client, some of them held out for validation."""
    if client_rows is not None:
        require_whole("client_rows", client_rows)
        # not the seed with which evaluations choose among these rows
        federation = federation.sample(client_rows, seed=1)
    if validation_share is not None:
        try:
            federation = federation.hold_out(validation_share)
        except InputError as error:
            raise InputError(f"validation_share: {error}") from None
    return federation


def _part(name: str, section: Section | None, data_dir: Path | None) -> Any:
    """The object that a section describes; None for a section that is left out."""
    if section is None:
        return None
    settings = {key: build(value) for key, value in section}
    if name == "population":
        return _population(settings, data_dir)
    if settings.get("straggler_epochs") is not None:
        name = settings["straggler_epochs"]
        settings["straggler_epochs"] = import_function("systems.straggler_epochs", name, None)()
    return type(section).makes(**settings)


def _population(settings: Table, data_dir: Path | None) -> Population:
    """The population of a `[population]` section, from its file if it names one."""
    file, period = settings.pop("file"), settings.pop("period")
    population = Population(**settings)
    require(
        file is not None or period is None,
        f"population.period = {period}; it is that of the times of a file: give population.file",
    )
    if file is None:
        return population
    path = existing("population.file", file, data_dir)
    return read_population(path, population, period=period)


def _initial(section: str | Section | None, model: Model, data_dir: Path | None) -> Params | None:
    """The parameters that `initial` names, with paths relative to here or to the data folder."""
    if section is None:
        return None
    settings = {"path": section} if isinstance(section, str) else dict(section)
    path = existing("initial", settings.pop("path"), data_dir)
    return load_model(path, **settings, model=model)


def existing(key: str, name: str, data_dir: Path | None) -> Path:
    """The file that a key names, relative to here or to the data folder."""
    candidates = path_candidates(name, data_dir)
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        raise InputError(f"{key}: no {' and no '.join(map(str, candidates))}")
    return path


def load_data(data: Table, data_dir: Path | None = None) -> tuple[Federation, Table]:
    """The federation that a `[data]` section names, and the section with every default."""
    require(
        data.get("name") != DEPLOYED,
        f"data.name = {DEPLOYED!r}: the data are on the nodes of a deployment; fedprox deploy "
        "trains on them",
    )
    own = {key: value for key, value in data.items() if key != "skew"}
    load, table = _data_set(own)
    if "seed" in table:
        check_seed(table["seed"], "data.seed")  # not `seed`, the seed of runs
    data_folder(data_dir)  # must exist, even if the data need no files
    takes_folder = "data_dir" in inspect.signature(load).parameters
    skew: dict[str, Any] = {}
    if "skew" in data:
        given = data["skew"]
        require(isinstance(given, dict), f"data.skew = {shown(given)}; it must be a table")
        skew = checked(SkewSection, given, "data.skew").model_dump()
        if skew["strength"] is None:
            skew["strength"] = STRENGTHS[skew["kind"]]
        table |= {"skew": skew}
    federation: Federation = load(data_dir=data_dir) if takes_folder else load()
    if skew:
        with placed("data.skew"):
            federation = skewed_features(federation, **skew, seed=table.get("seed", 0))
    return federation, table


def _is_table(data: Table) -> bool:
    """Whether a `[data]` section is of a table of the user's, which needs no name."""
    return data.get("name", "table" if "table" in data else None) == "table"


def _data_set(data: Table) -> tuple[functools.partial[Any], Table]:
    """The function of a `[data]` section with its options, and the section with every default."""
    own = {"name": "table"} | data if _is_table(data) else data
    load, table = named(own, DATASETS, "data", Federation)
    assert isinstance(load, functools.partial)
    return load, table


def waiting_table(data: Table, data_dir: Path | None = None) -> Layout | None:
    """The table of a `[data]` section if the rows of a whole federation standardize it.

    None for other data, which `load_data` loads.
    """
    if not _is_table(data):
        return None
    load, shown = _data_set(data)
    if shown["standardize"] != "federation":
        return None
    layout = laid_out(**load.keywords, data_dir=data_dir)
    return layout if layout.columns.numeric else None


def model_of(section: Table, federation: Federation) -> Model:
    """The whole model that a `[model]` section names, for the data of a federation."""
    make_model, _ = _model(section)
    return make_model(federation)


def _model(section: Table) -> tuple[Callable[[Federation], Model], Table]:
    """(a federation) -> the whole model of a `[model]` section, which has every default."""
    mixed, besides = section.get("mixed_precision", False), (*BASED, "loss", "mixed_precision")
    require(
        isinstance(mixed, bool),
        f"model.mixed_precision = {shown(mixed)}; it must be true or false",
    )
    keys = {key: value for key, value in section.items() if key not in besides}
    make_model, table = named(keys, MODELS, "model", Model)
    changes: list[Callable[[Model], Model]] = []
    if "loss" in section:
        given = section["loss"]
        require(isinstance(given, dict), f"model.loss = {shown(given)}; it must be a table")
        make_loss, loss_table = named(given, LOSSES, "model.loss", None)
        loss = make_loss()
        changes.append(lambda model: with_loss(model, loss))
        table |= {"loss": loss_table}
    if mixed:
        changes.append(mixed_precision)
        table |= {"mixed_precision": True}

    def make(federation: Federation) -> Model:
        model: Model = make_model(federation)
        for change in changes:
            model = change(model)
        return model

    return make, table


BASED = ("frozen", "lora")
"""The keys of `[model]` that freeze values of given parameters."""


def based(section: Table, model: Model, params: Params) -> Model:
    """The model of which a `[model]` section trains a part, with the other values frozen."""
    table = _based_table(section)
    if "frozen" in table:
        return freeze(model, params, table["frozen"])
    return lora(model, params, **dict(checked(LoraSection, table["lora"], "model.lora")))


def _based_table(section: Table) -> Table:
    """The keys in `BASED` of a `[model]` section, with every default."""
    frozen, adapters = (section.get(key) for key in BASED)
    require(frozen is None or adapters is None, "model: lora freezes all else; leave frozen out")
    if frozen is not None:
        return {"frozen": frozen}
    if adapters is None:
        return {}
    require(isinstance(adapters, dict), f"model.lora = {shown(adapters)}; it must be a table")
    settings = checked(LoraSection, adapters, "model.lora")
    return {
        "lora": {key: list(each) if isinstance(each, tuple) else each for key, each in settings}
    }


def solver_of(section: Section) -> tuple[Solver, Table]:
    """The solver of a `[solver]` section, and its schedule with every default."""
    settings, table = _solver(section.model_dump(), "solver")
    return Solver(**settings), table


def method_of(
    table: Mapping[str, Any], common: Section, solver: Solver, where: str
) -> tuple[Algorithm, Table]:
    """The algorithm that a `[[method]]` names, and the section with every default."""
    own = table.get("solver", {})
    others = {key: value for key, value in table.items() if key != "solver"}
    algorithm, shown = method_named(others, where)
    where = f"{where}.solver"
    require(isinstance(own, dict), f"{where} = {own!r}; it must be a table")
    if own:
        whole = checked(SolverSection, common.model_dump(exclude_none=True) | own, where)
        settings, own_table = _solver(whole.model_dump(include=set(own)), where)
        algorithm = algorithm.with_solver(**settings)
        with placed(where):
            algorithm.solver(solver)
        shown["solver"] = own | own_table
    return algorithm, shown


Change = Callable[[Algorithm], Algorithm]

LOCAL = "local"
"""The parameter, and the key, of what another method does, such as IFCA inside a cluster."""


def method_named(table: Mapping[str, Any], where: str) -> tuple[Algorithm, Table]:
    """The algorithm that a table names, which may hold another in `local`, and the whole table."""
    function = ALGORITHMS.get(table.get("name", ""))
    nested = {}
    if LOCAL in table and function and LOCAL in inspect.signature(function).parameters:
        own = table[LOCAL]
        require(isinstance(own, dict), f"{where}.{LOCAL} = {own!r}; it must be a table")
        nested[LOCAL] = method_named(own, f"{where}.{LOCAL}")
    others = {key: value for key, value in table.items() if key not in nested}
    build, shown = named(others, ALGORITHMS, where, Algorithm, besides=COMPOSED)
    algorithm: Algorithm = build(**{key: local for key, (local, _) in nested.items()})
    shown |= {key: local_table for key, (_, local_table) in nested.items()}
    for key, change in COMPOSED.items():
        if key in others and key not in shown:
            changed, shown[key] = change(others[key], f"{where}.{key}")
            with placed(f"{where}.{key}"):
                algorithm = changed(algorithm)
    return algorithm, shown


def _server(table: Any, where: str) -> tuple[Change, Table]:
    """The server rule that a table names, and the whole table."""
    require(isinstance(table, dict), f"{where} = {table!r}; it must be a table")
    rule, shown = named(table, RULES, where, Rule)
    return lambda algorithm: algorithm.with_server(rule()), shown


COMPOSED: dict[str, Callable[[Any, str], tuple[Change, Any]]] = {
    "server": _server,
    "stragglers": lambda value, _: (lambda algorithm: algorithm.with_stragglers(value), value),
    "average": lambda value, _: (lambda algorithm: algorithm.with_average(value), value),
    "model_state": lambda value, _: (lambda algorithm: algorithm.with_model_state(value), value),
}
"""Keys of all methods whose function has no such parameter."""


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Say where in a file an error is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _solver(section: Table, where: str) -> tuple[Table, Table]:
    """The settings of a `Solver` that a section names, and its schedule with every default."""
    settings = with_optimizers(section, optimizer_keys(SolverSection), where)
    if not isinstance(section.get("learning_rate"), dict):
        return settings, {}
    settings["learning_rate"], table = _schedule(section["learning_rate"], f"{where}.learning_rate")
    return settings, {"learning_rate": table}


def _schedule(table: Table, where: str) -> tuple[Callable[[int], Any], Table]:
    """The schedule that a table names, with its options in `__name__`, and the whole table."""
    build, shown = named(table, SCHEDULES, where, None, key="schedule")
    name = table["schedule"]
    if name in SCHEDULES:
        assert isinstance(build, functools.partial)
        if scales := build.keywords.get(SCALES):
            build = functools.partial(build, **{SCALES: _by_round(scales, f"{name}: {SCALES}")})
        build = functools.partial(call, name, build)
    optax_schedule = build()

    @functools.wraps(optax_schedule, assigned=())  # `__wrapped__` is one of optax's
    def schedule(round_: int) -> Any:
        return optax_schedule(round_)

    options = {key: value for key, value in table.items() if key != "schedule"}
    schedule.__name__ = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
    return schedule, shown


def _by_round(scales: dict[str, float], what: str) -> dict[int, float]:
    """TOML's table of factors, with whole numbers for keys."""
    for key in scales:
        require(
            key.isascii() and key.isdecimal() and len(key) < 10,
            f"{what} has the key {key!r}; each key must be a round, a whole number below 10^9",
        )
    return {int(key): scale for key, scale in scales.items()}
