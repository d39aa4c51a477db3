"""The protocol: the settings that compared methods share.

Cohorts, stragglers and mini-batches depend only on (seed, round, client), so methods with the same
protocol see the same random draws.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial, reduce
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.model_state import with_model_state, with_own_layers
from fedprox.algorithms.reporting import Evaluated, reporting
from fedprox.devices.processes import Ownership, ownership_of_processes
from fedprox.devices.programs import jit_once
from fedprox.errors import (
    InputError,
    PositiveInt,
    check_fields,
    require,
    require_one_of,
    require_whole,
    shown,
)
from fedprox.federation import Examples, Federation
from fedprox.measures import lower_is_better, measures
from fedprox.model import (
    Model,
    Params,
    bytes_of,
    classes_of,
    digest,
    fitted_params,
    has_accuracy,
    trainable,
)
from fedprox.parts.asynchronous import Asynchronous
from fedprox.parts.attack import Attack
from fedprox.parts.clock import Devices, Pace, Step, Timeline
from fedprox.parts.compatible import Case, check_case
from fedprox.parts.compression import Compression
from fedprox.parts.faults import Faults
from fedprox.parts.part import Part, Setting
from fedprox.parts.population import Population
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.accounting import Mechanism
from fedprox.parts.privacy.measures import BoundedLoss, NoisedMeasures, evaluations_of
from fedprox.parts.robust import Aggregation
from fedprox.parts.systems import Systems
from fedprox.protocol.cohort import Cohort
from fedprox.results.record import Record
from fedprox.results.target import Best, Selection, StopAtTarget, Target
from fedprox.solver import Solver, name_of
from fedprox.streams import Purpose, check_seed, generator


@dataclass(frozen=True)
class Evaluation(Part):
    """How the records of a run are measured.

    The same rows and clients are read for all methods, seeds and rounds. The initial and the final
    model are always evaluated.

    Attributes:
        every: Rounds between evaluations, at least 1.
        rows: Training, test and validation rows of each client that an evaluation reads at most,
            chosen at random. Losses and accuracies still weight a client by all of its rows. None
            for all rows.
        clients: Clients that an evaluation reads at most, drawn uniformly without replacement.
            Losses and accuracies are then estimates with standard errors; gradient variance and
            B(w) are those of the drawn clients. None for all clients.
        model: The evaluated model. "server": the model that the server sends out. "cohort": the
            mean of the last round's clients. "clients": the mean of every client's last model.
        gradients: Whether gradient variance, B(w) and gamma are measured. Without them an
            evaluation takes about a third of the time, and no client's model is stored after its
            round.
        fine_tune: Steps that each client takes on its own rows from the server's model, before
            that model is measured on its own test rows; None for no fine-tuning. A client with a
            model of its own, as in Ditto, is measured with that.
        by_client: Whether records have the distribution of the clients' test accuracies,
            `client_accuracy_mean` and others, see `fedprox.Record`.
        client_records: Whether the records that callbacks receive hold the measures of each
            client, see `fedprox.ClientRecord`. A run directory then has `clients.jsonl`.

    Raises:
        InputError: If a number is not a whole number of at least 1, or another value is none of the
            allowed ones.

    Example:
        >>> Evaluation(every=5, clients=1000).rows is None  # all rows of these clients
        True
    """

    every: PositiveInt = 1
    rows: PositiveInt | None = None
    clients: PositiveInt | None = None
    model: Evaluated = "server"
    gradients: bool = True
    fine_tune: PositiveInt | None = None
    by_client: bool = False
    client_records: bool = False

    def __post_init__(self) -> None:
        check_fields("evaluation", self)

    @property
    def program_key(self) -> Any:
        """Programs depend on nothing beside the method that `wrap` returns."""
        return None

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method with the model that is evaluated."""
        del setting
        return reporting(method, self.model)

    def of(self, federation: Federation) -> "Evaluation":
        """The same evaluation, with `clients` set to None if it is not fewer than all clients."""
        sampled = self.clients is not None and self.clients < len(federation)
        return self if sampled else replace(self, clients=None)


Storage = Literal["auto", "device", "host", "disk"]
"""Where client state is stored."""


MOST_ROUNDS = 10**7
"""Most rounds of a run."""


