"""The protocol: the settings that compared methods share.

Cohorts, stragglers and mini-batches depend only on (seed, round, client), so methods with the same
protocol see the same random draws.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.devices.processes import Ownership, ownership_of_processes
from fedprox.devices.programs import jit_once
from fedprox.errors import InputError, require, require_one_of, require_whole, shown
from fedprox.federation import Federation
from fedprox.measures import lower_is_better, measures
from fedprox.model import Model, Params, classes_of, digest, fitted_params
from fedprox.model.variants import rank_of
from fedprox.parts.asynchronous import Asynchronous
from fedprox.parts.attack import Attack
from fedprox.parts.compatible import Case, check
from fedprox.parts.compression import Compression
from fedprox.parts.events import Events, Step, server_steps
from fedprox.parts.faults import Faults
from fedprox.parts.part import Part, Setting
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.accounting import Mechanism
from fedprox.parts.privacy.clients import HiddenClients
from fedprox.parts.privacy.examples import HiddenExamples
from fedprox.parts.privacy.setting import check_delta
from fedprox.parts.robust import Aggregation
from fedprox.parts.systems import Systems
from fedprox.parts.time.pace import Pace, legs_of
from fedprox.parts.time.population import Population
from fedprox.parts.time.timeline import Timeline
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.evaluation import Evaluation
from fedprox.results.record import Record
from fedprox.results.selection import Best, Selection
from fedprox.results.target import StopAtTarget, Target
from fedprox.solver import Solver, name_of
from fedprox.streams import Purpose, check_seed, generator

Storage = Literal["auto", "device", "host", "disk"]
"""Where client state is stored."""


MOST_ROUNDS = 10**7
"""Most rounds of a run."""


LONGEST = 100
"""Characters after which the text of a setting, such as the speeds of all clients, is replaced by a
digest."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings that compared methods share.

    `rounds` and `seeds` are converted from NumPy's integers to Python's, since they are written as
    JSON.

    Attributes:
        federation: The clients and their data.
        model: The model to train.
        solver: The local solver.
        cohort: How each round's clients are sampled.
        systems: Which of these clients are stragglers, and how much work they do.
        faults: How faulty updates are treated; None means no screening.
        rounds: Number of rounds T.
        evaluation: How records are measured; `clients` is None if that is all clients.
        client_store: Where client state is stored.
        seeds: The seeds, one for each run.
        target: The target for `stop_at_target`.
        stop_at_target: When a run that reaches the target ends.
        selection: Which of a run's models is kept, and when a run without progress ends.
        stop: A function of a record that returns whether its run ends; None means never.
        initial: The initial parameters; None means those of `model.init`.
        privacy: What hides the clients or their examples; None for nothing.
        population: The clients' devices, by which the run has a clock; None for no clock.
        asynchronous: How the server steps without waiting for a cohort; None for rounds in which
            it waits.
        aggregation: How the server makes one message of a round's.
        attack: What dishonest clients send; None if all are honest.
        compression: How clients' messages travel in fewer bits; None for in full.

    Raises:
        InputError: If a setting is out of range or does not fit the others.
    """

    federation: Federation
    model: Model
    solver: Solver
    cohort: Cohort
    systems: Systems = Systems()  # noqa: RUF009 (frozen)
    faults: Faults | None = None
    rounds: int
    evaluation: Evaluation = Evaluation()  # noqa: RUF009 (frozen)
    client_store: Storage = "auto"
    seeds: tuple[int, ...]
    target: Target | None = None
    stop_at_target: StopAtTarget = "never"
    initial: Params = None
    selection: Selection = Selection()  # noqa: RUF009 (frozen)
    stop: Callable[[Record], bool] | None = None
    privacy: Privacy | None = None
    population: Population | None = None
    asynchronous: Asynchronous | None = None
    aggregation: Aggregation = Aggregation()  # noqa: RUF009 (frozen)
    attack: Attack | None = None
    compression: Compression | None = None

    def __post_init__(self) -> None:
        check_parts(**{name: getattr(self, name) for name in PARTS})
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
        require(
            self.cohort.sampling == "proportional"
            or self.cohort.clients_per_round <= len(self.federation),
            f"cohort.clients_per_round = {self.cohort.clients_per_round}; the federation has "
            f"{len(self.federation)} clients",
        )
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
        if self.asynchronous is not None:
            require(
                self.asynchronous.buffer <= self.cohort.clients_per_round,
                f"asynchronous.buffer = {self.asynchronous.buffer}; it must be at most the clients "
                f"at work, cohort.clients_per_round = {self.cohort.clients_per_round}",
            )
        check_delta(self.privacy, self.federation.train.sizes)
        check(Case(self))
        if self.aggregation.ranks is not None:
            self.aggregation.check_ranks(len(self.federation), rank_of(self.model.shapes))

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
        hidden = None
        if self.privacy is not None:
            hidden = (HiddenClients if self.hides_clients else HiddenExamples)(self.privacy)
        given = self.aggregation, self.compression, self.evaluation, self.asynchronous
        return tuple(
            part for part in (*given, self.faults, self.attack, hidden) if part is not None
        )

    @property
    def setting(self) -> Setting:
        """What parts read beside their own settings."""
        cohort = self.cohort
        return Setting(
            params=self.model.shapes,
            clients=len(self.federation),
            per_round=cohort.clients_per_round,
            sampling=cohort.sampling,
            rounds=self.rounds,
        )

    def columns(self, clients: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The numbers that parts give clients, by name, each of shape (clients,)."""
        of_parts = [part.columns(clients, len(self.federation)) for part in self.parts]
        return {name: column for columns in of_parts for name, column in columns.items()}

    @property
    def independent(self) -> bool:
        """Whether nothing may depend on which other clients take part in a round."""
        return any(part.independent for part in self.parts)

    def capacity(self, algorithm: Algorithm) -> int | None:
        """Most clients of a round of a method; None for any number."""
        most = [part.capacity(algorithm, self.setting) for part in self.parts]
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
    def waits(self) -> bool:
        """Whether a run waits for each evaluation, since the evaluation may end it."""
        ends = self.stop_at_target != "never" or self.selection.patience is not None
        return ends or self.stop is not None

    def pace(self, algorithm: Algorithm, solver: Solver, seed: int) -> Pace:
        """How long each client takes for the rounds of a method: no time without a population."""
        known = self.population or Population(), self.federation, self.model
        return pace_of(*known, algorithm, solver, seed, self.parts)

    def timeline(self, algorithm: Algorithm, solver: Solver, seed: int) -> Timeline:
        """The clock of a method's rounds with a barrier, which stands without a population."""
        dropout = (self.population or Population()).dropout
        return Timeline(self.pace(algorithm, solver, seed), dropout, len(self.federation), seed)

    def events(
        self,
        algorithm: Algorithm,
        solver: Solver,
        seed: int,
        on_start: Callable[[int, int], None] = lambda client, step: None,  # noqa: ARG005
    ) -> Events:
        """The clients at work on a method without a barrier; `on_start` is as in `Events`."""
        assert self.population is not None
        pace, sizes = self.pace(algorithm, solver, seed), self.federation.train.sizes
        seconds = pace.seconds(np.arange(len(sizes)), solver.steps_for(sizes))
        return Events(pace, seconds, self.population.dropout, seed, on_start)

    def steps(self, algorithm: Algorithm, solver: Solver, seed: int) -> Iterator[Step] | None:
        """The steps of a server that does not wait for a cohort; None if it waits."""
        if self.asynchronous is None:
            return None
        events = self.events(algorithm, solver, seed)
        return server_steps(self.asynchronous, events, self.cohort.clients_per_round)

    def message_bits(self, algorithm: Algorithm) -> int | None:
        """Bits of a client's message of a method; None without compression."""
        return None if algorithm.pooled else self._update_bits

    @cached_property
    def _update_bits(self) -> int | None:
        """Bits of an update, which each record counts."""
        bits = (part.update_bits(self.model.shapes) for part in self.parts)
        return next((each for each in bits if each is not None), None)

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
    def measures(self) -> tuple[str, ...]:
        """The names of all measures that records have."""
        return measures_of(self.model, self.sampled)

    @cached_property
    def by_client(self) -> bool:
        """Whether evaluations return measures client by client.

        A sample of clients needs them for standard errors. If only some of the test or validation
        rows are read, they are needed to weight each client by all of its rows. Otherwise they are
        returned only if records show them.
        """
        held_out = zip(self.measured.parts[1:], self.sampled.parts[1:], strict=True)
        partial = any(len(read) < len(whole) for read, whole in held_out)
        shown_by_client = self.evaluation.by_client or self.evaluation.client_records
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
            algorithm: The algorithm.
            others: What parts read in place of fields of `setting`, on nodes.
        """
        if not algorithm.pooled:
            setting = self.setting._replace(**others)
            for part in self.parts:
                algorithm = part.wrap(algorithm, setting)
        return algorithm

    def mechanism(self, algorithm: Algorithm) -> Mechanism | None:
        """What a run of a method releases about its clients; None unless privacy hides them."""
        if self.privacy is None or not self.hides_clients or algorithm.pooled:
            return None
        return HiddenClients(self.privacy).mechanism(algorithm, self.setting)

    def check(self, algorithm: Algorithm, solver: Solver) -> None:
        """Raise `InputError` if a method cannot follow the protocol."""
        for t in (0, self.rounds - 1):
            solver.factor(t)
        check(Case(self, algorithm, solver))
        deadline = math.inf if self.systems.deadline is None else self.systems.deadline
        everyone = np.arange(len(self.federation))
        for seed in self.seeds:
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
                raise InputError(f"{algorithm.name}: {error}; no client would ever train") from None


PARTS: dict[str, Any] = {
    name: kind
    for name, hint in get_type_hints(Protocol).items()
    for kind in get_args(hint) or (hint,)
    if is_dataclass(kind)
}
"""The types of a protocol's parts."""


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
    received: float = model.size_bytes
    sent = None
    for part in () if algorithm.pooled else parts:
        if (bits := part.download_bits(model.shapes)) is not None:
            received = bits / 8
        if (bits := part.update_bits(model.shapes)) is not None:
            sent = bits / 8
    legs = legs_of(algorithm, algorithm.probed(model.shapes))
    return population.pace(seed, legs, received, steps, sent)


