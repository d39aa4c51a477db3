"""Runs: one method with one set of hyperparameters and one seed, from start to end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from fedprox.errors import InputError
from fedprox.model import Params
from fedprox.simulation.results.record import Record, figures, percent
from fedprox.simulation.results.target import Target


@dataclass
class Run:
    """One method with one set of numbers and one seed, start to end.

    Attributes:
        method: Name of the algorithm.
        hparams: The algorithm's hyperparameters, such as mu; where mu adapts, the first.
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
    hparams: dict[str, float]
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
        best = f", best {percent(self.best_accuracy)}" if self.best_accuracy >= 0 else ""
        return f"{name}: {self.final.round} rounds, {figures(self.final)}{best})"

    @property
    def diverged_at(self) -> int | None:
        """First evaluated round whose training loss is not finite, if any."""
        return next((r.round for r in self.history if not math.isfinite(r.train_loss)), None)

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
