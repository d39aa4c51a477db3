"""A search for hyperparameters: candidates that optuna draws, of which the best are kept."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fedprox.algorithms.base import Algorithm
from fedprox.errors import InputError, Within, check_fields, installing
from fedprox.solver import Solver, as_values

JOURNAL = "optuna.log"
"""Name of the file in a study's folder with the trials of all cells."""

BATCHES = 4
"""Batches of candidates with the sampler "tpe", which learns from those before."""

Point = dict[str, float]
Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Search:
    r"""Candidates for hyperparameters that `optuna` draws, in place of every combination.

    Where a method or the solver has several values, a candidate has one between the least and the
    greatest, log-uniformly if the least is above 0. Each method tries equally many candidates, all
    in one program, and the same again for the same seed. It needs the extra `optuna`.

    With `halving` :math:`\eta`, all candidates are trained for some rounds, and the best
    :math:`1 / \eta` of them anew for :math:`\eta` times as many. One or few are left, and are
    trained for all rounds.

    A study's folder has the trials as `optuna.log`, for `optuna-dashboard`.

    Attributes:
        trials: Candidates of each method.
        halving: :math:`\eta`; None trains all candidates for all rounds.
        sampler: "random", or "tpe" for a quarter of the candidates at a time, which
            `optuna.samplers.TPESampler` draws by the results of those before.
        seed: Seed of the candidates.

    Raises:
        InputError: If a number is below 2, or the sampler is another.

    Example:
        >>> Search(trials=27, halving=3).rungs(27, 90)
        [(27, 3), (9, 10), (3, 30), (1, 90)]

    References:
        Jamieson and Talwalkar, `Non-stochastic Best Arm Identification and Hyperparameter
        Optimization <https://arxiv.org/abs/1502.07943>`_, AISTATS 2016, figure 3.
    """

    trials: Annotated[int, Within(2)] = 16
    halving: Annotated[int, Within(2)] | None = None
    sampler: Literal["random", "tpe"] = "random"
    seed: Annotated[int, Within(0, 2**32 - 1)] = 0

    def __post_init__(self) -> None:
        check_fields("search", self)

    @property
    def batches(self) -> list[int]:
        """How many candidates are drawn together."""
        count = 1 if self.sampler == "random" else min(BATCHES, self.trials)
        return [self.trials // count + (i < self.trials % count) for i in range(count)]

    def rungs(self, candidates: int, rounds: int) -> list[tuple[int, int]]:
        """How many of the candidates of a batch are trained for how many rounds."""
        if self.halving is None:
            return [(candidates, rounds)]
        eta = self.halving
        steps = int(math.log(min(candidates, rounds), eta) + 1e-9)
        return [
            (max(candidates // eta**i, 1), rounds // eta ** (steps - i)) for i in range(steps + 1)
        ]

    def cost(self, rounds: int) -> int:
        """Rounds of programs that a search takes, with one seed."""
        return sum(each for batch in self.batches for _, each in self.rungs(batch, rounds))

    def words(self) -> str:
        """How candidates were drawn, as captions say it."""
        drawn = "at random" if self.sampler == "random" else "by a tree-structured Parzen estimator"
        halved = self.halving and f", of which successive halving kept 1 in {self.halving}"
        return f"drawn {drawn}{halved or ''}"

    def storage(self, out: Path | None) -> Any:
        """Where optuna has the trials: a new file in a study's folder, or memory."""
        optuna = load_optuna()
        if out is None:
            return optuna.storages.InMemoryStorage()
        out.mkdir(parents=True, exist_ok=True)
        (out / JOURNAL).unlink(missing_ok=True)  # all is drawn and told again, from what is trained
        backend = optuna.storages.journal.JournalFileBackend(str(out / JOURNAL))
        return optuna.storages.JournalStorage(backend)

    def best(
        self,
        name: str,
        ranges: Ranges,
        rounds: int,
        storage: Any,
        means: Callable[[int, int, Sequence[Point]], Sequence[float]],
        *,
        lower: bool,
    ) -> Point:
        """The candidate with the best mean after all rounds.

        Args:
            name: The name of the cell.
            ranges: The least and the greatest value of each hyperparameter that is searched.
            rounds: All rounds.
            storage: That of the study's trials.
            means: (number of the batch, rounds, candidates) -> each one's mean, infinite or
                minus infinite if it diverged.
            lower: Whether smaller means are better.
        """
        optuna = load_optuna()
        samplers, states = optuna.samplers, optuna.trial.TrialState
        kind = {"random": samplers.RandomSampler, "tpe": samplers.TPESampler}[self.sampler]
        direction = "minimize" if lower else "maximize"
        study = optuna.create_study(
            storage=storage, sampler=kind(seed=self.seed), study_name=name, direction=direction
        )
        sign, best = 1 if lower else -1, (math.inf, Point())
        for number, batch in enumerate(self.batches):
            drawn = [study.ask() for _ in range(batch)]
            running = [(trial, _drawn(trial, ranges)) for trial in drawn]
            for count, until in self.rungs(batch, rounds):
                # the best so far, which `running` begins with
                for trial, _ in running[count:]:
                    study.tell(trial, state=states.PRUNED)
                running = running[:count]
                found = means(number, until, [point for _, point in running])
                for (trial, _), mean in zip(running, found, strict=True):
                    trial.report(mean, until)
                ranked = sorted(zip(found, running, strict=True), key=lambda pair: sign * pair[0])
                running = [each for _, each in ranked]
            for mean, (trial, _) in ranked:
                known = math.isfinite(mean)
                study.tell(trial, mean if known else None, None if known else states.FAIL)
            if not best[1] or sign * ranked[0][0] < best[0]:
                best = sign * ranked[0][0], ranked[0][1][1]
        return best[1]


def load_optuna() -> Any:
    """The library, which writes nothing on stderr."""
    try:
        import optuna
    except ImportError:
        raise InputError(f"search: no module 'optuna': {installing('optuna')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def ranges_of(method: Algorithm, solver: Solver) -> Ranges:
    """The least and the greatest of each hyperparameter that has several values."""
    values = {name: as_values(name, value) for name, value in method.hparams.items()}
    values["learning_rate"] = solver.rates
    return {name: (min(each), max(each)) for name, each in values.items() if len(each) > 1}


def _drawn(trial: Any, ranges: Ranges) -> Point:
    """A candidate, with the six digits that labels have."""
    point = {}
    for name, (low, high) in ranges.items():
        value = float(f"{trial.suggest_float(name, low, high, log=low > 0):.6g}")
        point[name] = min(max(value, low), high)
    return point
