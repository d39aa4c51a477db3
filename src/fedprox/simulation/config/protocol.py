"""The protocol: everything that compared methods share.

Cohorts, stragglers and mini-batches are drawn from (seed, round, client) alone, so methods with the
same protocol are paired by construction.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import jax
import numpy as np

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.reporting import reporting
from fedprox.errors import InputError, require, require_one_of, require_whole, shown
from fedprox.federation import Federation
from fedprox.model import Model, Params, fitted_params
from fedprox.simulation.config.cohort import Cohort
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.config.systems import Systems
from fedprox.simulation.devices.ownership import Ownership, ownership_of_processes
from fedprox.simulation.results.measure import lower_is_better, measures
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.selection import Best, Selection
from fedprox.simulation.results.target import StopAtTarget, Target
from fedprox.solver import Solver, name_of
from fedprox.streams import Purpose, check_seed, generator

Storage = Literal["auto", "device", "host", "disk"]
"""Where the store lies."""


PARTS = {
    "federation": Federation,
    "model": Model,
    "solver": Solver,
    "cohort": Cohort,
    "systems": Systems,
    "faults": Faults,
    "evaluation": Evaluation,
    "target": Target,
    "selection": Selection,
}
"""What a protocol is made of, by type; faults and target may be None."""


MOST_ROUNDS = 10**7
"""Rounds of a run at most."""


LONGEST = 100
"""Characters of a setting as text, such as the speeds of all clients; of more there is a digest."""


@dataclass(frozen=True)
class Protocol:
    """What compared methods share.

    Attributes:
        federation: The clients and their data.
        model: The model to train.
        solver: The local solver.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about faulty updates; None for no screening.
        rounds: Rounds T.
        evaluation: How records are measured; its `clients` is None where as many are given as
            there are.
        client_store: Where what clients keep lies.
        seeds: Seeds, each a run of its own.
        target: What rounds are counted to, for methods that stop there.
        stop_at_target: When they do.
        selection: Which of a run's models is kept, and when a run without progress ends.
        stop: Says of a record whether its run ends there; None for never.
        initial: The parameters that all begin with; None for those of `model.init`.

    Whole numbers and seeds may be NumPy's; they are Python's here, since records hold them.

    Raises:
        InputError: A number out of range, or a cohort larger than the federation.
    """

    federation: Federation
    model: Model
    solver: Solver
    cohort: Cohort
    systems: Systems
    faults: Faults | None
    rounds: int
    evaluation: Evaluation
    client_store: Storage
    seeds: tuple[int, ...]
    target: Target | None
    stop_at_target: StopAtTarget
    initial: Params = None
    selection: Selection = Selection()  # noqa: RUF009 (frozen)
    stop: Callable[[Record], bool] | None = None

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
            f'stop_at_target = "{self.stop_at_target}"; it needs a target: give target_accuracy or '
            "target_loss",
        )
        if self.target is not None:
            known = self.target.among(self.measures, self.model.metrics)
            object.__setattr__(self, "target", known)
        object.__setattr__(self, "selection", self.selection.among(self.measures))
        require(
            self.stop is None or callable(self.stop),
            f"stop = {shown(self.stop)}; it must be a function of a record, or None",
        )
        self.systems.check(len(self.federation))

    def best(self, history: Sequence[Record] = ()) -> Best:
        """The best value, in the records of a run, of the measure that runs are judged by."""
        measure = self.selection.measure
        assert measure is not None  # `Selection.among` has seen to it
        lower = lower_is_better(measure, self.model.metrics)
        return Best(measure, lower_is_better=lower, history=history)

    @property
    def waits(self) -> bool:
        """Whether runs wait for each evaluation, since it may end them."""
        ends = self.stop_at_target != "never" or self.selection.patience is not None
        return ends or self.stop is not None

    @cached_property
    def ownership(self) -> Ownership:
        """Which process is home to which clients."""
        return ownership_of_processes(self.federation.train.offsets)

    @cached_property
    def sampled(self) -> Federation:
        """The clients that evaluations read: the same for every method and seed."""
        if self.evaluation.clients is None:
            return self.federation
        return self.federation.sample_clients(self.evaluation.clients)

    @cached_property
    def measured(self) -> Federation:
        """The same with the rows that evaluations read."""
        if self.evaluation.rows is None:
            return self.sampled
        return self.sampled.sample(self.evaluation.rows)

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """The names of all measures that records have."""
        return measures_of(self.model, self.sampled)

    @cached_property
    def by_client(self) -> bool:
        """Whether evaluations say what they find client by client.

        Of a sample of clients, for standard errors; and where test or validation rows are left
        out, since a client counts by all it has.
        """
        held_out = zip(self.measured.parts[1:], self.sampled.parts[1:], strict=True)
        some = any(len(read) < len(whole) for read, whole in held_out)
        return some or self.evaluation.clients is not None

    @cached_property
    def measured_ownership(self) -> Ownership:
        """Which process reads which of them: where all are read, their ownership."""
        if self.sampled is self.federation:
            return self.ownership
        return ownership_of_processes(self.sampled.train.offsets)

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on beside methods, model, seeds and rounds, as JSON would hold it.

        For the data stand their numbers of clients and rows.
        """
        others = {"federation", "model", "seeds", "rounds", "client_store", "initial"}
        found: dict[str, Any] = {
            "clients": len(self.federation),
            "training rows": len(self.federation.train),
            "test rows": len(self.federation.test),
        }
        if self.initial is not None:
            found["initial"] = digest(self.initial)
        if self.federation.validation:
            found["validation rows"] = len(self.federation.validation)
        if self.model.metrics:
            found["model.metrics"] = ", ".join(self.model.metrics)
        for each in fields(self):
            if each.name not in others:
                found |= _by_name(each.name, getattr(self, each.name))
        if self.target is not None and self.target.lower_is_better is None:
            del found["target.lower_is_better"]  # older checkpoints do not have it
        return found

    def first_params(self, seed: int) -> Params:
        """w^0 of a seed."""
        return initial_params(self.model, seed) if self.initial is None else self.initial

    def reported(self, algorithm: Algorithm) -> Algorithm:
        """The method with the model that is to be evaluated; central training has only one."""
        return algorithm if algorithm.pooled else reporting(algorithm, self.evaluation.model)

    def screening(self, algorithm: Algorithm) -> Faults | None:
        """What is done about faulty updates; central training has no clients who send any."""
        return None if algorithm.pooled else self.faults

    def check(self, algorithm: Algorithm, solver: Solver) -> None:
        """Raise `InputError` where a method cannot follow the protocol.

        Args:
            algorithm: The method.
            solver: The solver that its clients use.
        """
        for t in (0, self.rounds - 1):
            solver.factor(t)
        require(
            self.evaluation.gradients or solver.gamma is None,
            "evaluation.gradients = false; whether solver.gamma was met could then not be told",
        )
        where, noise = "data", "augmentation"
        if self.federation.augment is None:
            where, noise = "model", "dropout, or other random outputs in training,"
        noisy = is_noisy(self.federation, self.model)
        require(
            not noisy or (solver.gamma is None and not solver.searches_line),
            f"{where}: with {noise} every mini-batch has an objective of its own, so neither "
            "solver.gamma nor an optimizer that searches along a line can be used",
        )
        require(
            algorithm.stragglers == "keep" or solver.gamma is None or self.systems.deadline is None,
            f"{algorithm.name} drops stragglers, and with solver.gamma and systems.deadline who is "
            "late is known only after its work: leave out one of the three",
        )
        require(
            not algorithm.own_gradient or not noisy,
            f"{algorithm.name}: with {noise} mini-batches have other objectives than the "
            f"gradients that its clients read first; use {where} without",
        )
        require(
            algorithm.client_state is None or self.cohort.sampling != "proportional",
            f"{algorithm.name}: its clients keep a state, or their last models are evaluated, and "
            'with cohort.sampling = "proportional" a client may be drawn twice; it must be '
            '"uniform" or "bernoulli"',
        )
        require(
            not algorithm.adapt or algorithm.evaluated is None,
            f"{algorithm.name}: an adaptive mu follows the loss of the model that is sent out; "
            'evaluation.model must be "server"',
        )
        require(
            not algorithm.pooled or self.ownership.processes == 1,
            f"{algorithm.name} has all rows in one place, and there are {self.ownership.processes} "
            "processes; it must be run by one",
        )
        require(
            not algorithm.pooled or not callable(solver.gamma),
            f"{algorithm.name} has no clients of which solver.gamma could be a function; it must "
            "be a number",
        )
        for seed in self.seeds:
            try:
                self.systems.check_participation(
                    seed,
                    self.federation.train.sizes,
                    solver,
                    self.cohort.sizes(len(self.federation)),
                    whole=algorithm.stragglers == "drop" and not algorithm.pooled,
                )
            except InputError as error:
                raise InputError(f"{algorithm.name}: {error}; nobody would ever train") from None


