"""Experiment files: TOML in, checked, resolved to objects."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
import optax
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedprox.algorithms import ALGORITHMS, Algorithm
from fedprox.algorithms.reporting import Evaluated
from fedprox.datasets import DATASETS
from fedprox.datasets.sources import data_folder, places
from fedprox.errors import SINGLE, InputError, reason, require, require_whole
from fedprox.federation import Federation, require_share
from fedprox.files.toml import parse_toml
from fedprox.frozen import freeze
from fedprox.model import Model, Params
from fedprox.models import MODELS
from fedprox.report.saved import load_model
from fedprox.simulation.config.cohort import Cohort, Sampling
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.config.faults import Faults, Policy
from fedprox.simulation.config.protocol import Storage, measures_of
from fedprox.simulation.config.systems import Systems
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.loop.described import IN_PYTHON
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.results.selection import Keep, Selection
from fedprox.simulation.results.target import StopAtTarget, Target, target_of
from fedprox.simulation.simulate import simulate
from fedprox.solver import Solver, line_search_descent, searches_line
from fedprox.streams import check_seed
from fedprox.user_code import call, import_function

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in ("adagrad", "adam", "adamw", "lbfgs", "lion", "nadam", "rmsprop", "sgd", "yogi")
} | {"line-search-descent": line_search_descent}
"""The optimizers that an experiment file can name: optax's, and gradient descent that searches."""

Table = dict[str, Any]


