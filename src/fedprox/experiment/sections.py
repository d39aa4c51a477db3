"""The sections of an experiment file and their keys: types, defaults and descriptions.

Error messages, the help of `fedprox run` and the reference of keys are made from these fields.
`examples` hold a value for the help where a key has no default.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedprox.algorithms.reporting import Evaluated
from fedprox.experiment.messages import Table
from fedprox.experiment.optimizers import OPTIMIZERS
from fedprox.privacy.setting import Accountant
from fedprox.simulation.config.cohort import Sampling
from fedprox.simulation.config.faults import Policy
from fedprox.simulation.config.protocol import Storage
from fedprox.simulation.results.selection import Keep
from fedprox.simulation.results.target import StopAtTarget, Target, target_of

OWN_NAME = 'or a function of your own, "package.module:function"'


class Section(BaseModel):
    """A table whose keys are known, with values of exactly their types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DataKeys(Section):
    """The keys of `[data]` other than the parameters of the data set's function."""

    name: str = Field(
        description=f"Data set by its name, {OWN_NAME}; the other keys are its parameters.",
        examples=["synthetic"],
    )


class ModelKeys(Section):
    """The keys of `[model]` other than the parameters of the model's function."""

    name: str = Field(
        default="logistic",
        description=f"Model by its name, {OWN_NAME}; the other keys are its parameters.",
    )
    frozen: str | list[str] | None = Field(
        default=None,
        description="Parameters, or parts of the model, that keep the values of `initial`.",
        examples=[["dense"]],
    )


class MethodKeys(Section):
    """The keys of `[[method]]` other than the parameters of the method's function."""

    name: str = Field(
        description=f"Method by its name, {OWN_NAME}; the other keys are its parameters.",
        examples=["fedprox"],
    )
    solver: Table = Field(
        default_factory=dict,
        description="Settings that replace those of [solver] for this method.",
        examples=[{"epochs": 10}],
    )


class EvaluationSection(Section):
    """`[evaluation]`: see `fedprox.Evaluation`."""

    every: int = Field(
        default=1,
        description="Rounds between evaluations; the initial and the final model are always "
        "evaluated.",
    )
    rows: int | None = Field(
        default=None,
        description="Training, test and validation rows of each client that an evaluation reads "
        "at most, chosen at random; all if left out.",
        examples=[200],
    )
    clients: int | None = Field(
        default=None,
        description="Clients that an evaluation reads at most, drawn at random; all if left out.",
        examples=[1000],
    )
    model: Evaluated = Field(
        default="server",
        description='Evaluated model: "server" is the model sent out, "cohort" the mean of the '
        "last round's clients, \"clients\" the mean of every client's last model.",
    )
    fine_tune: int | None = Field(
        default=None,
        description="Local steps of each client from the server's model, before that is measured "
        "on the client's own test rows; no fine-tuning if left out.",
        examples=[20],
    )
    gradients: bool = Field(
        default=True, description="Whether gradient variance, B(w) and gamma are measured."
    )
    by_client: bool = Field(
        default=False,
        description="Whether records have the mean, the spread, the worst tenth and the best tenth "
        "of the clients' test accuracies.",
    )
    client_records: bool = Field(
        default=False,
        description="Whether clients.jsonl gets the measures of each client at each evaluation.",
    )


class CohortSection(Section):
    """`[cohort]`: see `fedprox.Cohort`."""

    clients_per_round: int = Field(description="Clients K of a round.", examples=[10])
    sampling: Sampling = Field(
        default="uniform",
        description='How clients are drawn: "uniform" without replacement, "proportional" to their '
        'rows with replacement and a plain mean, or "bernoulli", each with probability K / N.',
    )


class SystemsSection(Section):
    """`[systems]`: see `fedprox.Systems`."""

    stragglers: float = Field(
        default=0.0, description="Fraction of each cohort that cannot finish its work, from 0 to 1."
    )
    deadline: float | None = Field(
        default=None,
        description="Seconds that a round lasts; replaces `stragglers`. A simulation needs "
        "`step_seconds`; without, it is a real clock's in a deployment.",
        examples=[60.0],
    )
    step_seconds: float | list[float] | None = Field(
        default=None,
        description="Seconds of a mini-batch step: the median over the clients, or a list with "
        "each client's own.",
        examples=[0.1],
    )
    spread: float = Field(
        default=0.0,
        description="Standard deviation of the logarithm of the clients' seconds per step, with a "
        "median in `step_seconds`.",
    )
    straggler_epochs: str | None = Field(
        default=None,
        description='How a straggler\'s epochs are drawn: "package.module:function" of a function '
        "without arguments that returns a function of a `Straggler`; uniform on 1 to E if left "
        "out.",
        examples=["my_package.stragglers:epochs"],
    )


