"""Experiment files: TOML in, checked, resolved to objects."""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import optax
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedprox.algorithms import ALGORITHMS, Algorithm
from fedprox.algorithms.reporting import Evaluated
from fedprox.datasets import DATASETS
from fedprox.datasets.sources import data_folder
from fedprox.errors import InputError, require, require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models import MODELS
from fedprox.simulation.checkpoint import Checkpoints
from fedprox.simulation.clients import ClientState
from fedprox.simulation.faults import Faults, Policy
from fedprox.simulation.history import Record, Run
from fedprox.simulation.run import simulate
from fedprox.simulation.sampling import Cohort, Sampling
from fedprox.simulation.systems import Partial, Systems
from fedprox.simulation.target import StopAtTarget, Target, target_of
from fedprox.solver import Solver, line_search_descent, searches_line
from fedprox.streams import check_seed
from fedprox.toml import parse_toml

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in ("adagrad", "adam", "adamw", "lbfgs", "lion", "nadam", "rmsprop", "sgd", "yogi")
} | {"line-search-descent": line_search_descent}
"""The optimizers that an experiment file can name: optax's, and gradient descent that searches."""

Table = dict[str, Any]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CohortSection(_Section):
    """`[cohort]`: see `fedprox.Cohort`."""

    clients_per_round: int
    sampling: Sampling = "uniform"


class SystemsSection(_Section):
    """`[systems]`: see `fedprox.Systems`."""

    stragglers: float = 0.0
    deadline: float | None = None
    step_seconds: float | list[float] | None = None
    spread: float = 0.0
    partial: Partial = "uniform"


class FaultsSection(_Section):
    """`[faults]`: see `fedprox.Faults`."""

    policy: Policy = "drop"
    norm: float = 10.0


class SolverSection(_Section):
    """`[solver]`: see `fedprox.Solver`; its optimizer is one of `OPTIMIZERS`."""

    learning_rate: float | list[float]
    batch_size: int | str
    epochs: int | None = None
    steps: int | None = None
    gamma: float | None = None
    learning_rate_decay: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    optimizer: str = "sgd"
    optimizer_options: Table = Field(default_factory=dict)


class Experiment(_Section):
    """An experiment file.

    Attributes:
        rounds: Rounds T.
        evaluate_every: Rounds between evaluations.
        evaluate_rows: Training rows, and test rows, of each client that they read at most.
        evaluate_clients: Clients that they read at most, drawn at random, see `fedprox.simulate`.
        evaluate_model: Which model they measure, see `fedprox.simulate`.
        measure_gradients: Whether they measure gradient variance, B(w) and gamma.
        client_state: Where what clients keep lies, likewise.
        seed: Seed, or several.
        target_accuracy: Test accuracy that the table counts rounds to; where no target is given,
            the highest whole per cent that every method reaches.
        target_loss: Or a training loss.
        stop_at_target: Whether a method's rounds end once all, or any, of its sweep points have
            reached the target.
        client_rows: Training rows, and test rows, of each client that are used at most, chosen at
            random; all where left out.
        data: Name of a data set and its options.
        model: Name of a model and its options.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about faulty updates; they are not looked for where it is left out.
        solver: The local solver.
        method: Names of methods and their numbers, each with a `solver` of its own if it has one.
        versions: What the results were made with; written with them and not read.
    """

    rounds: int
    evaluate_every: int = 1
    evaluate_rows: int | None = None
    evaluate_clients: int | None = None
    evaluate_model: Evaluated = "server"
    measure_gradients: bool = True
    client_state: ClientState = "auto"
    seed: int | list[int] = 0
    target_accuracy: float | None = None
    target_loss: float | None = None
    stop_at_target: StopAtTarget = "never"
    client_rows: int | None = None
    data: Table
    model: Table = Field(default_factory=lambda: {"name": "logistic"})
    cohort: CohortSection
    systems: SystemsSection = Field(default_factory=SystemsSection)
    faults: FaultsSection | None = None
    solver: SolverSection
    method: list[Table] = Field(min_length=1)
    versions: Table = Field(default_factory=dict, exclude=True)

    @property
    def target(self) -> Target | None:
        """What rounds are counted to, where it is given.

        Raises:
            InputError: Both are given, or one is out of range.
        """
        return target_of(self.target_accuracy, self.target_loss)


