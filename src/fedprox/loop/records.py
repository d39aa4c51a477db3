"""Making records from an evaluation and the rounds before it, for each sweep point."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.engine.compiled.evaluation import Measures
from fedprox.loop.execution import Done, Measuring, RunState
from fedprox.measures import MEASURES, fairness, mean_error
from fedprox.precision import real_type
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.results.record import ClientRecord, Record
from fedprox.results.run import Run
from fedprox.solver import Solver

ALWAYS = {name: each.missing for name, each in MEASURES.items() if each.missing is not None}
"""The measures that each record has, as they are before they are measured."""

PLACES = {name: place for place, name in enumerate(MEASURES)}
"""The places of measures in the columns of files."""


class PendingEvaluation(NamedTuple):
    """An evaluation that may still be running.

    Attributes:
        now: The evaluated state, without its arrays; `best` is the model itself if models are
            compared.
        measuring: Waits for the evaluation.
        own: The measures of clients' own models at each sweep point, by name.
    """

    now: RunState
    measuring: Measuring
    own: Mapping[str, Sequence[float]]

    @property
    def measures(self) -> Measures:
        """Wait for the measures."""
        return self.measuring()[0]

    @property
    def since(self) -> Done:
        """Wait for what rounds and the evaluation did since the previous record."""
        return self.now.since + self.measuring()[1]


def records_of(
    done: PendingEvaluation, method: Method, runs: Sequence[Run], epsilon: float | None = None
) -> Iterator[Record]:
    """Wait for an evaluation, and make a record for each sweep point."""
    algorithm, protocol, since = method.algorithm, method.protocol, done.since
    points, faulty, work = len(runs), since.all_faulty(), since.work
    at_points: dict[str, Any] = {
        **{name: _mean(terms) for name, terms in done.measures.held_out.items()},
        **{
            name: np.asarray(values)
            for name, values in done.measures._asdict().items()
            if name in PLACES and values is not None
        },
        **_errors(done.measures, protocol),
        **_solves(since, faulty, done.now.round, points),
        **done.own,
    }
    if method.reduction.screen:
        labels = [f"{run.label}, seed {run.seed}" for run in runs]
        found = method.reduction.screen.measures_of(faulty, labels, protocol.federation.names)
        at_points |= {} if protocol.clips_measures else found  # which has names of clients
    if protocol.evaluation.by_client:
        fair = [fairness(each)._asdict() for _, each in _by_client(done.measures, protocol)]
        at_points |= {f"client_accuracy_{key}": [each[key] for each in fair] for key in fair[0]}
    same = {
        "solves": len(work.jobs.client),
        "clients": work.clients,
        "stragglers": work.stragglers,
        "dropped": work.dropped,
        "communication": algorithm.communication * done.now.round * protocol.models_a_round,
        "time": work.time if protocol.has_clock(algorithm) else None,
        "empty_rounds": since.empty,
        "epsilon": epsilon,
        **since.network,
    }
    if since.network:
        measured = done.measures.given is not False
        same |= {"nodes": len(since.network["nodes"]), "measured": measured}
    for part in method.parts:
        same |= part.recorded(work.jobs.columns)
    taken, bits = since.steps_at(points), protocol.message_bits(algorithm)
    metrics = {name: np.asarray(each) for name, each in done.measures.metrics.items()}
    always = [f"{part}_{name}" for part in ("train", "test") for name in protocol.model.metrics]
    hparams = {name: np.asarray(each) for name, each in done.now.hparams.items()}
    for i, run in enumerate(runs):
        measures = ALWAYS | same | {name: values[i] for name, values in at_points.items()}
        measures["total_steps"] = run.client_steps + int(taken[i])
        if bits:
            before = run.history[-1].bits_up if run.history else 0
            measures["bits_up"] = (before or 0) + bits * since.messages
        order = sorted(measures, key=PLACES.__getitem__)
        yield Record(
            label=run.label,
            method=run.method,
            hparams=_plain(_adapted(run.hparams, hparams, i)),
            learning_rate=_rate(run, method.solver, done.now.round, hparams["learning_rate"][i]),
            seed=run.seed,
            round=done.now.round,
            measures={n: _plain(measures[n]) for n in order if measures[n] is not None},
            metrics=dict.fromkeys(always, math.nan)
            | {name: float(values[i]) for name, values in metrics.items()},
        )


def _plain(value: Any) -> Any:
    """A value of a record with Python's types, as in a checkpoint, in place of NumPy's."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _rate(run: Run, solver: Solver, done: int, now: Any) -> float:
    """The learning rate of a round; the shortest decimal if a user changed it."""
    if callable(solver.schedule):
        return solver.factor(max(done - 1, 0))
    initial = run.learning_rate
    return float(initial if real_type().type(initial) == now else str(now))


def _adapted(
    initial: Mapping[str, float], now: Mapping[str, NDArray[Any]], point: int
) -> dict[str, float]:
    """The current hyperparameters of a sweep point, with six digits if they have changed."""
    exact = real_type().type
    return {
        name: value if exact(value) == now[name][point] else float(f"{now[name][point]:.6g}")
        for name, value in initial.items()
    }