class DeploymentSection(Section):
    """`[deployment]`: how `fedprox deploy` waits for nodes; other commands do not read it."""

    nodes: int = Field(
        default=1,
        description="Nodes that must have joined before a deployment begins; not used with "
        "`names`.",
    )
    names: list[str] = Field(
        default_factory=list,
        description="Names of the nodes that a deployment waits for; it takes no others. Any node "
        "may join if left out, and in a trial with `--local`.",
        examples=[["hospital-a", "hospital-b"]],
    )
    patience: float = Field(
        default=300.0,
        description="Seconds that a round waits for a node; it then goes on without the node.",
    )


class SelectionSection(Section):
    """`[selection]`: see `fedprox.Selection`."""

    keep: Keep = Field(
        default="last",
        description='Which model a run keeps: "last", that of the last round, or "best", the '
        "evaluated model with the best value of `measure`.",
    )
    measure: str | None = Field(
        default=None,
        description="Measure by its name in metrics.jsonl; the validation loss if left out.",
        examples=["validation_accuracy"],
    )
    patience: int | None = Field(
        default=None,
        description="Evaluations in a row without a better value after which a run ends; never "
        "if left out.",
        examples=[5],
    )


class FaultsSection(Section):
    """`[faults]`: see `fedprox.Faults`."""

    policy: Policy = Field(
        default="drop",
        description='What happens to an update that is not finite or too large: "drop" it, "fail" '
        'the run, or "clip" one that is too large.',
    )
    norm: float = Field(
        default=10.0,
        description="Largest allowed norm of an update, in units of the median norm of the "
        "round's updates; inf for no bound.",
    )


class AdaptiveClipSection(Section):
    """`adaptive_clip` of `[privacy]`: see `fedprox.AdaptiveClip`."""

    quantile: float = Field(
        default=0.5, description="Quantile of the clients' norms that the norm follows."
    )
    rate: float = Field(default=0.2, description="Learning rate of the norm.")
    count_noise: float = Field(
        default=6.0,
        description="Standard deviation of the noise in the number of clients below the norm.",
    )


class PrivacySection(Section):
    """`[privacy]`: see `fedprox.Privacy`."""

    clip: float = Field(
        description="Largest norm of what a client sends, all arrays together; the first one with "
        "`adaptive_clip`.",
        examples=[1.0],
    )
    epsilon: float | None = Field(
        default=None,
        description="Epsilon of the whole run, from which the noise follows; exactly one of "
        "`epsilon` and `noise_multiplier` is needed.",
        examples=[2.0],
    )
    noise_multiplier: float | None = Field(
        default=None,
        description="Standard deviation of the noise over `clip`, in place of `epsilon`.",
        examples=[1.2],
    )
    delta: float = Field(
        default=1e-5,
        description="Delta of the guarantee, well below one over the number of clients.",
    )
    accountant: Accountant = Field(
        default="pld",
        description='How the rounds\' privacy losses are composed: "pld", privacy loss '
        'distributions, or "rdp", Rényi differential privacy, which proves a larger epsilon. '
        'Cohorts need sampling = "bernoulli"; with "rdp" also "uniform".',
    )
    capacity: int | None = Field(
        default=None,
        description='Largest cohort with "bernoulli" and "pld"; larger ones are cut. About 1.5 '
        "times the mean if left out.",
        examples=[180],
    )
    adaptive_clip: AdaptiveClipSection | None = Field(
        default=None,
        description="How the norm follows the clients' norms; it stays as it is if left out.",
        examples=[{"quantile": 0.5, "rate": 0.2, "count_noise": 6.0}],
    )


class SolverSection(Section):
    """`[solver]`: see `fedprox.Solver`."""

    learning_rate: float | list[float] | Table = Field(
        description="Step size; a list is swept over; a table names a schedule, "
        '{schedule = "cosine_decay_schedule", init_value = 0.1, decay_steps = 200}, which is one '
        f"of optax's with its arguments, {OWN_NAME}.",
        examples=[0.01],
    )
    batch_size: int | Literal["all"] = Field(
        description='Rows of a mini-batch; "all" for all rows of the client.', examples=[10]
    )
    epochs: int | None = Field(
        default=None,
        description="Local epochs E; exactly one of `epochs` and `steps` is needed.",
        examples=[20],
    )
    steps: int | None = Field(
        default=None,
        description="Mini-batch steps of each client, in place of `epochs`.",
        examples=[100],
    )
    gamma: float | None = Field(
        default=None,
        description="Inexactness from 0 to 1 at which a client stops early; `epochs` or `steps` "
        "are then the limit, and `weight_decay` must be 0.",
        examples=[0.1],
    )
    learning_rate_decay: float = Field(
        default=1.0,
        description="Factor of the learning rate after every round, above 0 and at most 1.",
    )
    weight_decay: float = Field(
        default=0.0,
        description="Multiple of the parameters that is added to each gradient, at least 0.",
    )
    clip: float | None = Field(
        default=None,
        description="Largest norm of a gradient; no bound if left out.",
        examples=[10.0],
    )
    optimizer: Any = Field(  # checked together with its options
        default="sgd",
        description=f"Optimizer of the clients: {', '.join(OPTIMIZERS)}; the line searches lbfgs "
        'and line-search-descent need batch_size = "all".',
    )
    optimizer_options: Table = Field(
        default_factory=dict,
        description="Arguments of the optimizer, as optax names them.",
        examples=[{"momentum": 0.9}],
    )