class Resolved(NamedTuple):
    """An experiment's objects, and the experiment with every default written out.

    Attributes:
        federation: The clients and their data.
        model: The model to train.
        methods: The methods to compare.
        solver: The local solver.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about faulty updates.
        table: The experiment as TOML would hold it.
    """

    federation: Federation
    model: Model
    methods: list[Algorithm]
    solver: Solver
    cohort: Cohort
    systems: Systems
    faults: Faults | None
    table: Table


def read_experiment(path: Path, settings: Sequence[str] = ()) -> Experiment:
    """Read an experiment file.

    Args:
        path: The file.
        settings: Changes to it, "KEY=VALUE" with a dotted key ("solver.epochs=1",
            "method.0.mu=[0.0, 1.0]") and a value as in TOML; a bare word is a string.

    Raises:
        InputError: The file is missing, not TOML, or holds unknown keys or values of a wrong type.
    """
    try:
        table = parse_toml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a TOML file: {error}") from None
    for setting in settings:
        apply_setting(table, setting)
    return parse(str(path), table)


def parse(where: str, table: Table) -> Experiment:
    """An experiment from a table as TOML would hold it.

    Raises:
        InputError: It is not one; the line begins with `where`.
    """
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, Experiment)}") from None


def resolve(experiment: Experiment, data_dir: Path | None = None) -> Resolved:
    """Load the data and build the objects that an experiment names.

    Raises:
        InputError: An unknown name, key or value; or the data cannot be had.
    """
    _ = experiment.target  # refused before data are loaded
    section = experiment.solver.model_dump(exclude_none=True)
    solver = Solver(**_solver(section, "solver"))
    cohort = Cohort(**experiment.cohort.model_dump())
    systems = Systems(**experiment.systems.model_dump())
    faults = Faults(**experiment.faults.model_dump()) if experiment.faults else None
    methods = [
        _method(table, section, solver, f"method.{i}") for i, table in enumerate(experiment.method)
    ]
    make_model, model_table = _named(experiment.model, MODELS, "model")
    federation, data_table = load_data(experiment.data, data_dir)
    if experiment.evaluate_clients is not None:
        require_whole("evaluate_clients", experiment.evaluate_clients)
    if experiment.client_rows is not None:
        require_whole("client_rows", experiment.client_rows)
        # another seed than that by which evaluations choose among these
        federation = federation.sample(experiment.client_rows, seed=1)
    table = experiment.model_dump(exclude_none=True)
    table |= {"data": data_table, "model": model_table, "method": [t for _, t in methods]}
    algorithms = [algorithm for algorithm, _ in methods]
    model = make_model(federation)
    return Resolved(federation, model, algorithms, solver, cohort, systems, faults, table)


def load_data(data: Table, data_dir: Path | None = None) -> tuple[Federation, Table]:
    """The federation that a `[data]` section names, and the section with every default.

    Raises:
        InputError: An unknown name, key or value; or the data cannot be had.
    """
    load, table = _named(data, DATASETS, "data")
    if "seed" in table:
        check_seed(table["seed"], "data.seed")  # the file has a seed of runs too
    data_folder(data_dir)  # it must be there, also for data that need no files
    takes_folder = "data_dir" in inspect.signature(load).parameters
    return (load(data_dir=data_dir) if takes_folder else load()), table


