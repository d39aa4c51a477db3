"""The sections of an experiment file."""

from typing import Annotated, Any

from pydantic import Field

from fedprox.algorithms.base import Average, Stragglers
from fedprox.experiment.messages import Of, Section, Table, table_of
from fedprox.experiment.schema import schema_of
from fedprox.model.variants import lora
from fedprox.parts.asynchronous import Asynchronous
from fedprox.parts.attack import Attack
from fedprox.parts.compression import Compression
from fedprox.parts.faults import Faults
from fedprox.parts.population import QUANTITIES, DayNight, LogNormal, Population
from fedprox.parts.privacy.setting import AdaptiveClip, Privacy
from fedprox.parts.robust import Aggregation
from fedprox.parts.systems import Systems
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.evaluation import Evaluation
from fedprox.protocol.protocol import Storage
from fedprox.report.saved import load_model
from fedprox.results.selection import Selection
from fedprox.results.target import StopAtTarget, Target, target_of
from fedprox.solver import Solver
from fedprox.studies.run import Tuning

LoraSection = schema_of(lora, positional=2)


class DataKeys(Section):
    """The keys of `[data]` other than the parameters of the data set's function."""

    name: str
    """Data set by its name, or a function of your own, "package.module:function"; the other keys
    are its parameters."""


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


NAMED: dict[str, type[Section]] = {"data": DataKeys, "model": ModelKeys, "method": MethodKeys}
"""The sections that name a function, whose other keys are its parameters."""

SystemsSection = schema_of(
    Systems,
    types={"straggler_epochs": str | None},
    descriptions={
        "straggler_epochs": 'How a straggler\'s epochs are drawn: "package.module:function" of a '
        "function without arguments that returns a function of a `Straggler`; uniform on 1 to E if "
        "left out."
    },
)
QUANTITY = float | list[float] | schema_of(LogNormal)
PopulationSection = schema_of(
    Population,
    types={
        **dict.fromkeys(QUANTITIES, QUANTITY | None),
        "available": schema_of(DayNight) | None,
    },
    descriptions={
        "available": "When clients are on: for some hours of each day, with the keys of "
        ":class:`fedprox.DayNight`; always if left out. Cohorts are drawn from those that are on.",
    },
    more={
        "file": (str | None, "File of devices, see :func:`fedprox.read_population`."),
        "period": (float | None, "Seconds after which the times of the file begin anew."),
    },
)
CompressionSection = schema_of(Compression)
PrivacySection = schema_of(Privacy, types={"adaptive_clip": schema_of(AdaptiveClip) | None})
SolverSection = schema_of(
    Solver,
    types={"learning_rate": float | list[float] | Table},
    descriptions={
        "learning_rate": "Learning rate, above 0; a list is swept over; a table names a schedule, "
        '{schedule = "cosine_decay_schedule", init_value = 0.1, decay_steps = 200}, which is one '
        'of optax\'s with its arguments, or a function of your own, "package.module:function".'
    },
)


class SecureSection(Section):
    """`secure` of `[deployment]`: messages of nodes are summed in secret."""

    threshold: int
    """Nodes that a sum needs: at least 3, and more than half of all. With fewer a round is given
    up."""
    bound: float | None = None
    """Largest absolute value of a number in a node's mean message; beyond it, numbers are clipped
    and counted. Not with `[privacy]` of clients, where it follows from `clip`."""
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
    """Sum the nodes' messages in secret: a table with the keys `threshold`, `bound`, `bits` and
    `honest`; the operator sees each node's if left out."""


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
    tuning: Annotated[Any, Of(schema_of(Tuning))] = None
    """How hyperparameters are chosen: a table with the keys of :class:`fedprox.Tuning`, `measure`,
    `seeds` and `equal`."""


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


class Experiment(TopLevelKeys):
    """An experiment file: the top-level keys and the sections, each with a line here."""

    data: Table
    """The data set and its options."""
    model: Table = Field(default_factory=lambda: {"name": "logistic"})
    """The model and its options."""
    evaluation: Annotated[Any, Of(schema_of(Evaluation))] = Field({}, validate_default=True)
    """How records are measured."""
    cohort: Annotated[Any, Of(schema_of(Cohort))]
    """How the clients of a round are chosen."""
    systems: Annotated[Any, Of(SystemsSection)] = Field({}, validate_default=True)
    """Which clients cannot finish their work."""
    population: Annotated[Any, Of(PopulationSection)] = None
    """The clients' devices; without the section a run has no clock."""
    asynchronous: Annotated[Any, Of(schema_of(Asynchronous))] = None
    """Steps of the server without waiting for a cohort; rounds with a barrier if left out."""
    aggregation: Annotated[Any, Of(schema_of(Aggregation))] = Field({}, validate_default=True)
    """How the server makes one message of a round's."""
    attack: Annotated[Any, Of(schema_of(Attack))] = None
    """Dishonest clients, in a simulation; none if the section is left out."""
    compression: Annotated[Any, Of(CompressionSection)] = None
    """Codecs of clients' messages, which travel in full if the section is left out."""
    faults: Annotated[Any, Of(schema_of(Faults))] = None
    """Screening of faulty updates; none if the section is left out."""
    privacy: Annotated[Any, Of(PrivacySection)] = None
    """Differential privacy of clients or of examples; none if the section is left out."""
    deployment: DeploymentSection = Field(default_factory=DeploymentSection)
    """How a deployment waits for its nodes; not used by a simulation."""
    selection: Annotated[Any, Of(schema_of(Selection))] = Field({}, validate_default=True)
    """Which model of a run is kept, and when a run without progress ends."""
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

ARGUMENTS = [
    name
    for name, field in Experiment.model_fields.items()
    if name in HEADERS and name != "solver" and hasattr(table_of(field), "makes")
]
"""The sections that describe one object each, an argument of `fedprox.simulate`."""