class InitialSection(Section):
    """`initial` as a table: see `fedprox.load_model`."""

    path: str = Field(
        description="Model file or run directory, as seen from here or from the data folder.",
        examples=["runs/a"],
    )
    label: str | None = Field(
        default=None,
        description="Label of the run, where the directory has several.",
        examples=["fedavg"],
    )
    seed: int | None = Field(
        default=None, description="Seed of the run, where the directory has several.", examples=[0]
    )


class TargetSection(Section):
    """`target_metric`: see `fedprox.Target`."""

    name: str = Field(
        description="Measure by its name in metrics.jsonl.", examples=["validation_f1"]
    )
    value: float = Field(description="Value to reach.", examples=[0.8])
    lower_is_better: bool | None = Field(
        default=None,
        description="Whether smaller values are better; the model's metric says so if left out.",
        examples=[False],
    )


class Experiment(Section):
    """An experiment file."""

    rounds: int = Field(description="Rounds T.", examples=[200])
    client_store: Storage = Field(
        default="auto",
        description="Where client state is stored: on the device, in host memory or on disk; "
        '"auto" takes the first that has room.',
    )
    seed: int | list[int] = Field(
        default=0, description="Seed of a run; a list makes one run for each of its seeds."
    )
    target_accuracy: float | None = Field(
        default=None,
        description="Accuracy, above 0 and at most 1, to which the table counts rounds: on "
        "validation rows where there are any, else on test rows. With no target it is the highest "
        "whole per cent that every method reaches.",
        examples=[0.8],
    )
    target_loss: float | None = Field(
        default=None,
        description="Training loss to which the table counts rounds, in place of an accuracy.",
        examples=[0.5],
    )
    target_metric: TargetSection | None = Field(
        default=None,
        description="Any other measure to which the table counts rounds.",
        examples=[{"name": "validation_f1", "value": 0.8}],
    )
    stop_at_target: StopAtTarget = Field(
        default="never",
        description='Whether the rounds of a method end early: where "all", or "any", of its sweep '
        "points have reached the target.",
    )
    initial: str | InitialSection | None = Field(
        default=None,
        description="Parameters that every method and seed begins with: a model file, a run "
        "directory with one model, or a table.",
        examples=[{"path": "runs/a", "label": "fedavg", "seed": 0}],
    )
    client_rows: int | None = Field(
        default=None,
        description="Training, test and validation rows of each client that are used at most, "
        "chosen at random before any are held out; all if left out.",
        examples=[100],
    )
    validation_share: float | None = Field(
        default=None,
        description="Fraction of each client's training rows that is held out for validation: "
        "targets and the best round are then read on these rows, and test rows are only reported.",
        examples=[0.1],
    )
    data: Table = Field(description="The data set and its options.")
    model: Table = Field(
        default_factory=lambda: {"name": "logistic"}, description="The model and its options."
    )
    evaluation: EvaluationSection = Field(
        default_factory=EvaluationSection, description="How records are measured."
    )
    cohort: CohortSection = Field(description="How the clients of a round are chosen.")
    systems: SystemsSection = Field(
        default_factory=SystemsSection, description="Which clients cannot finish their work."
    )
    faults: FaultsSection | None = Field(
        default=None, description="Screening of faulty updates; none if the section is left out."
    )
    privacy: PrivacySection | None = Field(
        default=None,
        description="Differential privacy of clients; none if the section is left out.",
    )
    deployment: DeploymentSection = Field(
        default_factory=DeploymentSection,
        description="How a deployment waits for its nodes; not used by a simulation.",
    )
    selection: SelectionSection = Field(
        default_factory=SelectionSection,
        description="Which model of a run is kept, and when a run without progress ends.",
    )
    solver: SolverSection = Field(description="The local solver.")
    method: list[Table] = Field(
        min_length=1, description="A method and its hyperparameters; the section may be repeated."
    )
    versions: Table = Field(
        default_factory=dict,
        exclude=True,
        description="Versions that the results were made with; written by a run and not read.",
    )

    @property
    def target(self) -> Target | None:
        """The target of a federation without validation rows; None without a target.

        Raises:
            InputError: There are several targets, or one is out of range.
        """
        return self.target_with(validated=False)

    def target_with(self, *, validated: bool) -> Target | None:
        """The target, given whether the federation has validation rows."""
        metric = self.target_metric.model_dump() if self.target_metric else None
        return target_of(self.target_accuracy, self.target_loss, metric, validated=validated)


NAMED: dict[str, type[BaseModel]] = {"data": DataKeys, "model": ModelKeys, "method": MethodKeys}
"""The sections that name a function, whose other keys are its parameters."""