def train(
    experiment: Experiment,
    resolved: Resolved,
    on_record: Callable[[Record], None] | None = None,
    devices: int | None = None,
    checkpoints: Checkpoints | None = None,
    progress: bool = True,
) -> list[Run]:
    """Run a resolved experiment; see `fedprox.simulate`."""
    return simulate(
        resolved.federation,
        resolved.model,
        resolved.methods,
        solver=resolved.solver,
        cohort=resolved.cohort,
        systems=resolved.systems,
        faults=resolved.faults,
        rounds=experiment.rounds,
        evaluate_every=experiment.evaluate_every,
        evaluate_rows=experiment.evaluate_rows,
        evaluate_clients=experiment.evaluate_clients,
        evaluate_model=experiment.evaluate_model,
        measure_gradients=experiment.measure_gradients,
        client_state=experiment.client_state,
        seed=experiment.seed,
        target=experiment.target,
        stop_at_target=experiment.stop_at_target,
        devices=devices,
        checkpoints=checkpoints,
        on_record=on_record,
        progress=progress,
    )


def _method(
    table: Mapping[str, Any], section: Table, solver: Solver, where: str
) -> tuple[Algorithm, Table]:
    """The algorithm that a `[[method]]` names, and the section with every default.

    Args:
        table: The section.
        section: `[solver]`, of which the method may have settings of its own.
        solver: What it gives.
        where: What the section is called.
    """
    given = dict(table)
    own = given.pop("solver", {})
    bound: Table = {}
    if given.get("name") == "fedopt":
        missing = f"{where}: the key 'optimizer' is missing; {choices('', OPTIMIZERS)}"
        require("optimizer" in given, missing)
        name, options = given.pop("optimizer"), given.pop("optimizer_options", {})
        bound["optimizer"] = _optimizer(name, options, where)
        build, shown = _named(given, ALGORITHMS, where, besides=("optimizer",))
        shown |= {"optimizer": name, "optimizer_options": options}
    else:
        build, shown = _named(given, ALGORITHMS, where)
    algorithm = build(**bound)
    require(isinstance(own, dict), f"{where}.solver = {own!r}; it must be a table")
    if own:
        where = f"{where}.solver"
        try:
            checked = SolverSection.model_validate(section | own).model_dump(include=set(own))
        except ValidationError as error:
            raise InputError(_explain(error, SolverSection, where)) from None
        algorithm = algorithm.with_solver(**_solver(checked, where))
        try:
            algorithm.solver(solver)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        shown["solver"] = own
    return algorithm, shown


def _solver(section: Table, where: str) -> Table:
    """The settings of a `Solver` that a section names."""
    settings = {k: v for k, v in section.items() if k not in ("optimizer", "optimizer_options")}
    if "optimizer" in section:
        options = section.get("optimizer_options", {})
        settings["optimizer"] = _optimizer(section["optimizer"], options, where)
    else:
        require(
            "optimizer_options" not in section,
            f"{where}.optimizer_options: give optimizer beside it",
        )
    return settings


def _optimizer(name: Any, options: Any, where: str) -> Callable[..., Any]:
    """The optimizer of a name, with its options bound."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise InputError(f"{where}.optimizer = {name!r}; {choices(str(name), OPTIMIZERS)}")
    where = f"{where}.optimizer_options"
    require(isinstance(options, dict), f"{where} = {options!r}; it must be a table")
    function = OPTIMIZERS[name]
    defaults = {key: p.default for key, p in inspect.signature(function).parameters.items()}
    allowed = set(defaults) - {"learning_rate", "linesearch"}
    for key in options:
        if key not in allowed:
            raise InputError(f"{where}: unknown key {key!r}; {choices(key, sorted(allowed))}")
        require(
            not isinstance(defaults[key], bool) or isinstance(options[key], bool),
            f"{where}.{key} = {options[key]!r}; it must be true or false",
        )
        require(
            not isinstance(options[key], float) or math.isfinite(options[key]),
            f"{where}.{key} = {options[key]!r}; it must be finite",
        )
    bound = functools.partial(function, **options) if options else function
    try:
        optimizer, one = bound(learning_rate=0.1), np.ones(1, np.float32)
        line = {"value": one[0], "grad": one, "value_fn": lambda w: (w**2).sum() / 2}
        optimizer.update(one, optimizer.init(one), one, **line)
        searches_line(bound, where)  # traced, some numbers overflow that did not before
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{where}: {name} refuses them: {reason}") from None
    return bound


def keys_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a data set, a model or a method that are keys of its section.

    >>> list(keys_of(DATASETS["mapped"]))
    ['path', 'classes']
    """
    parameters = inspect.signature(function).parameters
    return {key: parameters[key] for key in parameters if key not in ("federation", "data_dir")}


