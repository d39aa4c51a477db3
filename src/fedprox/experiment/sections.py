"""The sections of an experiment file, and reading one with changes."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, create_model

from fedprox.algorithms.base import Average, ModelState, Stragglers
from fedprox.datasets.skewed import Skew
from fedprox.errors import InputError, require
from fedprox.experiment.schema import Of, Section, Table, checked, descriptions_of, schema_of
from fedprox.files.toml import parse_toml, read_toml
from fedprox.loop.described import IN_PYTHON
from fedprox.loop.simulate import simulate
from fedprox.model.variants import lora
from fedprox.parts.population import QUANTITIES, DayNight, LogNormal
from fedprox.parts.privacy import AdaptiveClip, NoisedMeasures
from fedprox.protocol.protocol import OBJECTS, Protocol, Storage
from fedprox.report.saved import load_model
from fedprox.results.target import StopAtTarget, Target, target_of
from fedprox.solver import Solver
from fedprox.studies.run import Tuning
from fedprox.studies.search import Search

LoraSection = schema_of(lora, positional=2)


class SkewSection(Section):
    """`skew` of `[data]`: see `fedprox.datasets.skewed_features`."""

    kind: Skew
    """The kind of difference between clients."""
    strength: float | None = None
    """How much, at least 0: a variance, degrees or a change of contrast; 0.1, 45 or 0.5 if left
    out."""


class DataKeys(Section):
    """The keys of `[data]` other than the parameters of the data set's function."""

    name: str
    """Data set by its name, or a function of your own, "package.module:function"; the other keys
    are its parameters. "table" if left out beside a key `table`, a file of yours."""
    skew: SkewSection | None = None
    """Feature skew by client: a table with the keys of :func:`fedprox.datasets.skewed_features`,
    `kind`, "noise", "rotation" or "contrast", and `strength`. Its seed is that of the data, or
    0."""


class ModelKeys(Section):
    """The keys of `[model]` other than the parameters of the model's function."""

    name: str = "logistic"
    """Model by its name, or a function of your own, "package.module:function"; the other keys are
    its parameters."""
    frozen: str | list[str] | None = None
    """Parameters, or parts of the model, that keep the values of `initial`; see
    :func:`fedprox.freeze`."""
    lora: Annotated[Any, Of(LoraSection)] = None
    """Low-rank adapters of matrices of `initial`, to which all else is frozen: a table with the
    keys of :func:`fedprox.lora`, `rank`, `alpha`, `targets` and `trained`."""
    loss: Table | None = None
    """The loss in place of the model's: a table with the `name` of a function of
    :mod:`fedprox.losses` and its parameters, {name = "cross_entropy", smoothing = 0.1}. Or the
    name of a function of your own, "package.module:function", that returns a loss."""
    mixed_precision: bool = False
    """Whether the model computes in bfloat16, see :func:`fedprox.mixed_precision`."""


class MethodKeys(Section):
    """The keys of `[[method]]` other than the parameters of the method's function."""

    name: str
    """Method by its name, or a function of your own, "package.module:function"; the other keys are
    its parameters."""
    solver: Table = Field(default_factory=dict)
    """Settings that replace those of [solver] for this method."""
    server: Table | None = None
    """The rule of the server's step: a table with the `name` of a function of
    :mod:`fedprox.server` and its parameters, {name = "adam", learning_rate = 0.03}; the method's
    own if left out. Lists are swept over."""
    stragglers: Stragglers | None = None
    """Whether stragglers' partial work is kept; the method's own choice if left out."""
    average: Average | None = None
    """Weights of the server's mean: training rows, or 1 for each client; the method's own choice if
    left out. `fedsplit` has another key of this name."""
    model_state: ModelState | None = None
    """The treatment of the model's state that is not trained, such as running statistics: "mean",
    "own", "own layers" or "server"; see `fedprox.Algorithm.with_model_state`."""


NAMED: dict[str, type[Section]] = {"data": DataKeys, "model": ModelKeys, "method": MethodKeys}
"""The sections that name a function, whose other keys are its parameters."""

SolverSection = schema_of(
    Solver,
    types={"learning_rate": float | list[float] | Table},
    descriptions={
        "learning_rate": "Learning rate, above 0. A list is swept over. A table names a schedule "
        'of optax with its arguments: {schedule = "cosine_decay_schedule", init_value = 0.1, '
        'decay_steps = 200}; or a function of your own, "package.module:function".'
    },
)