def _of_numbers(build: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes an optax schedule, with types that TOML has in place of arrays."""
    signature = inspect.signature(build)
    kinds = _option_kinds(build)

    @functools.wraps(build)
    def made(**options: Any) -> Any:
        return call(build.__name__, functools.partial(build, **options))

    made.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(annotation=kind | None if parameter.default is None else kind)
            for parameter, kind in zip(signature.parameters.values(), kinds.values(), strict=True)
        ]
    )
    return made


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class EvaluationSection(_Section):
    """`[evaluation]`: see `fedprox.Evaluation`."""

    every: int = 1
    rows: int | None = None
    clients: int | None = None
    model: Evaluated = "server"
    gradients: bool = True


class CohortSection(_Section):
    """`[cohort]`: see `fedprox.Cohort`."""

    clients_per_round: int
    sampling: Sampling = "uniform"


class SystemsSection(_Section):
    """`[systems]`: see `fedprox.Systems`.

    `straggler_epochs` is "package.module:function"; the function takes no argument and returns the
    one that draws.
    """

    stragglers: float = 0.0
    deadline: float | None = None
    step_seconds: float | list[float] | None = None
    spread: float = 0.0
    straggler_epochs: str | None = None


class SelectionSection(_Section):
    """`[selection]`: see `fedprox.Selection`."""

    keep: Keep = "last"
    measure: str | None = None
    patience: int | None = None


class FaultsSection(_Section):
    """`[faults]`: see `fedprox.Faults`."""

    policy: Policy = "drop"
    norm: float = 10.0


class SolverSection(_Section):
    """`[solver]`: see `fedprox.Solver`; its optimizer is one of `OPTIMIZERS`.

    Its learning rate may be a table, `schedule` being one of `SCHEDULES` or the user's own.
    """

    learning_rate: float | list[float] | Table
    batch_size: int | Literal["all"]
    epochs: int | None = None
    steps: int | None = None
    gamma: float | None = None
    learning_rate_decay: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = None
    optimizer: Any = "sgd"  # checked with its options
    optimizer_options: Table = Field(default_factory=dict)


class InitialSection(_Section):
    """`[initial]`: a model file or a run directory, and which of its runs; see `load_model`."""

    path: str
    label: str | None = None
    seed: int | None = None


class TargetSection(_Section):
    """`target_metric`: see `fedprox.Target`, whose measure is the name."""

    name: str
    value: float
    lower_is_better: bool | None = None


class Experiment(_Section):
    """An experiment file.

    Attributes:
        rounds: Rounds T.
        client_store: Where what clients keep lies, see `fedprox.simulate`.
        seed: Seed, or several.
        target_accuracy: Test accuracy that the table counts rounds to, or validation accuracy where
            there are validation rows; where no target is given, the highest whole per cent that
            every method reaches.
        target_loss: Or a training loss.
        target_metric: Or any other measure.
        stop_at_target: Whether a method's rounds end once all, or any, of its sweep points have
            reached the target.
        initial: The parameters that every method and seed begins with: the path of a model file or
            of a run directory with one model, or a table with its path, label and seed.
        client_rows: Training rows, test rows and validation rows of each client that are used at
            most, chosen at random before any are held out; all where left out.
        validation_share: Share of each client's training rows that are held out for validation,
            chosen at random: targets and the choice of the best round read them, and test rows are
            read for the report alone. None are where left out, as in the papers.
        data: Name of a data set and its options.
        model: Name of a model and its options; with `initial` also `frozen`, the names of the parts
            that keep their values, see `fedprox.freeze`.
        evaluation: How records are measured.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about faulty updates; they are not looked for where it is left out.
        selection: Whether runs keep their last or best model, and when they end without progress.
        solver: The local solver.
        method: Names of methods and their numbers, each with a `solver` of its own if it has one.
        versions: What the results were made with; written with them and not read.
    """

    rounds: int
    client_store: Storage = "auto"
    seed: int | list[int] = 0
    target_accuracy: float | None = None
    target_loss: float | None = None
    target_metric: TargetSection | None = None
    stop_at_target: StopAtTarget = "never"
    initial: str | InitialSection | None = None
    client_rows: int | None = None
    validation_share: float | None = None
    data: Table
    model: Table = Field(default_factory=lambda: {"name": "logistic"})
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    cohort: CohortSection
    systems: SystemsSection = Field(default_factory=SystemsSection)
    faults: FaultsSection | None = None
    selection: SelectionSection = Field(default_factory=SelectionSection)
    solver: SolverSection
    method: list[Table] = Field(min_length=1)
    versions: Table = Field(default_factory=dict, exclude=True)

    @property
    def target(self) -> Target | None:
        """What rounds are counted to without validation rows, where it is given.

        Raises:
            InputError: Several are given, or one is out of range.
        """
        return self.target_with(validated=False)

    def target_with(self, *, validated: bool) -> Target | None:
        """The same, where there are validation rows or none."""
        metric = self.target_metric.model_dump() if self.target_metric else None
        return target_of(self.target_accuracy, self.target_loss, metric, validated=validated)


class Resolved(NamedTuple):
    """An experiment's objects, and the experiment with every default written out.

    Attributes:
        federation: The clients and their data.
        model: The model to train.
        methods: The methods to compare.
        solver: The local solver.
        evaluation: How records are measured.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about faulty updates.
        initial: The parameters to begin with; None for those of the model.
        table: The experiment as TOML would hold it.
        target: What rounds are counted to.
        selection: Whether runs keep their last or best model, and when they end without progress.
    """

    federation: Federation
    model: Model
    methods: list[Algorithm]
    solver: Solver
    evaluation: Evaluation
    cohort: Cohort
    systems: Systems
    faults: Faults | None
    initial: Params | None
    table: Table
    target: Target | None
    selection: Selection


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
    data = table.get("data")
    require(
        not isinstance(data, dict) or data.get("name") != IN_PYTHON,
        f"{where}: describes a comparison made in Python, whose data, model and methods are not in "
        "the file; it can only be run again there",
    )
    try:
        return Experiment.model_validate(table)
    except ValidationError as error:
        raise InputError(f"{where}: {_explain(error, Experiment, table)}") from None


def resolve(experiment: Experiment, data_dir: Path | None = None) -> Resolved:
    """Load the data and build the objects that an experiment names.

    Raises:
        InputError: An unknown name, key or value; or the data cannot be had.
    """
    _ = experiment.target  # refused before data are loaded
    if experiment.validation_share is not None:
        require_share("validation_share", experiment.validation_share)
    section = experiment.solver.model_dump(exclude_none=True)
    settings, section_table = _solver(section, "solver")
    solver = Solver(**settings)
    evaluation = Evaluation(**experiment.evaluation.model_dump())
    cohort = Cohort(**experiment.cohort.model_dump())
    systems = _systems(experiment.systems)
    faults = Faults(**experiment.faults.model_dump()) if experiment.faults else None
    methods = [
        _method(table, section, solver, f"method.{i}") for i, table in enumerate(experiment.method)
    ]
    frozen = experiment.model.get("frozen")
    require(
        frozen is None or experiment.initial is not None,
        "model.frozen: it needs initial, from which the frozen values come",
    )
    model_section = {key: value for key, value in experiment.model.items() if key != "frozen"}
    make_model, model_table = _named(model_section, MODELS, "model", Model)
    federation, data_table = load_data(experiment.data, data_dir)
    if experiment.client_rows is not None:
        require_whole("client_rows", experiment.client_rows)
        # another seed than that by which evaluations choose among these
        federation = federation.sample(experiment.client_rows, seed=1)
    if experiment.validation_share is not None:
        try:
            federation = federation.hold_out(experiment.validation_share)
        except InputError as error:
            raise InputError(f"validation_share: {error}") from None
    table = experiment.model_dump(exclude_none=True)
    if evaluation.of(federation).clients is None:
        table["evaluation"].pop("clients", None)
    table |= {"data": data_table, "model": model_table, "method": [t for _, t in methods]}
    table["solver"] |= section_table
    algorithms = [algorithm for algorithm, _ in methods]
    model = make_model(federation)
    initial = _initial(experiment.initial, model, data_dir)
    if frozen is not None:
        part = freeze(model, initial, frozen)
        model, initial, model_table["frozen"] = part.model, part.trained(initial), frozen
    known = measures_of(model, federation)
    selection = Selection(**experiment.selection.model_dump()).among(known)
    if selection.measure is not None:
        table["selection"]["measure"] = selection.measure
    target = experiment.target_with(validated=bool(federation.validation))
    if target is not None:
        target = target.among(known, model.metrics)
        if target.key != "target_metric":  # a measure that has a key of its own
            table.pop("target_metric", None)
        table[target.key] = target.setting
    return Resolved(
        federation,
        model,
        algorithms,
        solver,
        evaluation,
        cohort,
        systems,
        faults,
        initial,
        table,
        target,
        selection,
    )


def _systems(section: SystemsSection) -> Systems:
    """What `[systems]` describes, with its function imported."""
    settings = section.model_dump()
    name = settings.pop("straggler_epochs")
    draw = import_function("systems.straggler_epochs", name, None)() if name is not None else None
    return Systems(**settings, straggler_epochs=draw)


def _initial(
    given: str | InitialSection | None, model: Model, data_dir: Path | None
) -> Params | None:
    """The parameters that a path names, as seen from here or from the data folder; None without."""
    if given is None:
        return None
    path, label, seed = (
        (given, None, None) if isinstance(given, str) else given.model_dump().values()
    )
    looked = places(path, data_dir)
    found = next((place for place in looked if place.exists()), None)
    if found is None:
        raise InputError(f"initial: no {' and no '.join(map(str, looked))}")
    return load_model(found, label, seed, model=model)


def load_data(data: Table, data_dir: Path | None = None) -> tuple[Federation, Table]:
    """The federation that a `[data]` section names, and the section with every default.

    Raises:
        InputError: An unknown name, key or value; or the data cannot be had.
    """
    load, table = _named(data, DATASETS, "data", Federation)
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
    runs = simulate(
        resolved.federation,
        resolved.model,
        resolved.methods,
        solver=resolved.solver,
        evaluation=resolved.evaluation,
        cohort=resolved.cohort,
        systems=resolved.systems,
        faults=resolved.faults,
        rounds=experiment.rounds,
        client_store=experiment.client_store,
        seed=experiment.seed,
        target=resolved.target,
        stop_at_target=experiment.stop_at_target,
        selection=resolved.selection,
        initial=resolved.initial,
        devices=devices,
        checkpoints=checkpoints,
        on_record=on_record,
        progress=progress,
    )
    for run in runs:
        run.experiment = resolved.table
    return runs


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
        _require_key("optimizer", given, OPTIMIZERS, where)
        name, options = given.pop("optimizer"), given.pop("optimizer_options", {})
        bound["optimizer"] = _optimizer(name, options, where)
        build, shown = _named(given, ALGORITHMS, where, Algorithm, besides=("optimizer",))
        shown |= {"optimizer": name, "optimizer_options": options}
    else:
        build, shown = _named(given, ALGORITHMS, where, Algorithm)
    algorithm = build(**bound)
    require(isinstance(own, dict), f"{where}.solver = {own!r}; it must be a table")
    if own:
        where = f"{where}.solver"
        try:
            checked = SolverSection.model_validate(section | own).model_dump(include=set(own))
        except ValidationError as error:
            raise InputError(_explain(error, SolverSection, own, where)) from None
        settings, own_table = _solver(checked, where)
        algorithm = algorithm.with_solver(**settings)
        try:
            algorithm.solver(solver)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        shown["solver"] = own | own_table
    return algorithm, shown


def _solver(section: Table, where: str) -> tuple[Table, Table]:
    """The settings of a `Solver` that a section names, and its schedule with every default."""
    settings = {k: v for k, v in section.items() if k not in ("optimizer", "optimizer_options")}
    shown: Table = {}
    if isinstance(section.get("learning_rate"), dict):
        schedule, table = _schedule(section["learning_rate"], f"{where}.learning_rate")
        settings["learning_rate"], shown = schedule, {"learning_rate": table}
    if "optimizer" in section:
        options = section.get("optimizer_options", {})
        settings["optimizer"] = _optimizer(section["optimizer"], options, where)
    else:
        require(
            "optimizer_options" not in section,
            f"{where}.optimizer_options: give optimizer beside it",
        )
    return settings, shown


def _schedule(table: Table, where: str) -> tuple[Callable[[int], Any], Table]:
    """The schedule that a table names, called by its name and options, and the whole table."""
    build, shown = _named(table, SCHEDULES, where, None, key="schedule")
    made = build()

    @functools.wraps(made, assigned=())  # which says that it is one of optax's
    def schedule(round_: int) -> Any:
        return made(round_)

    options = {key: value for key, value in table.items() if key != "schedule"}
    schedule.__name__ = " ".join([table["schedule"], *(f"{k}={v}" for k, v in options.items())])
    return schedule, shown


def _optimizer(name: Any, options: Any, where: str) -> Callable[..., Any]:
    """The optimizer of a name, with its options bound."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise InputError(f"{where}.optimizer = {name!r}; {choices(str(name), OPTIMIZERS)}")
    where = f"{where}.optimizer_options"
    require(isinstance(options, dict), f"{where} = {options!r}; it must be a table")
    function = OPTIMIZERS[name]
    kinds = _option_kinds(function)
    for key, value in options.items():
        if key not in kinds:
            raise InputError(f"{where}: unknown key {key!r}; {choices(key, sorted(kinds))}")
        kind = kinds[key]
        of_kind = isinstance(value, (float, int) if kind is float else kind)
        require(
            of_kind and isinstance(value, bool) == (kind is bool),
            f"{where}.{key} = {value!r}; it must be {KINDS[kind][0]}",
        )
        require(
            kind is not float or abs(value) <= SINGLE[1],
            f"{where}.{key} = {value!r}; it must be finite in single precision",
        )
    bound = functools.partial(function, **options) if options else function
    try:
        optimizer, one = bound(learning_rate=0.1), np.ones(1, np.float32)
        line = {"value": one[0], "grad": one, "value_fn": lambda w: (w**2).sum() / 2}
        with np.errstate(all="ignore"):
            optimizer.update(one, optimizer.init(one), one, **line)
        searches_line(bound, where)  # traced, some numbers overflow that did not before
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{where} = {options}; {name} refuses them: {reason}") from None
    return bound


def _option_kinds(function: Callable[..., Any]) -> dict[str, type]:
    """The options of an optimizer or a schedule that TOML can give, and the type of each.

    >>> _option_kinds(optax.adam)["nesterov"], _option_kinds(optax.adam)["b1"]
    (<class 'bool'>, <class 'float'>)
    """
    kinds: dict[str, type] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if key.endswith("dtype"):
            kinds[key] = str  # its name, such as "bfloat16"
        elif key not in ("learning_rate", "linesearch", "mask"):  # the last two are functions
            exact = parameter.annotation in (bool, int)
            kinds[key] = parameter.annotation if exact else float
    return kinds


SCHEDULES: dict[str, Callable[..., Any]] = {
    name: _of_numbers(getattr(optax, name))
    for name in (
        "constant_schedule",
        "cosine_decay_schedule",
        "cosine_onecycle_schedule",
        "exponential_decay",
        "linear_onecycle_schedule",
        "linear_schedule",
        "polynomial_schedule",
        "warmup_constant_schedule",
        "warmup_cosine_decay_schedule",
        "warmup_exponential_decay_schedule",
    )
}
"""The schedules of learning rates that an experiment file can name: optax's."""


def keys_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a data set, a model or a method that are keys of its section.

    >>> list(keys_of(DATASETS["mapped"]))
    ['path', 'classes']
    """
    parameters = inspect.signature(function).parameters
    return {key: parameters[key] for key in parameters if key not in ("federation", "data_dir")}


def _can_be_key(annotation: Any) -> bool:
    """Whether TOML has values of a type.

    >>> _can_be_key(float | Sequence[float] | None), _can_be_key(Callable[[int], int])
    (True, False)
    """
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, UnionType):
        return all(map(_can_be_key, arguments))
    if origin in (list, Sequence):
        return all(map(_can_be_key, arguments))
    known = (*KINDS, Any, inspect.Parameter.empty, type(None), dict)
    return origin in (Literal, dict) or annotation in known


def _named(
    table: Mapping[str, Any],
    catalogue: Mapping[str, Callable[..., Any]],
    where: str,
    kind: type | None,
    *,
    besides: Sequence[str] = (),
    key: str = "name",
) -> tuple[Callable[..., Any], Table]:
    """The function that a section names, with the section's options bound.

    It is the catalogue's, or one of the user's own as "package.module:function". Its allowed keys
    and their types are the function's, `besides` some.

    Args:
        table: The section.
        catalogue: The library's functions.
        where: What the section is called.
        kind: What the function returns; None for another function.
        besides: Keys that are checked elsewhere.
        key: The key of the name.
    """
    _require_key(key, table, catalogue, where)
    name = table[key]
    if isinstance(name, str) and ":" in name:
        function = import_function(f"{where}.{key}", name, kind)
        keys = _own_keys(function, f"{where}.{key} = {name!r}", given=int(kind is Model))
    elif isinstance(name, str) and name in catalogue:
        function = catalogue[name]
        keys = keys_of(function)
    else:
        allowed = choices(str(name), catalogue)
        own = ', or one of your own as "package.module:function"'
        raise InputError(f"{where}.{key} = {name!r}; {allowed}{own}")
    fields: dict[str, Any] = {
        option: (
            Any if parameter.annotation is parameter.empty else parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for option, parameter in keys.items()
        if option not in besides
    }
    schema = create_model(f"{name} options", __base__=_Section, **fields)
    try:
        checked = schema.model_validate({k: v for k, v in table.items() if k != key})
    except ValidationError as error:
        raise InputError(_explain(error, schema, table, where)) from None
    options = checked.model_dump()
    shown = {option: value for option, value in options.items() if value is not None}
    return functools.partial(function, **options), {key: name, **shown}


def _own_keys(
    function: Callable[..., Any], what: str, *, given: int
) -> dict[str, inspect.Parameter]:
    """As `keys_of`, of a user's function, which is given so many arguments by position.

    A parameter of a type that TOML does not have, such as a function, is no key if it has a
    default.

    Raises:
        InputError: Its signature cannot be read, or needs what TOML cannot hold.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{what}: its signature cannot be read: {reason(error)}") from None
    require(len(parameters) >= given, f"{what}: its first parameter must be the federation")
    found = {}
    for key, parameter in list(parameters.items())[given:]:
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if several or key == "data_dir":
            continue
        if _can_be_key(parameter.annotation):
            found[key] = parameter
        elif parameter.default is parameter.empty:
            raise InputError(
                f"{what}: its parameter {key!r} has a type that no key has; use bool, int, float, "
                "str, Literal or a list of them, or give it a default"
            )
    return found


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
    numbers = [str(i) for i in range(len(place))]
    allowed = f"it must be a number from 0 to {len(place) - 1}" if place else "the list is empty"
    require(name in numbers, f"--set {setting}: {name!r} is not in the list; {allowed}")
    return int(name)


def choices(given: str, allowed: Mapping[str, Any] | Sequence[str]) -> str:
    """What is allowed, after the nearest to what was given if there is one near."""
    near = difflib.get_close_matches(given, list(allowed), 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(allowed) or 'no more keys'}"


def _require_key(
    key: str, table: Table | Mapping[str, Any], allowed: Mapping[str, Any], where: str
) -> None:
    """Raise `InputError` unless a section has a key; a key that is there instead is named."""
    near = difflib.get_close_matches(key, list(table), 1)
    instead = f" (is {near[0]!r} a misspelling of it?)" if near else ""
    require(key in table, f"{where}: the key {key!r} is missing{instead}; {choices('', allowed)}")


KINDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
}
"""What a value of each type, or several in a list, are called in messages."""


