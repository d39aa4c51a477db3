"""Records: what an evaluation and the rounds before it measured, for each sweep point."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.diagnostics.estimates import mean_error
from fedprox.errors import InputError
from fedprox.model import Params
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.planning.round_work import RoundWork
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

NAMED = 5
"""Faulty clients of a round that an error names at most."""


Faulty = Callable[[], NDArray[np.int64]]
"""Waits for a call of the rounds' program: its faulty updates, rows of (round, point, client)."""


def no_updates() -> NDArray[np.int64]:
    """No faulty update."""
    return np.zeros((0, 3), np.int64)


def faulty_updates(
    first: int, work: Sequence[RoundWork], slots: int, faulty: Any
) -> NDArray[np.int64]:
    """The faulty updates of some rounds, rows of (round, point, client).

    Args:
        first: The first of the rounds.
        work: The work of each.
        slots: Room for a round's jobs; those of a first exchange come after it.
        faulty: See `After.faulty`.
    """
    flags, found = np.asarray(faulty), [no_updates()]
    for r, each in enumerate(work):
        for jobs, begin in ((each.jobs, 0), (each.exchange, slots)):
            points, at = np.nonzero(flags[:, r, begin : begin + len(jobs.client)])
            rounds = np.full(len(at), first + r)
            found.append(np.stack([rounds, points, jobs.client[at]], axis=1))
    return np.concatenate(found)


def all_faulty(calls: Sequence[Faulty]) -> NDArray[np.int64]:
    """Wait for the faulty updates of some calls, rows of (round, point, client)."""
    return np.concatenate([no_updates(), *(find() for find in calls)])


class PendingEvaluation(NamedTuple):
    """An evaluation that may still be under way, and what led to the model it measures.

    Attributes:
        round: Rounds done.
        work: The last round's work.
        hparams: The hyperparameters in force in it.
        measures: What the evaluation finds.
        gamma: gamma_k of the round's jobs (slots, points); None where it is not measured.
        steps: Steps they took (slots, points); None where the plan says it.
        since: Steps of all rounds since the evaluation before, a number or (points,) for each call.
        faulty: The faulty updates of these rounds, for each call; of none without screening.
        empty: How many of these rounds no client took part in.
        model: The model it measures, leaves (points, ...), where the best one is kept.
    """

    round: int
    work: RoundWork
    hparams: Mapping[str, Any]
    measures: Measures
    gamma: Any
    steps: Any
    since: Sequence[Any]
    faulty: Sequence[Faulty]
    empty: int
    model: Params | None


class Counts(NamedTuple):
    """How much evaluations read, and what of it stands for how much.

    Attributes:
        clients: Clients of the federation, where a sample of them is read; None where all are.
        rows: Training rows n_k of the clients that are read, shape (clients read,).
        labels: Test labels that are read of each, likewise; 0 for a model without accuracy.
        stand_for: How many of its test labels each of these stands for, likewise: all of its test
            rows by those that are read.
    """

    clients: int | None
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    stand_for: NDArray[np.float64]

    @classmethod
    def of(cls, protocol: Protocol) -> "Counts":
        """Those of a protocol."""
        some, read = protocol.sampled, protocol.measured.test
        labels = read.labels if protocol.model.correct is not None else np.zeros_like(read.sizes)
        return cls(
            None if protocol.evaluation.clients is None else len(protocol.federation),
            some.train.sizes,
            labels,
            some.test.sizes / np.maximum(read.sizes, 1),
        )

    def accuracy(self, measures: Measures) -> NDArray[np.float64]:
        """Accuracy over all test labels of these clients (points,); NaN without any."""
        tests = float(self.stand_for @ self.labels)
        if measures.by_client is None:
            met = np.asarray(measures.test_correct, float)
        else:
            met = self.stand_for @ np.asarray(measures.by_client.correct)
        return met / tests if tests else np.full(met.shape, math.nan)


def records_of(
    done: PendingEvaluation,
    method: Method,
    runs: Sequence[Run],
    counts: Counts,
    scheduled: float | None = None,
) -> Iterator[Record]:
    """Wait for an evaluation: a record for each point.

    Args:
        done: The evaluation.
        method: The method.
        runs: The points' runs so far.
        counts: How much it reads.
        scheduled: The learning rate of its round where that is a function of the round.

    Raises:
        InputError: An update was faulty, and that is not to be.
    """
    algorithm, protocol, found = method.algorithm, method.protocol, done.measures
    loss, variance, dissimilarity = (
        np.asarray(m, float)
        for m in (found.train_loss, found.gradient_variance, found.dissimilarity)
    )
    accuracy = counts.accuracy(found)
    loss_error, accuracy_error = _errors(found, counts)
    faulty = all_faulty(done.faulty)
    screening = method.faults
    if len(faulty) and screening is not None and screening.policy == "fail":
        raise InputError(_refusal(faulty, runs, protocol.federation.names))
    solves = Solves.of(done, faulty, len(runs))
    adapted = None if algorithm.adapt is None else jax.tree.map(np.asarray, done.hparams)
    for i, run in enumerate(runs):
        since = sum(int(np.broadcast_to(n, len(runs))[i]) for n in done.since)
        yield Record(
            label=run.label,
            method=run.method,
            hparams=run.hparams if adapted is None else _adapted(run.hparams, adapted, i),
            learning_rate=run.learning_rate if scheduled is None else scheduled,
            seed=run.seed,
            round=done.round,
            train_loss=float(loss[i]),
            test_accuracy=float(accuracy[i]),
            gradient_variance=float(variance[i]),
            dissimilarity=float(dissimilarity[i]),
            gamma_mean=float(solves.gamma_mean[i]),
            gamma_max=float(solves.gamma_max[i]),
            solves=len(done.work.jobs.client),
            unsolved=int(solves.unsolved[i]),
            clients=done.work.clients,
            stragglers=done.work.stragglers,
            dropped=done.work.dropped,
            client_steps=int(solves.steps[i]),
            total_steps=run.client_steps + since,
            communication=algorithm.communication * done.round,
            empty_rounds=done.empty,
            **({} if screening is None else _faults(done, faulty, i, protocol.federation.names)),
            test_loss=float(found.test_loss[i]),
            metrics={name: float(values[i]) for name, values in found.metrics.items()},
            train_loss_se=None if loss_error is None else float(loss_error[i]),
            test_accuracy_se=None if accuracy_error is None else float(accuracy_error[i]),
            validation_loss=_at(found.validation_loss, i),
            validation_accuracy=_at(found.validation_accuracy, i),
        )