OVERRIDES: dict[str, dict[str, Any]] = {
    "systems": {
        "types": {"straggler_epochs": str | None},
        "descriptions": {
            "straggler_epochs": 'How a straggler\'s epochs are drawn: "package.module:function" '
            "of a function without arguments that returns a function of a `Straggler`; uniform on "
            "1 to E if left out."
        },
    },
    "population": {
        "types": {
            **dict.fromkeys(QUANTITIES, float | list[float] | schema_of(LogNormal) | None),
            "available": schema_of(DayNight) | None,
        },
        "descriptions": {
            "available": "When clients are on: for some hours of each day, with the keys of "
            ":class:`fedprox.DayNight`; always if left out. Cohorts are drawn from those that are "
            "on.",
        },
        "more": {
            "file": (str | None, "File of devices, see :func:`fedprox.read_population`."),
            "period": (float | None, "Seconds after which the times of the file begin anew."),
        },
    },
    "privacy": {
        "types": {
            "adaptive_clip": schema_of(AdaptiveClip) | None,
            "measures": schema_of(NoisedMeasures, types={"only": list[str] | None}) | None,
        }
    },
}
"""The keys of sections that differ from their object's fields, as arguments of `schema_of`."""


def _section_of(field: dataclasses.Field[Any]) -> Any:
    """The section of an object of `Protocol`, which may be left out if the field has a default."""
    schema = schema_of(OBJECTS[field.name], **OVERRIDES.get(field.name, {}))
    described = DESCRIPTIONS.get(field.name, "")  # Python's option -OO leaves docstrings out
    given: dict[str, Any] = {"description": described.partition(". ")[0].rstrip(".") + "."}
    if field.default is None:
        given |= {"default": None}
    elif field.default is not dataclasses.MISSING:
        given |= {"default": {}, "validate_default": True}
    return Annotated[Any, Of(schema)], Field(**given)


DESCRIPTIONS = descriptions_of(simulate)
"""The description of each setting."""

ARGUMENTS = [name for name in OBJECTS if name not in ("federation", "model", "solver", "target")]
"""The sections that describe one object each, an argument of `fedprox.simulate`."""

OF_OBJECTS: Any = create_model(
    "Objects",
    __base__=Section,
    **{
        each.name: _section_of(each)
        for each in dataclasses.fields(Protocol)
        if each.name in ARGUMENTS
    },
)


class SecureSection(Section):
    """`secure` of `[deployment]`: messages of nodes are summed in secret."""

    threshold: int
    """Nodes that a sum needs: at least 3, and more than half of all. With fewer a round is given
    up."""
    bound: float | None = None
    """Largest absolute value of a number in a node's mean message; beyond it, numbers are clipped
    and counted. Not with `norm`, nor with `[privacy]` of clients, where it follows from `clip`."""
    norm: float | None = None
    """In place of `bound`: largest Euclidean norm of a node's mean message. A longer one is scaled
    to it and counted. The operator refuses a sum that is longer than such messages can make it."""
    bits: int = 32
    """Bits of a number on its way, 32 or 64. 64 is for methods that send numbers of very different
    sizes, with a large `bound`."""
    honest: int = 1
    """With `[privacy]` of clients: nodes of a sum that add their noise and keep it, at least;
    each adds its part of the noise. With 1 no node trusts another."""


class DeploymentSection(Section):
    """`[deployment]`: how `fedprox deploy` waits for nodes; other commands do not read it."""

    nodes: int = 1
    """Nodes that must have joined before a deployment begins; not used with `names`."""
    names: list[str] = Field(default_factory=list)
    """Names of the nodes that a deployment waits for; it takes no others. Any node may join if left
    out, and in a trial with `--local`."""
    patience: float = 300.0
    """Seconds that a round waits for a node; it then goes on without the node."""
    secure: SecureSection | None = None
    """Sum the nodes' messages in secret: a table with the keys `threshold`, `bound` or
    `norm`, `bits` and `honest`; the operator sees each node's if left out."""


class StudySection(Section):
    """`[study]`: a study of the file's methods, see `fedprox.study`."""

    vary: Table = Field(default_factory=dict)
    """Factors by their names, each a table from the names of its levels to the sections and keys
    that a level changes; a section with a `name` is replaced. The levels of a factor `method` are
    the methods, in place of `[[method]]`, each with its section as `method`."""
    measure: str = "test_accuracy"
    """Name of the measure of the study's table, as in metrics.jsonl."""
    against: str | None = None
    """Method to which the others are compared; the best is compared to the second if left out."""
    data_per_seed: bool = False
    """Whether data are made anew for each seed of a run, which takes the place of `data.seed`."""
    tuning: Annotated[Any, Of(schema_of(Tuning, types={"search": schema_of(Search) | None}))] = None
    """How hyperparameters are chosen: a table with the keys of :class:`fedprox.Tuning`, `measure`,
    `seeds`, `equal` and `search`, which is a table with those of :class:`fedprox.Search`."""


class TargetSection(Section):
    """`target_metric`: see `fedprox.Target`."""

    name: str
    """Measure by its name in metrics.jsonl."""
    value: float
    """Value to reach."""
    lower_is_better: bool | None = None
    """Whether smaller values are better; the model's metric says so if left out."""