def is_noisy(federation: Federation, model: Model) -> bool:
    """Whether mini-batches need random keys."""
    return federation.augment is not None or model.train is not None


def measures_of(model: Model, federation: Federation) -> tuple[str, ...]:
    """The names of all measures that records have of a model on a federation."""
    return measures(
        model.metrics,
        accuracy=model.correct is not None,
        test=len(federation.test) > 0,
        validation=bool(federation.validation),
    )


def check_parts(**given: object) -> None:
    """Raise `InputError` unless each part of a protocol, by its name, is of its type."""
    for name, part in given.items():
        kind = PARTS[name]
        optional = name in ("faults", "target")
        if not (isinstance(part, kind) or (optional and part is None)):
            raise InputError(
                f"{name} = {shown(part)}; it must be a fedprox.{kind.__name__}"
                + " or None" * optional
            )


def digest(params: Params) -> str:
    """What tells parameters from others, as a few characters."""
    content = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        content.update(np.asarray(leaf, order="C").tobytes())
    return content.hexdigest()[:16]


def _by_name(name: str, value: Any) -> dict[str, str]:
    """A setting as text, or those that it consists of.

    >>> _by_name("cohort", Cohort(10))
    {'cohort.clients_per_round': '10', 'cohort.sampling': "'uniform'"}
    """
    if is_dataclass(value):
        parts = [_by_name(f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)]
        return {key: text for part in parts for key, text in part.items()}
    if isinstance(value, np.generic):
        value = value.item()  # NumPy's number says its type too
    text = name_of(value) if callable(value) else repr(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
    return {name: text}


def initial_params(model: Model, seed: int) -> Params:
    """w^0, a function of the model and the seed."""
    key = jax.random.key(int(generator(seed, Purpose.MODEL).integers(2**31)))
    params = jax.jit(model.init)(key)  # one small program in place of many
    return jax.block_until_ready(params)  # too large, it raises; reading it would hang
