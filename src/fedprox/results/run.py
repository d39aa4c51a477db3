"""Runs: one method with one set of hyperparameters and one seed, from start to end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from fedprox.columns import Columns
from fedprox.errors import InputError, plural
from fedprox.model import Params
from fedprox.results.record import Record, figures, percent
from fedprox.results.target import Target


@dataclass
class Run:
    """One method with one set of hyperparameters and one seed, from start to end.

    Attributes:
        method: Name of the algorithm.
        hparams: The algorithm's hyperparameters, such as mu; an adaptive mu has its initial value.
        learning_rate: Learning rate of the local solver; a schedule has its value in round 0.
        seed: Seed of the run.
        label: The method, and the hyperparameters in which the run differs from the others of its
            comparison.
        history: One record for each evaluated round, beginning with the initial model.
        params: The final parameters, as NumPy arrays.
        models: The models among which clients choose after the last round, such as IFCA's, as NumPy
            arrays with a leading axis of models; None for a method with one model.
        compile_seconds: Seconds to compile the programs, shared by the points of a sweep.
        run_seconds: Seconds of the rounds and evaluations, shared by the points of a sweep.
        callback_seconds: Seconds of callbacks and loggers while the devices had nothing to compute,
            which `run_seconds` leaves out; shared by the points of a sweep.
        sweep_points: Number of sweep points that share these seconds.
        lane_idle: Share of lane ticks in which a lane has no client, as planned for the first
            rounds.
        memory: Peak bytes of the rounds' program on one device, data included.
        evaluated: The model that `history` and `params` describe: "server", "cohort" or "clients",
            see `fedprox.Evaluation`.
        client_steps: Mini-batch steps over all rounds.
        noise_multiplier: Standard deviation of the noise of a release over the clipping norm, given
            or calibrated, see `fedprox.Privacy`; None without privacy.
        model_round: The round after which `params` were the model: the last round, or the best with
            `Selection(keep="best")`. None before the run has ended.
        experiment: The settings of the comparison, as in the `experiment.toml` of a run directory.
            All runs of a comparison share them. Empty before `simulate` returns.
        columns: How rows of a table become what the model reads; None for other data.

    Example:
        >>> run = Run("fedprox", {"mu": 0.1}, learning_rate=0.01, seed=0, label="fedprox mu=0.1")
        >>> run
        Run('fedprox mu=0.1', seed 0: no records)
    """

    method: str
    hparams: dict[str, float]
    learning_rate: float
    seed: int
    label: str
    history: list[Record] = field(default_factory=list)
    params: Params = None
    models: Params = None
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    callback_seconds: float = 0.0
    sweep_points: int = 1
    lane_idle: float = 0.0
    memory: int = 0
    evaluated: str = "server"
    client_steps: int = 0
    noise_multiplier: float | None = None
    model_round: int | None = None
    experiment: Mapping[str, Any] = field(default_factory=dict)
    columns: Columns | None = None

    def __repr__(self) -> str:
        name = f"Run({self.label!r}, seed {self.seed}"
        if not self.history:
            return f"{name}: no records)"
        best = f", best {percent(self.best_accuracy)}" if self.best_accuracy >= 0 else ""
        return f"{name}: {plural(self.final.round, 'round')}, {figures(self.final)}{best})"

    @property
    def diverged_at(self) -> int | None:
        """First round whose training loss was measured and is not finite; None if there is none."""
        return next((r.round for r in self.history if r.diverged), None)

    @property
    def final(self) -> Record:
        """The last record."""
        return self.history[-1]

    @property
    def model_record(self) -> Record:
        """The record of `params`."""
        return next((r for r in self.history if r.round == self.model_round), self.final)

    @property
    def best_accuracy(self) -> float:
        """Highest test accuracy of all records; NaN without test rows.

        With validation rows, the test accuracy of the record with the highest validation accuracy
        (on ties the first), so that test rows choose nothing.
        """
        validated = [
            (r.validation_accuracy, r.test_accuracy)
            for r in self.history
            if r.validation_accuracy is not None and math.isfinite(r.validation_accuracy)
        ]
        if validated:
            return max(validated, key=itemgetter(0))[1]
        accuracies = [r.test_accuracy for r in self.history if math.isfinite(r.test_accuracy)]
        return max(accuracies, default=math.nan)

    @property
    def validated(self) -> bool:
        """Whether there are validation rows."""
        return any(record.validation_loss is not None for record in self.history)

    @property
    def models_a_round(self) -> float:
        """Communication per round, in units of one round of FedAvg; 0 before the first round."""
        return self.final.communication / self.final.round if self.final.round else 0.0

    @property
    def faulty(self) -> int | None:
        """Number of faulty updates in all records; None without screening."""
        counts = [record.faulty for record in self.history if record.faulty is not None]
        return sum(counts) if counts else None

    @property
    def empty_rounds(self) -> int:
        """Number of rounds in which no client took part."""
        return sum(record.empty_rounds for record in self.history)

    def rounds_to(self, target: Target) -> float | None:
        """Rounds until the run reaches a target, see `Target.rounds`; None if it never does.

        Raises:
            InputError: If records do not have the target's measure, or it is not known which of its
                values are better.
        """
        return self._reached(target, [record.round for record in self.history])

    def time_to(self, target: Target) -> float | None:
        """Seconds by the clients' devices until the run reaches a target, as `rounds_to`.

        None if it never does, or there is no clock.
        """
        times = [record.time for record in self.history if record.time is not None]
        return self._reached(target, times) if len(times) == len(self.history) else None

    def _reached(self, target: Target, at: Sequence[float]) -> float | None:
        """Where on an axis the records reach a target."""
        try:
            values = [record.value(target.measure) for record in self.history]
        except InputError as error:
            raise InputError(f"target.measure, {self.label!r}: {error}") from None
        return target.rounds(at, values)

    def models_to(self, target: Target) -> float | None:
        """Communication until the run reaches a target, in units of one round of FedAvg.

        This is the communication per round times `rounds_to`, as in Acar et al. 2021, Table 1.
        SCAFFOLD, which also sends its control variates, counts two per round. None if the run never
        reaches the target.
        """
        rounds = self.rounds_to(target)
        return None if rounds is None else rounds * self.models_a_round