class TopLevelKeys(Section):
    """The keys of an experiment file that stand above all sections."""

    rounds: int
    """Rounds T."""
    client_store: Storage = "auto"
    """Where client state is stored: on the device, in host memory or on disk; "auto" takes the
    first that has room."""
    seed: int | list[int] = 0
    """Seed of a run; a list makes one run for each of its seeds."""
    target_accuracy: float | None = None
    """Accuracy, above 0 and at most 1, to which the table counts rounds: on validation rows where
    there are any, else on test rows. With no target it is the highest whole per cent that every
    method reaches."""
    target_loss: float | None = None
    """Training loss to which the table counts rounds, in place of an accuracy."""
    target_metric: TargetSection | None = None
    """Any other measure to which the table counts rounds."""
    stop_at_target: StopAtTarget = "never"
    """Whether the rounds of a method end early: where "all", or "any", of its sweep points have
    reached the target."""
    initial: Annotated[Any, Of(str | schema_of(load_model))] = None
    """Parameters that every method and seed begins with: a model file, a run directory with one
    model, or a table."""
    client_rows: int | None = None
    """Training, test and validation rows of each client that are used at most, chosen at random
    before any are held out; all if left out."""
    validation_share: float | None = None
    """Fraction of each client's training rows that is held out for validation: targets and the best
    round are then read on these rows, and test rows are only reported."""

    @property
    def seeds(self) -> list[int]:
        """The seeds as a list."""
        return self.seed if isinstance(self.seed, list) else [self.seed]

    def target(self, *, validated: bool = False) -> Target | None:
        """The target, given whether the federation has validation rows; None without one."""
        metric = self.target_metric.model_dump() if self.target_metric else None
        return target_of(self.target_accuracy, self.target_loss, metric, validated=validated)


class Experiment(OF_OBJECTS, TopLevelKeys):
    """An experiment file: the top-level keys and the sections, also those of `ARGUMENTS`."""

    data: Table
    """The data set and its options."""
    model: Table = Field(default_factory=lambda: {"name": "logistic"})
    """The model and its options."""
    deployment: DeploymentSection = Field(default_factory=DeploymentSection)
    """How a deployment waits for its nodes; not used by a simulation."""
    solver: Annotated[Any, Of(SolverSection)]
    """The local solver."""
    study: StudySection | None = None
    """A study: the methods over settings and seeds, tuned, in one table; one comparison if left
    out."""
    method: list[Table] = Field(min_length=1)
    """A method and its hyperparameters; the section may be repeated."""
    versions: Table = Field(default_factory=dict, exclude=True)
    """Versions that the results were made with; written by a run and not read."""


HEADERS = {
    name: "[[method]]" if name == "method" else f"[{name}]"
    for name in Experiment.model_fields
    if name not in TopLevelKeys.model_fields
}
"""How the sections of an experiment file are written."""

DEPLOYED = "deployment"
"""Value of `data.name` in the experiment of a deployment, whose data are on its nodes."""


def read_experiment(
    path: Path, settings: Sequence[str] = (), defaults: Mapping[str, Table] = MappingProxyType({})
) -> Experiment:
    """Read an experiment file, of which `defaults` are sections that it may leave out.

    Settings change it, "KEY=VALUE" with a dotted key ("solver.epochs=1", "method.0.mu=[0.0, 1.0]")
    and a value as in TOML; a bare word is a string.
    """
    table = read_table(path, settings, defaults)
    require(
        "study" not in table,
        f"{path}: has a section [study]; fedprox run or fedprox.run runs it, no other command",
    )
    return parse(str(path), table)


def read_table(
    path: Path, settings: Sequence[str] = (), defaults: Mapping[str, Table] = MappingProxyType({})
) -> Table:
    """The table of an experiment file, with changes; see `read_experiment`."""
    table = {**defaults, **read_toml(path)}
    for setting in settings:
        apply_setting(table, setting)
    return table


def parse(where: str, table: Table) -> Experiment:
    """An experiment from a table as TOML would hold it."""
    data = table.get("data")
    require(
        not isinstance(data, dict) or data.get("name") != IN_PYTHON,
        f"{where}: describes a comparison made in Python, whose data, model and methods are not in "
        "the file; it can only be run again there",
    )
    require(
        data is not None or "deployment" not in table,
        f"{where}: no section [data], as for a deployment, whose nodes have the data; here one is "
        "needed",
    )
    try:
        return checked(Experiment, table, headers=HEADERS)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def apply_setting(table: Table, setting: str) -> None:
    """Change a table by "KEY=VALUE"; see `read_experiment`."""
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
        if isinstance(place, dict):
            place.setdefault(name, {})
        place = place[_index(place, name, setting)]
        require(isinstance(place, (dict, list)), f"--set {setting}: {name!r} is not a section")
    place[_index(place, last, setting)] = value


def _index(place: Table | list[Any], name: str, setting: str) -> Any:
    if isinstance(place, dict):
        return name
    numbers = [str(i) for i in range(len(place))]
    allowed = f"it must be a number from 0 to {len(place) - 1}" if place else "the list is empty"
    require(name in numbers, f"--set {setting}: {name!r} is not in the list; {allowed}")
    return int(name)
