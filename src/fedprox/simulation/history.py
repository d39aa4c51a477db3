"""What is known of a run: a record for each evaluated round, and the run as a whole."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from fedprox.errors import InputError
from fedprox.model import Params
from fedprox.simulation.target import Target


class Record(NamedTuple):
    """What is known of one run after `round` rounds. The names are those of `metrics.jsonl`.

    Attributes:
        label: Method and those numbers that tell the run from the others of its comparison.
        method: Name of the algorithm.
        numbers: The algorithm's own numbers, such as mu, that led to this model: an adaptive mu is
            that of the last round.
        learning_rate: The local solver's; of a schedule that of the last round, and of round 0 for
            the initial model.
        seed: Seed of the run.
        round: Rounds done; 0 is the initial model.
        train_loss: f(w) over the rows that evaluations read; NaN or infinity once diverged.
        test_accuracy: Over all clients' test rows; where evaluations read some of them, a client
            still counts by all it has. NaN without any.
        gradient_variance: E_k ||grad F_k - grad f||^2; NaN where gradients are not measured.
        dissimilarity: B(w); likewise.
        gamma_mean: Mean gamma_k over the clients that trained in this round, and whose updates
            were not faulty; NaN if there are none, and likewise.
        gamma_max: The greatest of them, gamma^t of Corollary 9.
        solves: Local problems worked on in this round.
        unsolved: Of these, those that came to the solver's limit before its gamma; faulty ones not
            counted.
        clients: Clients of this round's cohort.
        stragglers: Of these, those that could not finish.
        dropped: Of these, those that the method dropped.
        client_steps: Mini-batch steps taken in this round.
        total_steps: Mini-batch steps taken in all rounds so far.
        communication: What all rounds so far have sent, in units of a round of FedAvg.
        empty_rounds: Rounds since the record before in which no client took part, so that the model
            stayed as it was.
        faulty: Faulty updates since the record before; None without screening, see
            `fedprox.Faults`.
        faulty_clients: Names of the clients that sent them, in the federation's order; likewise.
        unmeasured: Clients whose own loss or gradient was not finite, whom training loss, gradient
            variance and B(w) leave out; likewise.
        train_loss_se: Standard error of `train_loss` as an estimate from a sample of clients; None
            where evaluations read all.
        test_accuracy_se: That of `test_accuracy`.
        test_loss: Mean loss over all clients' test rows, likewise; NaN without any. With screening,
            the clients that the training loss leaves out are left out here, too.
        metrics: The model's metrics, `train_NAME` over the training rows and `test_NAME` over the
            test rows of the same clients, each of whom counts by all the rows it has; and
            `validation_NAME` where there are validation rows.
        validation_loss: Mean loss over the validation rows: of the clients, as `test_loss`, or of
            the set that belongs to no client. None without any.
        validation_accuracy: Likewise; NaN for a model without accuracy.
    """

    label: str
    method: str
    numbers: dict[str, float]
    learning_rate: float
    seed: int
    round: int
    train_loss: float
    test_accuracy: float
    gradient_variance: float
    dissimilarity: float
    gamma_mean: float
    gamma_max: float
    solves: int
    unsolved: int
    clients: int
    stragglers: int
    dropped: int
    client_steps: int
    total_steps: int
    communication: int
    empty_rounds: int = 0
    faulty: int | None = None
    faulty_clients: list[str] | None = None
    unmeasured: int | None = None
    train_loss_se: float | None = None
    test_accuracy_se: float | None = None
    test_loss: float = math.nan
    metrics: dict[str, float] = {}  # noqa: RUF012 (of a named tuple)
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    def value(self, measure: str) -> float:
        """A measure by its name in `metrics.jsonl`, such as "test_accuracy" or "test_NAME".

        Raises:
            KeyError: The record has no such measure.
        """
        found: float | None = (
            self.metrics[measure] if measure in self.metrics else self._asdict()[measure]
        )
        if found is None:
            raise KeyError(measure)
        return found

    def __repr__(self) -> str:
        return f"Record({self.label!r}, seed {self.seed}, round {self.round}: {_figures(self)})"


class Progress(NamedTuple):
    """Where a running method stands.

    Attributes:
        label: The method; of a sweep, its name and the number of points that run together.
        seed: The seed.
        round: Rounds done.
        rounds: All rounds.
        loss: The lowest training loss of its points at the last evaluation. None before the first
            evaluation; NaN if all points have diverged.
        phase: What is being done.
    """

    label: str
    seed: int
    round: int
    rounds: int
    loss: float | None = None
    phase: Literal["planning", "compiling", "training"] = "training"


@dataclass
class Run:
    """One method with one set of numbers and one seed, start to end.

    Attributes:
        method: Name of the algorithm.
        numbers: The algorithm's own numbers, such as mu; where mu adapts, the first.
        learning_rate: The local solver's; of a schedule that of round 0.
        seed: Seed of the run.
        label: Method and those numbers that tell it from the others of its comparison.
        history: One record for each evaluated round, the initial model's first.
        params: The final parameters, as NumPy arrays.
        compile_seconds: Time to compile its programs (shared by the points of a sweep).
        run_seconds: Time of its rounds and evaluations (likewise).
        sweep_points: How many points shared that time.
        lane_idle: Share of lane ticks, as planned for the first rounds, in which a lane has no
            client.
        memory: Bytes that its rounds' program has on a device at most, data included.
        evaluated: Which model its records and `params` are of: "server", "cohort" or "clients"; see
            `fedprox.simulate`.
        client_steps: Mini-batch steps over all rounds.
        model_round: The round after which `params` were the model: the last one, or with
            `Selection(keep="best")` the best. None before the run has ended.
        experiment: What its comparison was made of, as `experiment.toml` of a run directory holds
            it; all runs of the comparison share it. Empty before `simulate` returns.
    """

    method: str
    numbers: dict[str, float]
    learning_rate: float
    seed: int
    label: str
    history: list[Record] = field(default_factory=list)
    params: Params = None
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    sweep_points: int = 1
    lane_idle: float = 0.0
    memory: int = 0
    evaluated: str = "server"
    client_steps: int = 0
    model_round: int | None = None
    experiment: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        name = f"Run({self.label!r}, seed {self.seed}"
        if not self.history:
            return f"{name}: no records)"
        best = f", best {_percent(self.best_accuracy)}" if self.best_accuracy >= 0 else ""
        return f"{name}: {self.final.round} rounds, {_figures(self.final)}{best})"

    @property
    def diverged_at(self) -> int | None:
        """First evaluated round whose training loss is not finite, if any."""
        return next((r.round for r in self.history if not math.isfinite(r.train_loss)), None)

    @property
    def final(self) -> Record:
        """The last record."""
        return self.history[-1]

    @property
    def kept(self) -> Record:
        """The record of `params`."""
        return next((r for r in self.history if r.round == self.model_round), self.final)

    @property
    def best_accuracy(self) -> float:
        """Highest test accuracy of any record; NaN without test rows.

        With validation rows it is the test accuracy of the record whose validation accuracy is the
        highest, the first of equals, so that test rows choose nothing.
        """
        validated = [
            (r.validation_accuracy, r.test_accuracy)
            for r in self.history
            if r.validation_accuracy is not None and math.isfinite(r.validation_accuracy)
        ]
        if validated:
            return max(validated, key=itemgetter(0))[1]
        known = [r.test_accuracy for r in self.history if math.isfinite(r.test_accuracy)]
        return max(known, default=math.nan)

    @property
    def validated(self) -> bool:
        """Whether there are validation rows."""
        return any(record.validation_loss is not None for record in self.history)

    @property
    def models_a_round(self) -> float:
        """What a round sends, in units of a round of FedAvg; 0 before there was one."""
        return self.final.communication / self.final.round if self.final.round else 0.0

    @property
    def faulty(self) -> int | None:
        """Faulty updates of all records; None without screening."""
        known = [record.faulty for record in self.history if record.faulty is not None]
        return sum(known) if known else None

    @property
    def empty_rounds(self) -> int:
        """Rounds in which no client took part."""
        return sum(record.empty_rounds for record in self.history)

    def rounds_to(self, target: Target) -> float | None:
        """Rounds until the run reaches a target, None if it never does; see `Target.rounds`.

        Raises:
            InputError: The run's records do not have the target's measure, or which values of it
                are better is not known.
        """
        rounds = [record.round for record in self.history]
        try:
            values = [record.value(target.measure) for record in self.history]
        except KeyError:
            raise InputError(
                f"target.measure = {target.measure!r}; records of {self.label!r} do not have it"
            ) from None
        return target.rounds(rounds, values)

    def models_to(self, target: Target) -> float | None:
        """Models sent until then, relative to one round of FedAvg (Acar et al. 2021, Table 1).

        Communication per round times rounds: SCAFFOLD, which also sends its control variates,
        counts two a round.
        """
        rounds = self.rounds_to(target)
        return None if rounds is None else rounds * self.models_a_round


def _figures(record: Record) -> str:
    """Loss and accuracy for a summary; without accuracy where there is none."""
    loss = f"train loss {record.train_loss:.4g}"
    if math.isnan(record.test_accuracy):
        return loss
    return f"{loss}, test accuracy {_percent(record.test_accuracy)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
