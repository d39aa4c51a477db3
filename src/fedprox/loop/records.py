"""Making records from an evaluation and the rounds before it, for each sweep point."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.engine.compiled.evaluation import Measures
from fedprox.errors import InputError
from fedprox.loop.execution import Done, Measuring, RunState
from fedprox.loop.own_models import OwnMeasures
from fedprox.measures import MEASURES, fairness, mean_error
from fedprox.precision import real_type
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.results.clients import ClientRecord
from fedprox.results.record import Record
from fedprox.results.run import Run

Floats = NDArray[np.float64]

ALWAYS = {name: each.missing for name, each in MEASURES.items() if each.missing is not None}
"""The measures that each record has, as they are before they are measured."""

PLACES = {name: place for place, name in enumerate(MEASURES)}
"""The places of measures in the columns of files."""

NAMED = 5
"""Most faulty clients that an error names."""


class PendingEvaluation(NamedTuple):
    """An evaluation that may still be running.

    Attributes:
        now: The evaluated state, without its arrays; `best` is the model itself if models are
            compared.
        measuring: Waits for the evaluation.
        own: The measures of clients' own models; None without any.
    """

    now: RunState
    measuring: Measuring
    own: OwnMeasures | None

    @property
    def measures(self) -> Measures:
        """Wait for the measures."""
        return self.measuring()[0]

    @property
    def since(self) -> Done:
        """Wait for what rounds and the evaluation did since the previous record."""
        return self.now.since + self.measuring()[1]


class Counts(NamedTuple):
    """How much evaluations read of each client.

    Attributes:
        clients: Number of clients of the federation if a sample of them is read; None if all
            clients are read.
        rows: Training rows n_k of the clients that are read, shape (clients read,).
        labels: Number of test labels that are read of each, shape (clients read,); 0 for a model
            without accuracy.
        stand_for: How many test rows of its client each read test row represents, shape (clients
            read,).
    """

    clients: int | None
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    stand_for: NDArray[np.float64]

    @classmethod
    def of(cls, protocol: Protocol) -> "Counts":
        """The counts for a protocol."""
        sampled, read = protocol.sampled, protocol.measured.test
        labels = read.labels if protocol.model.correct is not None else np.zeros_like(read.sizes)
        return cls(
            None if protocol.evaluation.clients is None else len(protocol.federation),
            sampled.train.sizes,
            labels,
            sampled.test.sizes / np.maximum(read.sizes, 1),
        )

    def by_client(self, measures: Measures) -> list[tuple[Floats, Floats]]:
        """Loss and accuracy of each client, (clients,), for each sweep point."""
        assert measures.by_client is not None
        labels, known = self.labels[:, None], self.labels[:, None] > 0
        loss = np.asarray(measures.by_client.loss, np.float64)
        accuracy = np.full(loss.shape, math.nan)
        if measures.by_client.correct is not None:
            correct = np.asarray(measures.by_client.correct)
            accuracy = np.where(known, correct / np.maximum(labels, 1), math.nan)
        return list(zip(loss.T, accuracy.T, strict=True))


def records_of(
    done: PendingEvaluation,
    method: Method,
    runs: Sequence[Run],
    counts: Counts,
    scheduled: float | None = None,
    epsilon: float | None = None,
) -> Iterator[Record]:
    """Wait for an evaluation, and make a record for each sweep point."""
    algorithm, protocol, since = method.algorithm, method.protocol, done.since
    points, names = len(runs), protocol.federation.names
    faulty, work = since.all_faulty(), since.work
    screen = method.reduction.screen
    if len(faulty) and screen is not None and screen.fails:
        raise InputError(_faulty_message(faulty, runs, names))
    at_points: dict[str, Any] = {
        **_losses(done.measures, counts),
        **_solves(since, faulty, done.now.round, points),
        **({} if screen is None else _faults(done.measures, faulty, points, names)),
        **({} if done.own is None else _own(done.own)),
        **(_fairness(counts.by_client(done.measures)) if protocol.evaluation.by_client else {}),
    }
    same = {
        "solves": len(work.jobs.client),
        "clients": work.clients,
        "stragglers": work.stragglers,
        "dropped": work.dropped,
        "communication": algorithm.communication * done.now.round * protocol.models_a_round,
        "time": work.time if protocol.has_clock(algorithm) else None,
        "empty_rounds": since.empty,
        **_network(since, measured=done.measures.given is not False),
        "epsilon": epsilon,
        "delta": None if protocol.privacy is None else protocol.privacy.delta,
    }
    for part in method.parts:
        same |= part.measures(work.jobs.columns)
    taken, bits = since.steps_at(points), protocol.message_bits(algorithm)
    metrics = {name: np.asarray(each) for name, each in done.measures.metrics.items()}
    always = [f"{part}_{name}" for part in ("train", "test") for name in protocol.model.metrics]
    rates = np.asarray(done.now.hparams["learning_rate"])
    adapted = None if algorithm.adapt is None else jax.tree.map(np.asarray, done.now.hparams)
    for i, run in enumerate(runs):
        measures = ALWAYS | same | {name: values[i] for name, values in at_points.items()}
        measures["total_steps"] = run.client_steps + int(taken[i])
        if bits is not None:
            before = run.history[-1].bits_up if run.history else 0
            measures["bits_up"] = (before or 0) + bits * since.messages
        order = sorted(measures, key=PLACES.__getitem__)
        yield Record(
            label=run.label,
            method=run.method,
            hparams=_plain(run.hparams if adapted is None else _adapted(run.hparams, adapted, i)),
            learning_rate=_in_force(run.learning_rate, rates[i], scheduled),
            seed=run.seed,
            round=done.now.round,
            measures={n: _plain(measures[n]) for n in order if measures[n] is not None},
            metrics=dict.fromkeys(always, math.nan)
            | {name: float(values[i]) for name, values in metrics.items()},
        )


def _losses(measures: Measures, counts: Counts) -> dict[str, NDArray[np.float64]]:
    """Losses, accuracies and measures of gradients, (points,), as far as they are known."""
    found = {name: _mean(terms) for name, terms in measures.held_out.items()}
    for name in ("train_loss", "gradient_variance", "dissimilarity"):
        values = getattr(measures, name)
        if values is not None:
            found[name] = np.asarray(values, float)
    return found | _errors(measures, counts)


def _plain(value: Any) -> Any:
    """A value of a record with Python's types, as in a checkpoint, in place of NumPy's."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _fairness(clients: Sequence[tuple[Floats, Floats]]) -> dict[str, Sequence[float]]:
    """The distribution of the clients' accuracies at each sweep point."""
    found = [fairness(accuracy)._asdict() for _, accuracy in clients]
    return {f"client_accuracy_{name}": [each[name] for each in found] for name in found[0]}