def _mean(terms: Mapping[str, Any]) -> NDArray[np.float64]:
    """The mean of a measure (points,), from its sum and number of rows; NaN without rows."""
    summed, rows = (np.asarray(terms[name], np.float64) for name in ("sum", "rows"))
    with np.errstate(invalid="ignore"):
        return summed / rows


def _by_client(
    measures: Measures, protocol: Protocol
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Loss and accuracy of each client, (clients,), for each sweep point."""
    loss, correct = _loss_and_correct(measures)
    labels = protocol.test_labels[:, None]
    accuracy = np.where(labels > 0, correct / np.maximum(labels, 1), math.nan)
    return list(zip(loss.T, accuracy.T, strict=True))


def _loss_and_correct(measures: Measures) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Loss and correct labels of each client, (clients, points); 0 without test rows."""
    assert measures.by_client
    loss, correct = np.asarray(measures.by_client.loss, np.float64), measures.by_client.correct
    return loss, np.zeros(loss.shape) if correct is None else np.asarray(correct)


def _errors(measures: Measures, protocol: Protocol) -> dict[str, NDArray[np.float64]]:
    """Standard errors of loss and accuracy, (points,); none if all clients were read."""
    if not protocol.evaluation.clients or not measures.by_client:
        return {}
    loss, correct = _loss_and_correct(measures)
    sampled, read, clients = protocol.sampled, protocol.measured.test, len(protocol.federation)
    left_out = np.isnan(loss) & (measures.unmeasured is not None)
    rows = np.where(left_out, 0, sampled.train.sizes[:, None])
    accuracy = correct / np.maximum(protocol.test_labels, 1)[:, None]
    stand_for = sampled.test.sizes / np.maximum(read.sizes, 1) * protocol.test_labels
    return {
        "train_loss_se": mean_error(np.where(left_out, 0.0, loss), rows, clients),
        "test_accuracy_se": mean_error(accuracy, stand_for, clients),
    }


def best_loss(runs: Sequence[Run]) -> float | None:
    """The lowest finite training loss that was measured last; NaN if none is finite.

    None before a loss was measured.
    """
    last = (
        next(
            (each.train_loss for each in reversed(run.history) if each.measured is not False), None
        )
        for run in runs
    )
    known = [loss for loss in last if loss is not None]
    return min(filter(math.isfinite, known), default=math.nan) if known else None


def _solves(
    since: Done, faulty: NDArray[np.int64], done: int, points: int
) -> dict[str, NDArray[Any]]:
    """The fields of a record that describe the local problems of round `done`, (points,)."""
    jobs, count = since.work.jobs, len(since.work.jobs.client)
    unknown = np.full(points, math.nan)
    found: dict[str, NDArray[Any]] = {
        "gamma_mean": unknown,
        "gamma_max": unknown,
        "unsolved": np.zeros(points, int),
        "client_steps": np.full(points, int(jobs.steps.sum())),
    }
    if since.gamma is None or not count:
        return found
    gammas = np.asarray(since.gamma, float)[:count]
    sound = np.ones(gammas.shape, bool)
    for _, point, client in faulty[faulty[:, 0] == done - 1]:
        sound[jobs.client == client, point] = False
    if since.taken is not None:
        # a tolerance, since the stop rule sums in another order
        unsolved = sound & ~(gammas <= jobs.gamma[:, None] * (1 + 1e-3))
        found["unsolved"] = unsolved.sum(axis=0)
        found["client_steps"] = np.asarray(since.taken)[:count].sum(axis=0)
    sound_count, any_sound = sound.sum(axis=0), sound.any(axis=0)
    mean = np.where(sound, gammas, 0).sum(axis=0) / np.maximum(sound_count, 1)
    largest = np.where(sound, gammas, -math.inf).max(axis=0)
    found["gamma_mean"] = np.where(any_sound, mean, math.nan)
    found["gamma_max"] = np.where(any_sound, largest, math.nan)
    return found


def client_records_of(
    done: PendingEvaluation, protocol: Protocol, points: int
) -> Sequence[ClientRecord | None]:
    """Wait for an evaluation, and make a client record for each sweep point."""
    if not protocol.evaluation.client_records:
        return [None] * points
    read, federation = protocol.sampled, protocol.federation
    rounds, steps = done.since.by_client(len(federation), points)
    if protocol.evaluation.clients:
        drawn = federation.drawn(protocol.evaluation.clients)
        rounds, steps = rounds[drawn], steps[drawn]
    return [
        ClientRecord(
            clients=read.names,
            training_rows=read.train.sizes,
            test_rows=read.test.sizes,
            train_loss=loss,
            test_accuracy=accuracy,
            rounds=rounds,
            steps=steps[:, point],
        )
        for point, (loss, accuracy) in enumerate(_by_client(done.measures, protocol))
    ]