LONGEST_SETTING = 100
"""Characters after which the text of a setting, such as the speeds of all clients, is replaced by a
digest."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings that compared methods share.

    Each is an argument of :func:`fedprox.simulate`, which describes it. `rounds` and `seeds` are
    converted from NumPy's integers to Python's, since they are written as JSON;
    `evaluation.clients` is None if it is all clients.

    Raises:
        InputError: If a setting is out of range or does not fit the others.
    """

    federation: Federation
    model: Model
    solver: Solver
    cohort: Cohort
    rounds: int
    seeds: tuple[int, ...]
    initial: Params = None
    client_store: Storage = "auto"
    target: Target | None = None
    stop_at_target: StopAtTarget = "never"
    selection: Selection = Selection()  # noqa: RUF009 (frozen)
    stop: Callable[[Record], bool] | None = None
    systems: Systems = Systems()  # noqa: RUF009 (frozen)
    population: Population | None = None
    # parts, in the order in which they change a method
    aggregation: Aggregation = Aggregation()  # noqa: RUF009 (frozen)
    compression: Compression | None = None
    evaluation: Evaluation = Evaluation()
    asynchronous: Asynchronous | None = None
    faults: Faults | None = None
    attack: Attack | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        check_objects(**{name: getattr(self, name) for name in OBJECTS})
        require_whole("rounds", self.rounds, most=MOST_ROUNDS)
        object.__setattr__(self, "rounds", int(self.rounds))
        object.__setattr__(self, "evaluation", self.evaluation.of(self.federation))
        require_one_of("client_store", self.client_store, get_args(Storage))
        require(len(self.seeds) > 0, "seed: none given; at least one is needed")
        for seed in self.seeds:
            check_seed(seed)
            require(self.seeds.count(seed) == 1, f"seed: {seed} is given more than once")
        object.__setattr__(self, "seeds", tuple(map(int, self.seeds)))
        if self.initial is not None:
            object.__setattr__(self, "initial", fitted_params("initial", self.model, self.initial))
        self.cohort.check(len(self.federation))
        require_one_of("stop_at_target", self.stop_at_target, get_args(StopAtTarget))
        require(
            self.stop_at_target == "never" or self.target is not None,
            f'stop_at_target = "{self.stop_at_target}"; it needs a target: a fedprox.Target, '
            "in an experiment file target_accuracy, target_loss or target_metric",
        )
        if self.target is not None:
            target = self.target.among(self.measures, self.model.metrics)
            object.__setattr__(self, "target", target)
        object.__setattr__(self, "selection", self.selection.among(self.measures))
        require(
            self.stop is None or callable(self.stop),
            f"stop = {shown(self.stop)}; it must be a function of a record, or None",
        )
        if self.population is not None:
            self.population.check(len(self.federation))
        check_case(Case(self))
        for part in self.parts:
            part.check(self.setting, self.federation.train.sizes)

    def plain(self, clients_per_round: int) -> "Protocol":
        """The same data, model and solver in rounds of so many clients, with no other setting.

        It is made anew: a copy would keep what a list of settings to be reset forgets.
        """
        return Protocol(
            federation=self.federation,
            model=self.model,
            solver=self.solver,
            cohort=Cohort(clients_per_round),
            rounds=self.rounds,
            evaluation=Evaluation(gradients=False),
            client_store=self.client_store,
            seeds=self.seeds,
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order in which they change a method."""
        given = (getattr(self, each.name) for each in fields(self))
        return tuple(part for part in given if isinstance(part, Part))

    @cached_property
    def setting(self) -> Setting:
        """The settings of the run that parts read beside their own."""
        cohort = self.cohort
        return Setting(
            params=trainable(self.model.shapes),
            clients=len(self.federation),
            per_round=cohort.clients_per_round,
            sampling=cohort.sampling,
            rounds=self.rounds,
            min_separation=cohort.min_separation,
            evaluations=self.evaluations,
        )

    def columns(self, clients: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The numbers that parts give clients, by name, each of shape (clients,)."""
        of_parts = [part.columns(clients, self.federation) for part in self.parts]
        return {name: column for columns in of_parts for name, column in columns.items()}

    @property
    def independent(self) -> bool:
        """Whether nothing may depend on which other clients take part in a round."""
        return any(part.independent for part in self.parts)

    def capacity(self, algorithm: Algorithm) -> int | None:
        """Most clients of a round of a method; None for any number."""
        most = [part.most_clients(algorithm, self.setting) for part in self.parts]
        return min((each for each in most if each is not None), default=None)

    @property
    def samples_rows(self) -> bool:
        """Whether each row of a client is drawn on its own in each local step."""
        return any(part.samples_rows for part in self.parts)

    @property
    def noisy(self) -> bool:
        """Whether mini-batches need random keys."""
        return self.samples_rows or is_noisy(self.federation, self.model)

    @property
    def hides_clients(self) -> bool:
        """Whether clients' messages are clipped, and noise is added to their sum."""
        return self.privacy is not None and self.privacy.unit == "client"

    @property
    def hides_examples(self) -> bool:
        """Whether the gradients of examples are clipped, and noise is added in local steps."""
        return self.privacy is not None and self.privacy.unit == "example"

    def best(self, history: Sequence[Record] = ()) -> Best:
        """The best value of the selection's measure in the records of a run."""
        measure = self.selection.measure
        assert measure is not None  # set by `Selection.among`
        lower = lower_is_better(measure, self.model.metrics)
        return Best(measure, lower_is_better=lower, history=history)

    def is_recorded(self, done: int) -> bool:
        """Whether the model is evaluated after so many rounds."""
        return done == self.rounds or done % self.evaluation.every == 0

    @property
    def evaluations(self) -> int:
        """Evaluations of a run."""
        return evaluations_of(self.rounds, self.evaluation.every, self.rounds)

    @property
    def noised(self) -> NoisedMeasures | None:
        """The noise of measures; None for measures as they are."""
        return None if self.privacy is None else self.privacy.measures

    @property
    def clips_measures(self) -> bool:
        """Whether measures are clipped client by client, or row by row, and then get noise."""
        return self.noised is not None

    @cached_property
    def measured_model(self) -> Model:
        """The model with the loss that evaluations read."""
        noised, model = self.noised, self.model
        if noised is None or not self.hides_examples:
            return model
        loss: Any = BoundedLoss(model.loss, noised.loss_bound)
        return replace(model, loss=loss)

    @property
    def waits(self) -> bool:
        """Whether a run waits for each evaluation, since the evaluation may end it."""
        ends = self.stop_at_target != "never" or self.selection.patience is not None
        return ends or self.stop is not None

    def pace(self, algorithm: Algorithm, solver: Solver, seed: int) -> Pace:
        """How long each client takes for the rounds of a method: no time without a population."""
        if self.population is None:
            return Pace.instant(len(self.federation))
        known = self.population, self.federation, self.model
        return pace_of(*known, algorithm, solver, seed, self.parts)

    def timeline(self, algorithm: Algorithm, solver: Solver, seed: int) -> Timeline:
        """The clock of a method's rounds with a barrier, which stands without a population."""
        dropout = 0.0 if self.population is None else self.population.dropout
        return Timeline(self.pace(algorithm, solver, seed), dropout, len(self.federation), seed)

    def devices(self, algorithm: Algorithm, solver: Solver, seed: int) -> Devices:
        """The devices of a population, which do the clients' whole work of a method."""
        assert self.population is not None
        pace, sizes = self.pace(algorithm, solver, seed), self.federation.train.sizes
        seconds = pace.seconds(np.arange(len(sizes)), solver.steps_for(sizes))
        return Devices(pace, seconds, self.population.dropout, seed)

    def steps(self, algorithm: Algorithm, solver: Solver, seed: int) -> Iterator[Step] | None:
        """The steps of a server that does not wait for a cohort; None if it waits."""
        devices = partial(self.devices, algorithm, solver, seed)
        found = (part.steps(devices, self.cohort.clients_per_round) for part in self.parts)
        return next((steps for steps in found if steps is not None), None)

    def message_bits(self, algorithm: Algorithm) -> int:
        """Bits of a client's message of a method, which each record counts; 0 if not counted."""
        if algorithm.pooled or not self._update_bits:
            return 0
        return self._update_bits + algorithm.moves_model_state * self._state_bits

    @cached_property
    def _update_bits(self) -> int:
        params = trainable(self.model.shapes)
        return max((part.update_bits(params) for part in self.parts), default=0)

    @cached_property
    def _state_bits(self) -> int:
        """Bits of the model's state, which travels in full."""
        return 8 * self.model.size_bytes - 8 * bytes_of(trainable(self.model.shapes))

    @cached_property
    def ownership(self) -> Ownership:
        """Which process owns which clients."""
        return ownership_of_processes(self.federation.train.offsets)

    @cached_property
    def sampled(self) -> Federation:
        """The clients that evaluations read: the same for every method and seed."""
        if self.evaluation.clients is None:
            return self.federation
        return self.federation.sample_clients(self.evaluation.clients)

    @cached_property
    def measured(self) -> Federation:
        """The clients that evaluations read, with the rows that evaluations read."""
        if self.evaluation.rows is None:
            return self.sampled
        return self.sampled.sample(self.evaluation.rows)

    @cached_property
    def test_labels(self) -> NDArray[np.int64]:
        """Test labels that evaluations read of each client; 0 for a model without accuracy."""
        read = self.measured.test
        known = has_accuracy(self.model, read.y.dtype)
        return read.labels if known else np.zeros_like(read.sizes)

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """The names of all measures that records have."""
        known = measures_of(self.model, self.sampled)
        if self.noised is None:
            return known
        of_clients, public = self.noised.among(known), tuple[str, ...]()
        if isinstance(self.sampled.validation, Examples):
            public = tuple(name for name in known if name.startswith("validation_"))
        return (*(name for name in of_clients if name not in public), *public)

    @cached_property
    def by_client(self) -> bool:
        """Whether evaluations return measures client by client.

        A sample of clients needs them for standard errors. If only some of the test or validation
        rows are read, they are needed to weight each client by all of its rows. Otherwise they are
        returned only if records show them, or they are to be clipped.
        """
        held_out = zip(self.measured.parts[1:], self.sampled.parts[1:], strict=True)
        partial = any(len(read) < len(whole) for read, whole in held_out)
        shown_by_client = self.evaluation.by_client or self.evaluation.client_records
        shown_by_client = shown_by_client or self.noised is not None
        return partial or self.evaluation.clients is not None or shown_by_client

    @cached_property
    def measured_ownership(self) -> Ownership:
        """Which process reads which of the clients that evaluations read."""
        if self.sampled is self.federation:
            return self.ownership
        return ownership_of_processes(self.sampled.train.offsets)

    @cached_property
    def classes(self) -> int:
        """How many classes the model tells apart."""
        return classes_of(self.model, self.federation)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that results depend on, except methods, model, seeds and rounds, for JSON.

        The data are represented by their numbers of clients and rows.
        """
        others = {"federation", "model", "seeds", "rounds", "client_store", "initial"}
        settings: dict[str, Any] = {
            "clients": len(self.federation),
            "training rows": len(self.federation.train),
            "test rows": len(self.federation.test),
        }
        if self.initial is not None:
            settings["initial"] = digest(self.initial)
        if self.model.base is not None:
            settings["model.base"] = digest(self.model.base)
        if self.hides_clients and self.privacy is not None and self.privacy.correlates:
            settings |= _by_name("privacy.strategy", self.privacy.strategy(self.setting))
        if self.federation.validation:
            settings["validation rows"] = len(self.federation.validation)
        if self.model.metrics:
            settings["model.metrics"] = ", ".join(self.model.metrics)
        for each in fields(self):
            if each.name not in others:
                settings |= _by_name(each.name, getattr(self, each.name))
        return settings

    @property
    def models_a_round(self) -> float:
        """Models sent to clients in a round, in units of a round of FedAvg with a barrier."""
        per_round = self.cohort.clients_per_round
        return math.prod(part.models_a_round(per_round) for part in self.parts)

    def has_clock(self, algorithm: Algorithm) -> bool:
        """Whether the records of a method say when its rounds end."""
        return self.population is not None and not algorithm.pooled

    def first_params(self, seed: int) -> Params:
        """The initial parameters w^0 of a seed."""
        return initial_params(self.model, seed) if self.initial is None else self.initial

    def starts(self, algorithm: Algorithm, seed: int, first: Params) -> list[Params]:
        """The initial models of a method: w^0, and others that the model draws."""
        more = [
            initial_params(self.model, seed, start) for start in range(1, algorithm.server.starts)
        ]
        for other in more:
            pairs = zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True)
            require(
                any(bool((a != b).any()) for a, b in pairs),
                f"{algorithm.name}: it begins with {algorithm.server.starts} random models, and "
                "the initial parameters of this model are not random",
            )
        return [first, *more]

    def reported(self, algorithm: Algorithm, **others: Any) -> Algorithm:
        """The algorithm as it is trained, with all parts; central training has only one model.

        Args:
            algorithm: The algorithm to train.
            others: Replacements of fields of `setting`, on nodes.
        """
        algorithm = self.fitted(algorithm)
        parts = () if algorithm.pooled else self.parts
        setting = self.setting._replace(**others)
        late = [part for part in parts if part.several_starts]  # from states with the model's

        def wrapped(algorithm: Algorithm, parts: Sequence[Part]) -> Algorithm:
            return reduce(lambda method, part: part.wrap(method, setting), parts, algorithm)

        algorithm = wrapped(algorithm, [part for part in parts if part not in late])
        if self.model.state:
            algorithm = with_model_state(algorithm, self.model.shapes)
        return wrapped(algorithm, late)

    def fitted(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with what it says of the model's state, for this model.

        Raises:
            InputError: If it says something of it, and the model has none.
        """
        kind = algorithm.model_state
        require(
            kind == "mean" or self.model.state,
            f'{algorithm.name}: model_state = "{kind}"; the model has no state: use one with, such '
            "as running statistics of batch normalization, or leave it out",
        )
        return with_own_layers(algorithm, self.model.shapes)

    def mechanism(self, algorithm: Algorithm) -> Mechanism | None:
        """The mechanism of a method's run, for its clients; None unless privacy hides them."""
        if self.privacy is None or not self.hides_clients or algorithm.pooled:
            return None
        return self.privacy.of_run(algorithm, self.setting)

    def check(self, algorithm: Algorithm, solver: Solver) -> None:
        """Raise `InputError` if a method cannot follow the protocol."""
        for t in (0, self.rounds - 1):
            solver.factor(t)
        algorithm = self.fitted(algorithm)
        check_case(Case(self, algorithm, solver))
        deadline = self.systems.deadline
        in_time: NDArray[np.float64] | float = math.inf
        for seed in self.seeds:
            if deadline is not None:
                everyone = np.arange(len(self.federation))
                in_time = self.pace(algorithm, solver, seed).in_time(everyone, deadline)
            try:
                self.systems.check_participation(
                    self.federation.train.sizes,
                    solver,
                    self.cohort.sizes(len(self.federation)),
                    whole=algorithm.stragglers == "drop" and not algorithm.pooled,
                    in_time=in_time,
                    independent=self.hides_clients,
                )
            except InputError as error:
                raise InputError(f"{algorithm.name}: {error}") from None


_HINTS = get_type_hints(Protocol)

OBJECTS: dict[str, Any] = {
    name: kind
    for name, hint in _HINTS.items()
    for kind in get_args(hint) or (hint,)
    if is_dataclass(kind)
}
"""The types of the settings that are objects, by name."""


def pace_of(
    population: Population,
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    solver: Solver,
    seed: int,
    parts: Sequence[Part],
) -> Pace:
    """How long each client takes for the rounds of a method."""
    steps = solver.steps_per_epoch(federation.train.sizes)
    exchanges = 1 if algorithm.first.exchange is None else 2
    models = algorithm.communication / exchanges  # of an exchange
    parts = () if algorithm.pooled else parts
    params = trainable(model.shapes)
    received = max((part.download_bits(params) for part in parts), default=0) / 8
    sent = max((part.update_bits(params) for part in parts), default=0) / 8
    state = model.size_bytes - bytes_of(params)
    down = models * ((received or bytes_of(params)) + state)
    up = (sent or models * bytes_of(params)) + state * algorithm.moves_model_state
    return population.pace(seed, algorithm, steps, down, up, algorithm.probed(model.shapes))


def is_noisy(federation: Federation, model: Model) -> bool:
    """Whether something in mini-batches is random, by the data or the model."""
    return federation.augment is not None or model.train is not None


def measures_of(model: Model, federation: Federation) -> tuple[str, ...]:
    """The names of all measures in records of a model on a federation."""
    return measures(
        model.metrics,
        accuracy=has_accuracy(model, federation.train.y.dtype),
        test=len(federation.test) > 0,
        validation=bool(federation.validation),
    )


def check_objects(**given: object) -> None:
    """Raise `InputError` unless each setting has its type in `OBJECTS`."""
    for name, part in given.items():
        kind, optional = OBJECTS[name], NoneType in get_args(_HINTS[name])
        if not (isinstance(part, kind) or (optional and part is None)):
            raise InputError(
                f"{name} = {shown(part)}; it must be a fedprox.{kind.__name__}"
                + " or None" * optional
            )


def _by_name(name: str, value: Any) -> dict[str, str]:
    """A setting as text by its name; a dataclass as the texts of its fields.

    >>> list(_by_name("cohort", Cohort(10)))
    ['cohort.clients_per_round', 'cohort.sampling', 'cohort.over_selection',
     'cohort.min_separation']
    """
    if is_dataclass(value):
        parts = [_by_name(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)]
        return {key: text for part in parts for key, text in part.items()}
    if isinstance(value, np.generic):
        value = value.item()  # the repr of NumPy's numbers includes their type
    text = name_of(value) if callable(value) else repr(value)
    if len(text) > LONGEST_SETTING:
        text = f"{text[:LONGEST_SETTING]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
    return {name: text}


def initial_params(model: Model, seed: int, start: int = 0) -> Params:
    """The model's initial parameters for a seed; those of another start if a method has several."""
    key = jax.random.key(int(generator(seed, Purpose.MODEL, start).integers(2**31)))
    # one program instead of many small ones, but not with given values as its constants
    init = jit_once(model.init) if model.base is None else model.init
    params = init(key)
    # raises if the parameters do not fit in memory; reading them would hang
    return jax.block_until_ready(params)