def _in_force(initial: float, now: Any, scheduled: float | None) -> float:
    """The learning rate of a round; the shortest decimal if a user changed it."""
    if scheduled is not None:
        return scheduled
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


def _own(measures: OwnMeasures) -> dict[str, list[float]]:
    """The measures of clients' own models at each sweep point."""
    found = dict[str, list[float]]()
    for point, trained in enumerate(measures.trained.T):
        values: dict[str, Any] = {"personal_clients": int(trained.sum())}
        for name, clients in (("personal", trained), ("newcomer", ~trained)):
            tested = clients & (measures.rows > 0)
            rows, labels = measures.rows[tested], measures.labels[tested].sum()
            loss = measures.loss[tested, point] @ rows
            values[f"{name}_loss"] = loss / rows.sum() if len(rows) else math.nan
            correct = measures.correct[tested, point].sum()
            values[f"{name}_accuracy"] = correct / labels if labels else math.nan
        with np.errstate(invalid="ignore"):
            shares = np.where(trained, measures.correct[:, point] / measures.labels, math.nan)
        values["personal_accuracy_worst"] = fairness(shares).worst
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return found


def _network(since: Done, *, measured: bool) -> dict[str, Any]:
    """The fields of a record that describe the network; none for a simulation."""
    if not since.network:
        return {}
    return {**since.network, "nodes": len(since.network["nodes"]), "measured": measured}


def _errors(measures: Measures, counts: Counts) -> dict[str, NDArray[np.float64]]:
    """Standard errors of loss and accuracy, (points,); none if all clients were read."""
    if counts.clients is None or measures.by_client is None:
        return {}
    loss = np.asarray(measures.by_client.loss)
    rows = np.broadcast_to(counts.rows[:, None], loss.shape)
    if measures.unmeasured is not None:
        left_out = np.isnan(loss)
        loss, rows = np.where(left_out, 0.0, loss), np.where(left_out, 0, rows)
    correct = measures.by_client.correct
    met = np.zeros(loss.shape) if correct is None else np.asarray(correct)
    accuracy = met / np.maximum(counts.labels, 1)[:, None]
    return {
        "train_loss_se": mean_error(loss, rows, counts.clients),
        "test_accuracy_se": mean_error(accuracy, counts.stand_for * counts.labels, counts.clients),
    }


def _faults(
    measures: Measures, faulty: NDArray[np.int64], points: int, names: Sequence[str]
) -> dict[str, Any]:
    """What was faulty at each sweep point."""
    clients = [faulty[faulty[:, 1] == point, 2] for point in range(points)]
    found: dict[str, Any] = {
        "faulty": [len(each) for each in clients],
        "faulty_clients": [[names[k] for k in np.unique(each)] for each in clients],
    }
    if measures.unmeasured is not None:
        found["unmeasured"] = np.asarray(measures.unmeasured)
    return found


def _faulty_message(faulty: NDArray[np.int64], runs: Sequence[Run], names: Sequence[str]) -> str:
    """The message about the first round with a faulty update."""
    t, point, _ = faulty[np.lexsort(faulty.T[1::-1])[0]]
    clients = np.unique(faulty[(faulty[:, 0] == t) & (faulty[:, 1] == point), 2])
    shown = ", ".join(names[k] for k in clients[:NAMED])
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return (
        f"{runs[point].label}, seed {runs[point].seed}: round {t + 1}: faulty update of client "
        f'{shown}{more}, and faults.policy = "fail"; "drop" leaves such updates out'
    )


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
    done: PendingEvaluation, protocol: Protocol, counts: Counts, points: int
) -> Sequence[ClientRecord | None]:
    """Wait for an evaluation, and make a client record for each sweep point."""
    if not protocol.evaluation.client_records:
        return [None] * points
    read, federation = protocol.sampled, protocol.federation
    rounds, steps = done.since.by_client(len(federation), points)
    if protocol.evaluation.clients is not None:
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
        for point, (loss, accuracy) in enumerate(counts.by_client(done.measures))
    ]
