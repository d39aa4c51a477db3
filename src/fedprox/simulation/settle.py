"""Settling: an evaluation that has come in becomes records, and may end its run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.errors import InputError
from fedprox.simulation.evaluate import Measures
from fedprox.simulation.history import Record, Run
from fedprox.simulation.protocol import Protocol, RoundWork

NAMED = 5
"""Faulty clients of a round that an error names at most."""


class Flagged(NamedTuple):
    """Which updates of some rounds were faulty.

    Attributes:
        first: The first of the rounds.
        work: The work of each.
        slots: Room for a round's jobs; those of a first exchange come after it.
        faulty: See `After.faulty`; None without screening.
    """

    first: int
    work: Sequence[RoundWork]
    slots: int
    faulty: Any

    def clients(self, point: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each round, and the clients whose updates were faulty in it, at a point of the sweep."""
        for r, work in enumerate(self.work):
            flags = np.asarray(self.faulty)[point, r]
            parts = (work.jobs.client, flags), (work.exchange.client, flags[self.slots :])
            yield self.first + r, np.concatenate([k[f[: len(k)]] for k, f in parts])


class Evaluation(NamedTuple):
    """An evaluation that may still be under way, and what led to the model it measures.

    Attributes:
        round: Rounds done.
        work: The last round's work.
        numbers: The numbers in force in it.
        measures: What the evaluation finds.
        gamma: gamma_k of the round's jobs (slots, points); None where it is not measured.
        steps: Steps they took (slots, points); None where the plan says it.
        since: Steps of all rounds since the evaluation before, a number or (points,) for each call.
        flagged: Faulty updates of these rounds, by call.
    """

    round: int
    work: RoundWork
    numbers: Mapping[str, Any]
    measures: Measures
    gamma: Any
    steps: Any
    since: Sequence[Any]
    flagged: Sequence[Flagged]


def records_of(
    done: Evaluation, algorithm: Algorithm, runs: Sequence[Run], tests: int, protocol: Protocol
) -> Iterator[Record]:
    """Wait for an evaluation: a record for each point.

    Args:
        done: The evaluation.
        algorithm: The method.
        runs: The points' runs so far.
        tests: Test labels of all clients that are read; 0 for a model without accuracy.
        protocol: What compared methods share.

    Raises:
        InputError: An update was faulty, and that is not to be.
    """
    loss, correct, variance, dissimilarity = (np.asarray(m, float) for m in done.measures[:4])
    faults = protocol.screening(algorithm)
    if faults is not None and faults.policy == "fail":
        refuse(done, runs, protocol.federation.names)
    solves = Solves.of(done, len(runs))
    mus = np.asarray(done.numbers.get("mu", ()), float)
    for i, run in enumerate(runs):
        since = sum(int(np.broadcast_to(n, len(runs))[i]) for n in done.since)
        yield Record(
            label=run.label,
            method=run.method,
            numbers=run.numbers | ({"mu": float(f"{mus[i]:.6g}")} if algorithm.adapt else {}),
            learning_rate=run.learning_rate,
            seed=run.seed,
            round=done.round,
            train_loss=float(loss[i]),
            test_accuracy=float(correct[i]) / tests if tests else math.nan,
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
            **faults_of(done, i, protocol.federation.names),
        )


def faults_of(done: Evaluation, point: int, names: Sequence[str]) -> dict[str, Any]:
    """What a record of a point says of faulty clients: nothing without screening."""
    if done.measures.unmeasured is None:
        return {}
    rounds = [clients for calls in done.flagged for _, clients in calls.clients(point)]
    faulty = np.concatenate([np.zeros(0, np.int64), *rounds])
    return {
        "faulty": len(faulty),
        "faulty_clients": [names[k] for k in np.unique(faulty)],
        "unmeasured": int(np.asarray(done.measures.unmeasured)[point]),
    }


def refuse(done: Evaluation, runs: Sequence[Run], names: Sequence[str]) -> None:
    """Raise `InputError` if an update was faulty, naming the first round with one."""
    found = [
        (t, run, clients)
        for i, run in enumerate(runs)
        for calls in done.flagged
        for t, clients in calls.clients(i)
        if len(clients)
    ]
    if not found:
        return
    t, run, clients = min(found, key=lambda each: each[0])
    shown = ", ".join(names[k] for k in clients[:NAMED])
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    raise InputError(
        f"{run.label}, seed {run.seed}: in round {t + 1} the update of client {shown}{more} was "
        'faulty, and faults.policy = "fail"; "drop" would leave it out'
    )


def best_loss(runs: Sequence[Run]) -> float:
    """The least finite training loss of their last records; NaN if there is none."""
    losses = [run.final.train_loss for run in runs]
    return min(filter(math.isfinite, losses), default=math.nan)


class Ends:
    """Which points of a sweep have come to an end: they have diverged or reached the target."""

    def __init__(self, protocol: Protocol, points: int) -> None:
        self.target, self.stop, self.points = protocol.target, protocol.stop_at_target, points
        self.diverged, self.reached = set[int](), set[int]()

    def see(self, point: int, record: Record) -> None:
        """Take in a point's next record."""
        if not math.isfinite(record.train_loss):
            self.diverged.add(point)
        if self.target and self.target.met(getattr(record, self.target.measure)):
            self.reached.add(point)

    @property
    def over(self) -> bool:
        """Whether the rounds end early."""
        if self.stop == "any" and self.reached:
            return True
        ended = self.diverged | self.reached if self.stop == "all" else self.diverged
        return len(ended) == self.points


class Solves(NamedTuple):
    """A round's local solves, at each point of the sweep: arrays of shape (points,)."""

    gamma_mean: NDArray[np.float64]
    gamma_max: NDArray[np.float64]
    unsolved: NDArray[np.int64]
    steps: NDArray[np.int64]

    @classmethod
    def of(cls, done: Evaluation, points: int) -> "Solves":
        """Wait for an evaluation's gammas and steps."""
        jobs = done.work.jobs
        count = len(jobs.client)
        planned = np.full(points, int(jobs.steps.sum()))
        if done.gamma is None or not count:
            unknown = np.full(points, math.nan)
            return cls(unknown, unknown, np.zeros(points, int), planned)
        gammas = np.asarray(done.gamma, float)[:count]
        good = np.ones(gammas.shape, bool)
        last = done.flagged[-1]
        if last.faulty is not None:
            good = ~np.asarray(last.faulty)[:, len(last.work) - 1, :count].T
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