def _adapted(
    given: Mapping[str, float], now: Mapping[str, NDArray[np.float32]], point: int
) -> dict[str, float]:
    """The hyperparameters of a point: as given, or with six digits where they have adapted."""
    return {
        name: value if np.float32(value) == now[name][point] else float(f"{now[name][point]:.6g}")
        for name, value in given.items()
    }


def _at(values: Any, point: int) -> float | None:
    """A measure at a point; None where there is no such measure."""
    return None if values is None else float(values[point])


Errors = NDArray[np.float64] | None


def _errors(measures: Measures, counts: Counts) -> tuple[Errors, Errors]:
    """Standard errors of loss and accuracy (points,), where a sample of clients was read."""
    if counts.clients is None or measures.by_client is None:
        return None, None
    loss = np.asarray(measures.by_client.loss)
    rows = np.broadcast_to(counts.rows[:, None], loss.shape)
    if measures.unmeasured is not None:
        left_out = np.isnan(loss)
        loss, rows = np.where(left_out, 0.0, loss), np.where(left_out, 0, rows)
    accuracy = np.asarray(measures.by_client.correct) / np.maximum(counts.labels, 1)[:, None]
    return (
        mean_error(loss, rows, counts.clients),
        mean_error(accuracy, counts.stand_for * counts.labels, counts.clients),
    )


def _faults(
    done: PendingEvaluation, faulty: NDArray[np.int64], point: int, names: Sequence[str]
) -> dict[str, Any]:
    """What a record of a point says of faulty clients."""
    clients = faulty[faulty[:, 1] == point, 2]
    return {
        "faulty": len(clients),
        "faulty_clients": [names[k] for k in np.unique(clients)],
        "unmeasured": int(np.asarray(done.measures.unmeasured)[point]),
    }


def _refusal(faulty: NDArray[np.int64], runs: Sequence[Run], names: Sequence[str]) -> str:
    """What there is to say of the first round with a faulty update."""
    t, point, _ = faulty[np.lexsort(faulty.T[1::-1])[0]]
    clients = np.unique(faulty[(faulty[:, 0] == t) & (faulty[:, 1] == point), 2])
    shown = ", ".join(names[k] for k in clients[:NAMED])
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return (
        f"{runs[point].label}, seed {runs[point].seed}: round {t + 1}: faulty update of client "
        f'{shown}{more}, and faults.policy = "fail"; "drop" leaves such updates out'
    )


def best_loss(runs: Sequence[Run]) -> float:
    """The least finite training loss of their last records; NaN if there is none."""
    losses = [run.final.train_loss for run in runs]
    return min(filter(math.isfinite, losses), default=math.nan)


class Solves(NamedTuple):
    """A round's local solves, at each point of the sweep: arrays of shape (points,)."""

    gamma_mean: NDArray[np.float64]
    gamma_max: NDArray[np.float64]
    unsolved: NDArray[np.int64]
    steps: NDArray[np.int64]

    @classmethod
    def of(cls, done: PendingEvaluation, faulty: NDArray[np.int64], points: int) -> "Solves":
        """Wait for an evaluation's gammas and steps.

        Args:
            done: The evaluation.
            faulty: Faulty updates since the one before.
            points: Points of the sweep.
        """
        jobs = done.work.jobs
        count = len(jobs.client)
        planned = np.full(points, int(jobs.steps.sum()))
        if done.gamma is None or not count:
            unknown = np.full(points, math.nan)
            return cls(unknown, unknown, np.zeros(points, int), planned)
        gammas = np.asarray(done.gamma, float)[:count]
        good = np.ones(gammas.shape, bool)
        for _, point, client in faulty[faulty[:, 0] == done.round - 1]:
            good[jobs.client == client, point] = False
        unsolved = np.zeros(points, int)
        if done.steps is not None:
            # measured in another order of summation than the rule's own
            unsolved = (good & ~(gammas <= jobs.gamma[:, None] * (1 + 1e-3))).sum(axis=0)
            planned = np.asarray(done.steps)[:count].sum(axis=0)
        of_good, some = good.sum(axis=0), good.any(axis=0)
        mean = np.where(good, gammas, 0).sum(axis=0) / np.maximum(of_good, 1)
        most = np.where(good, gammas, -math.inf).max(axis=0)
        return cls(
            np.where(some, mean, math.nan), np.where(some, most, math.nan), unsolved, planned
        )