def _allowed(annotation: Any) -> str:
    """What a message says of the values that a key may have.

    >>> _allowed(float | list[float] | None), _allowed(int | Literal["all"])
    ('a number or a list of numbers', 'a whole number or "all"')
    """
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    origin = get_origin(annotation)
    if annotation in KINDS:
        return KINDS[annotation][0]
    if origin is Literal:
        words = [f'"{each}"' for each in arguments]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin in (list, Sequence):
        return f"a list of {KINDS[arguments[0]][1]}"
    if origin in (Union, UnionType):
        return " or ".join(map(_allowed, arguments))
    return "a table"


HEADERS = {
    **{
        name: f"[{name}]"
        for name in ("data", "model", "evaluation", "cohort", "systems", "faults", "solver")
    },
    "versions": "[versions]",
    "method": "[[method]]",
}
"""How the sections of an experiment file are written."""


def _explain(
    error: ValidationError, schema: type[BaseModel], table: Mapping[str, Any], where: str = ""
) -> str:
    """A mistake that pydantic found, in one line.

    Unknown keys come before others: they may be why another is missing.

    Args:
        error: What it found.
        schema: What the table was checked against.
        table: The table.
        where: What the table is called; nothing for a whole file.
    """
    mistakes = error.errors()
    mistake = next((m for m in mistakes if m["type"] == "extra_forbidden"), mistakes[0])
    path, fields = [where] if where else [], schema.model_fields
    annotation: Any = None
    value: Any = table
    for part in map(str, mistake["loc"]):
        if part not in fields:
            break  # an unknown key, or what pydantic calls one of the types of a value
        path.append(part)
        annotation, value = fields[part].annotation, value.get(part)
        kind, *_ = get_args(annotation) or (annotation,)  # of a section that may be left out too
        fields = getattr(kind, "model_fields", {})
    place, last = ".".join(path), str(mistake["loc"][-1])
    header = HEADERS.get(place) if schema is Experiment else None
    if mistake["type"] == "extra_forbidden":
        return f"{place or 'the file'}: unknown key {last!r}; {choices(last, fields)}"
    if mistake["type"] == "missing":
        what = f"section {header}" if header else f"key {last!r}"
        return f"{'.'.join(path[:-1]) or 'the file'}: the {what} is missing"
    allowed = f"a section, written {header}" if header else _allowed(annotation)
    if header == HEADERS["method"]:
        if isinstance(value, dict):
            return f"method: write {header}, with two brackets: there may be several"
        allowed = f"one section or several, each written {header}"
    return f"{place} = {value!r}; it must be {allowed}"