def is_noisy(federation: Federation, model: Model) -> bool:
    """Whether something in mini-batches is random, by the data or the model."""
    return federation.augment is not None or model.train is not None


def measures_of(model: Model, federation: Federation) -> tuple[str, ...]:
    """The names of all measures in records of a model on a federation."""
    return measures(
        model.metrics,
        accuracy=model.correct is not None,
        test=len(federation.test) > 0,
        validation=bool(federation.validation),
    )


def check_parts(**parts: object) -> None:
    """Raise `InputError` unless each part of a protocol has its type in `PARTS`."""
    for name, part in parts.items():
        kind, hint = PARTS[name], get_type_hints(Protocol)[name]
        optional = NoneType in get_args(hint)
        if not (isinstance(part, kind) or (optional and part is None)):
            raise InputError(
                f"{name} = {shown(part)}; it must be a fedprox.{kind.__name__}"
                + " or None" * optional
            )


def _by_name(name: str, value: Any) -> dict[str, str]:
    """A setting as text by its name; a dataclass as the texts of its fields.

    >>> list(_by_name("cohort", Cohort(10)))
    ['cohort.clients_per_round', 'cohort.sampling', 'cohort.over_selection']
    """
    if is_dataclass(value):
        parts = [_by_name(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)]
        return {key: text for part in parts for key, text in part.items()}
    if isinstance(value, np.generic):
        value = value.item()  # the repr of NumPy's numbers includes their type
    text = name_of(value) if callable(value) else repr(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
    return {name: text}


def initial_params(model: Model, seed: int, start: int = 0) -> Params:
    """The model's initial parameters for a seed; those of another start if a method has several."""
    key = jax.random.key(int(generator(seed, Purpose.MODEL, start).integers(2**31)))
    # one program instead of many small ones, but not with given values as its constants
    init = jit_once(model.init) if model.base is None else model.init
    params = init(key)
    # raises if the parameters do not fit in memory; reading them would hang
    return jax.block_until_ready(params)