def _named(
    table: Mapping[str, Any],
    catalogue: Mapping[str, Callable[..., Any]],
    where: str,
    *,
    besides: Sequence[str] = (),
) -> tuple[Callable[..., Any], Table]:
    """The catalogue's function that a section names, with the section's options bound.

    Its allowed keys and their types are the function's, `besides` some.
    """
    require("name" in table, f"{where}: the key 'name' is missing; {choices('', catalogue)}")
    name = table["name"]
    if not isinstance(name, str) or name not in catalogue:
        raise InputError(f"{where}.name = {name!r}; {choices(str(name), catalogue)}")
    function = catalogue[name]
    fields: dict[str, Any] = {
        key: (
            parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for key, parameter in keys_of(function).items()
        if key not in besides
    }
    schema = create_model(f"{name} options", __base__=_Section, **fields)
    try:
        checked = schema.model_validate({k: v for k, v in table.items() if k != "name"})
    except ValidationError as error:
        raise InputError(_explain(error, schema, where)) from None
    options = checked.model_dump()
    shown = {key: value for key, value in options.items() if value is not None}
    return functools.partial(function, **options), {"name": name, **shown}


def apply_setting(table: Table, setting: str) -> None:
    """Change a table by "KEY=VALUE"; see `read_experiment`.

    Raises:
        InputError: It is not of that form, or the key leads nowhere.
    """
    key, equals, text = setting.partition("=")
    require(equals and key.strip(), f"--set {setting}: it must be KEY=VALUE")
    try:
        parsed = parse_toml(f"value = {text}")
        value = parsed["value"]
    except ValueError:
        parsed, value = {}, text.strip()
    require(len(parsed) <= 1, f"--set {setting}: it must be one KEY=VALUE")
    *parents, last = key.strip().split(".")
    place: Any = table
    for name in parents:
        place = (
            place[_index(place, name, setting)]
            if name in place or isinstance(place, list)
            else place.setdefault(name, {})
        )
        require(isinstance(place, (dict, list)), f"--set {setting}: {name!r} is not a section")
    if isinstance(place, list):
        place[_index(place, last, setting)] = value
    else:
        place[last] = value


def _index(place: Table | list[Any], name: str, setting: str) -> Any:
    if isinstance(place, dict):
        return name
    require(
        name.isdecimal() and int(name) < len(place),
        f"--set {setting}: {name!r} must be a number from 0 to {len(place) - 1}",
    )
    return int(name)


def choices(given: str, allowed: Mapping[str, Any] | Sequence[str]) -> str:
    """What is allowed, after the nearest to what was given if there is one near."""
    near = difflib.get_close_matches(given, list(allowed), 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(allowed) or 'no more keys'}"


def _explain(error: ValidationError, schema: type[BaseModel], where: str = "") -> str:
    """The first mistake of a pydantic error in one line."""
    first = error.errors()[0]
    parents, keys = [where] if where else [], list(schema.model_fields)
    location = list(first["loc"])
    for i, part in enumerate(location):
        known = part in keys or isinstance(part, int)
        if not known and (first["type"] != "extra_forbidden" or i < len(location) - 1):
            break  # not a key: the name of one of the types that the value might have
        parents.append(str(part))
        annotation = schema.model_fields[str(part)].annotation if part in keys else None
        for inner in get_args(annotation) or (annotation,):  # a section may be left out
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                schema, keys = inner, list(inner.model_fields)
    section, last = ".".join(parents[:-1]) or "the file", parents[-1]
    if first["type"] == "extra_forbidden":
        return f"{section}: unknown key {last!r}; {choices(last, keys)}"
    if first["type"] == "missing":
        return f"{section}: the key {last!r} is missing"
    return f"{'.'.join(parents)} = {first['input']!r}: {first['msg']}"
