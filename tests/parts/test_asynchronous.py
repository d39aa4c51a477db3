"""Asynchronous rounds beside a simulation that goes from event to event, in NumPy."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedprox as fp
from fedprox.engine.planning.round_work import works
from fedprox.errors import InputError
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.streams import Purpose, generator
from tests.methods import gradient, rows_of
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

ROWS = [3, 1, 4, 2, 5, 2, 1, 3]
CLIENTS = len(ROWS)
START = np.array([2.0, -1.0, 0.5])
FEDERATION = ragged_quadratics(0, ROWS)
MODEL = quadratic_model(START)
SOLVER = fp.Solver(0.1, batch_size="all", steps=3, learning_rate_decay=0.9)
SECONDS = [0.4, 0.1, 1.3, 0.2, 0.7, 0.15, 2.9, 0.3]


def runs(
    methods: Any,
    rounds: int = 12,
    seconds: Any = SECONDS,
    at_work: int = 4,
    federation: fp.Federation = FEDERATION,
    **options: Any,
) -> list[fp.Run]:
    defaults: dict[str, Any] = {
        "solver": SOLVER,
        "population": fp.Population(seconds),
        "evaluation": fp.Evaluation(every=4, gradients=False),
        "seed": 0,
    }
    return fp.simulate(
        federation,
        MODEL,
        methods,
        cohort=fp.Cohort(at_work),
        rounds=rounds,
        progress=False,
        **defaults | options,
    )


class Update(NamedTuple):
    """A client at work: when it is done, in which order it started, who, and from which step."""

    done: float
    order: int
    client: int
    step: int
    lost: bool


class Events:
    """The server's steps: the updates of each, and its time; one event after the other."""

    def __init__(
        self, asynchronous: fp.Asynchronous, at_work: int, seconds: list[float], dropout: float
    ) -> None:
        self.settings, self.at_work, self.seconds = asynchronous, at_work, seconds
        self.dropout, self.now, self.started = dropout, 0.0, 0
        self.working: list[Update] = []
        self.buffer: list[Update] = []
        self.steps: list[tuple[list[Update], float, int]] = []
        self.arrivals, self.losses = (
            self.numbers(purpose) for purpose in (Purpose.ARRIVALS, Purpose.DROPOUT)
        )

    @staticmethod
    def numbers(purpose: Purpose) -> Any:
        stream = generator(0, purpose)
        while True:
            if purpose == Purpose.ARRIVALS:
                yield from stream.integers(CLIENTS, size=1024).tolist()
            else:
                yield from stream.random(1024).tolist()

    def begin(self) -> None:
        """Start clients until enough are at work."""
        busy = {each.client for each in (*self.working, *self.buffer)}
        most = min(self.at_work - len(self.working), CLIENTS - len(busy))
        chosen: list[int] = []
        if not busy:
            stream = generator(0, Purpose.COHORT, len(self.steps))
            chosen = stream.choice(CLIENTS, most, replace=False).tolist()
        while len(chosen) < most:
            client = next(self.arrivals)
            if client not in busy and client not in chosen:
                chosen.append(client)
        for client in chosen:
            takes, lost = self.seconds[client] * 3, False
            if self.dropout and next(self.losses) < self.dropout:
                takes, lost = next(self.losses) * takes, True
            update = Update(self.now + takes, self.started, client, len(self.steps), lost)
            self.working.append(update)
            self.started += 1

    def run(self, rounds: int) -> "Events":
        """Go on until there are enough steps."""
        left_out = 0
        while len(self.steps) < rounds:
            self.begin()
            self.now = min(each.done for each in self.working)
            done = sorted(each for each in self.working if each.done == self.now)
            for each in done:
                self.working.remove(each)
                stale = len(self.steps) - each.step > self.settings.most_staleness
                if each.lost or stale:
                    left_out += 1
                    continue
                self.buffer.append(each)
                if len(self.buffer) == self.settings.buffer:
                    self.steps.append((self.buffer, self.now, left_out))
                    self.buffer, left_out = [], 0
        return self


def local(w: NDArray[Any], k: int, rate: float, mu: float) -> NDArray[Any]:
    """Three steps of a client from w on F_k + mu / 2 ||. - w||^2."""
    rows, v = rows_of(FEDERATION, k), w.copy()
    for _ in range(3):
        v = v - rate * (gradient(v, *rows) + mu * (v - w))
    return v


def by_event(
    events: Events,
    rounds: int,
    mu: float = 0.0,
    *,
    by_rows: bool = True,
    faulty: int = -1,
    server: float = 1.0,
) -> list[NDArray[Any]]:
    """The server's models; what a `faulty` client sends counts as zero."""
    models, settings_ = [START.astype(float)], events.settings
    for t, (updates, _, _) in enumerate(events.steps[:rounds]):
        mass = np.array([ROWS[each.client] if by_rows else 1 for each in updates], float)
        late = np.array([t - each.step for each in updates])
        factor = {
            "constant": np.ones(len(late)),
            "polynomial": (1.0 + late) ** -settings_.a,
            "hinge": 1.0 / (1.0 + settings_.a * np.maximum(late - settings_.b, 0)),
        }[settings_.staleness]
        moved = np.zeros_like(START)
        for each, weight in zip(updates, mass / mass.sum() * factor, strict=True):
            if each.client == faulty:
                continue
            start = models[each.step]
            found = local(start, each.client, 0.1 * 0.9**each.step, mu)
            origin = start if settings_.adds == "updates" else models[-1]
            moved = moved + weight * (found - origin)
        models.append(models[-1] + server * moved)
    return models


SPEEDS = st.lists(st.sampled_from([0.1, 0.2, 0.3, 1.0, 2.5]), min_size=CLIENTS, max_size=CLIENTS)


@settings(max_examples=40)
@given(
    seconds=SPEEDS,
    at_work=st.integers(1, CLIENTS),
    buffer=st.integers(1, CLIENTS),
    most=st.sampled_from([0, 1, 3, 20]),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_events_versions_and_staleness_are_those_of_the_oracle(
    seconds: list[float], at_work: int, buffer: int, most: int, dropout: float
) -> None:
    asynchronous = fp.Asynchronous(min(buffer, at_work), most_staleness=most)
    protocol = Protocol(
        federation=FEDERATION,
        model=MODEL,
        solver=SOLVER,
        cohort=fp.Cohort(at_work),
        rounds=15,
        evaluation=fp.Evaluation(gradients=False),
        seeds=(0,),
        population=fp.Population(seconds, dropout=dropout),
        asynchronous=asynchronous,
    )
    method = Method(protocol, protocol.reported(fp.fedprox(mu=0.1)))
    found = works(protocol, method.algorithm, method.solver, 0)
    expected = Events(asynchronous, at_work, seconds, dropout).run(15).steps
    for t, (updates, time, left_out) in enumerate(expected):
        work = next(found)
        assert work.jobs.client.tolist() == [each.client for each in updates]
        assert work.jobs.columns["age"].tolist() == [t - each.step for each in updates]
        assert work.time == pytest.approx(time, rel=1e-12)
        assert (work.dropped, work.clients) == (left_out, left_out + len(updates))
        np.testing.assert_allclose(
            work.jobs.columns["rate"], [0.9 ** (each.step - t) for each in updates], rtol=1e-12
        )


HALF = fp.fedopt(optax.sgd, server_learning_rate=0.5)
ASYNCHRONOUS: dict[str, tuple[fp.Asynchronous, fp.Algorithm, dict[str, Any]]] = {
    "fedbuff": (fp.Asynchronous(2), HALF, {"server": 0.5}),
    "hinge": (fp.Asynchronous(3, "hinge", a=2.0, b=1), fp.fedprox(mu=0.5), {"mu": 0.5}),
    "fedasync": (fp.Asynchronous(1, "constant", adds="models"), fp.fedprox(mu=0.5), {"mu": 0.5}),
    "stale": (
        fp.Asynchronous(2, most_staleness=1),
        fp.fedavg(average="clients"),
        {"by_rows": False},
    ),
}


@pytest.mark.parametrize("name", mostly_slow(ASYNCHRONOUS, "fedbuff", "fedasync"))
def test_models_are_those_of_the_oracle(name: str) -> None:
    asynchronous, method, numbers = ASYNCHRONOUS[name]
    (run,) = runs(method, asynchronous=asynchronous)
    events = Events(asynchronous, 4, SECONDS, 0.0).run(12)
    expected = by_event(events, 12, **numbers)[-1]
    np.testing.assert_allclose(run.params, expected, rtol=1e-5, atol=1e-6)
    assert [record.time for record in run.history[1:]] == pytest.approx(
        [events.steps[t - 1][1] for t in (4, 8, 12)]
    )
    staleness = [
        np.mean([t - 1 - each.step for each in events.steps[t - 1][0]]) for t in (4, 8, 12)
    ]
    assert [record.staleness for record in run.history] == pytest.approx([0.0, *staleness])
    assert run.final.communication == pytest.approx(12 * asynchronous.buffer / 4)


@pytest.mark.slow
def test_qffl_weighs_losses_at_the_models_that_clients_received() -> None:
    asynchronous, q = fp.Asynchronous(2), 1.0
    events = Events(asynchronous, 4, [4 / 3 * each for each in SECONDS], 0.0).run(12)
    models = [START.astype(float)]
    for t, (updates, _, _) in enumerate(events.steps):
        delta, curvature = np.zeros_like(START), 0.0
        for each in updates:
            start, rate = models[each.step], 0.1 * 0.9**each.step
            a, b = rows_of(FEDERATION, each.client)
            loss = 0.5 * float(np.einsum("ni,nij,nj->n", start - b, a, start - b).mean())
            moved = (start - local(start, each.client, rate, 0.0)) / rate
            weight = (1.0 + t - each.step) ** -asynchronous.a
            delta = delta + weight * loss**q * moved
            curvature += weight * (q * loss ** (q - 1) * (moved @ moved) + loss**q / rate)
        models.append(models[-1] - delta / curvature)
    # a pass over the rows for the loss takes a step's time
    (run,) = runs(fp.qffl(q=q), asynchronous=asynchronous)
    np.testing.assert_allclose(run.params, models[-1], rtol=1e-5, atol=1e-6)
    assert run.final.time == pytest.approx(events.steps[11][1])
    assert max(record.staleness or 0.0 for record in run.history) > 0


BARRIER = {"fedprox": fp.fedprox(mu=[0.0, 0.5]), "fednova": fp.fednova()}


@pytest.mark.slow
@pytest.mark.parametrize("name", BARRIER)
def test_a_buffer_of_all_equal_clients_is_a_round_with_a_barrier(name: str) -> None:
    both = [
        runs(
            BARRIER[name],
            rounds=6,
            at_work=5,
            federation=ragged_quadratics(0, [ROWS[0]] * CLIENTS),
            solver=replace(SOLVER, batch_size=2, steps=None, epochs=2),
            population=fp.Population(0.5, upload=3.0),
            seed=[0, 1],
            evaluation=fp.Evaluation(gradients=False),
            asynchronous=asynchronous,
        )
        for asynchronous in (None, fp.Asynchronous(5))
    ]
    for waits, steps in zip(*both, strict=True):
        assert np.asarray(waits.params).tobytes() == np.asarray(steps.params).tobytes()
        for a, b in zip(waits.history, steps.history, strict=True):
            of_events = {"staleness": 0.0, "communication": b.communication}
            assert replace(a, measures=a.measures | of_events) == b
            assert (a.time, a.train_loss) == (b.time, b.train_loss)


@pytest.mark.slow
def test_a_faulty_update_leaves_the_others_their_weights() -> None:
    asynchronous, bad = fp.Asynchronous(2, a=2.0), 3
    train = FEDERATION.train
    y = np.array(train.y)
    y[slice(*train.offsets[bad : bad + 2])] = np.nan
    broken = replace(FEDERATION, train=replace(train, y=y))
    faults = fp.Faults(norm=1e6)
    (run,) = runs(fp.fedavg(), federation=broken, asynchronous=asynchronous, faults=faults)
    events = Events(asynchronous, 4, SECONDS, 0.0).run(12)
    late = [t - each.step for t, (updates, _, _) in enumerate(events.steps) for each in updates]
    assert max(late) > 1
    assert run.faulty == sum(each.client == bad for step in events.steps for each in step[0]) > 1
    expected = by_event(events, 12, faulty=bad)[-1]
    np.testing.assert_allclose(run.params, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gamma_is_of_no_step_whose_clients_started_from_several_models() -> None:
    """Gradients are measured at the server's model, and who started from another met no gamma."""
    measured: dict[str, Any] = {"rounds": 4, "evaluation": fp.Evaluation(every=4)}
    (run,) = runs(fp.fedavg(), asynchronous=fp.Asynchronous(2), **measured)
    assert run.final.gradient_variance is not None
    assert np.isnan(run.final.gamma_mean)


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_the_same_bits(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "asynchronous": fp.Asynchronous(2),
        "population": fp.Population(SECONDS, dropout=0.2, available=fp.DayNight(12.0, 0.0)),
        "seed": [0, 1],
    }
    whole = runs(fp.fedprox(mu=[0.0, 0.5]), **options)
    checkpoints = fp.Checkpoints(tmp_path, every=4, resume=True)
    runs(fp.fedprox(mu=[0.0, 0.5]), rounds=8, checkpoints=checkpoints, **options)
    again = runs(fp.fedprox(mu=[0.0, 0.5]), checkpoints=checkpoints, **options)
    for a, b in zip(whole, again, strict=True):
        assert np.asarray(a.params).tobytes() == np.asarray(b.params).tobytes()
        assert list(map(str, a.history)) == list(map(str, b.history))
        assert [r.time for r in a.history] == [r.time for r in b.history]


def test_nobody_starts_while_all_are_off() -> None:
    """A trace in which one client is on at a time: it is lost if it does not end in time."""
    available = fp.Intervals(
        list(range(CLIENTS)),
        [10.0 * k for k in range(CLIENTS)],
        [10.0 * k + 5 for k in range(8)],
        80.0,
    )
    (run,) = runs(
        fp.fedavg(),
        rounds=3,
        seconds=fp.LogNormal(1.0, 0.0),
        population=fp.Population([1.0, 2.0, *[1.0] * 6], available=available),
        asynchronous=fp.Asynchronous(1),
        evaluation=fp.Evaluation(every=1, gradients=False),
    )
    # client 1 needs six seconds and has five; whoever is done begins again, and goes off
    assert [record.time for record in run.history] == [0.0, 3.0, 23.0, 33.0]
    assert [record.dropped for record in run.history] == [0, 0, 2, 1]


def test_a_server_that_nothing_reaches_says_so() -> None:
    short = fp.Intervals(list(range(CLIENTS)), [0.0] * CLIENTS, [1.0] * CLIENTS, 10.0)
    with pytest.raises(InputError, match="updates in a row were lost or too old, and none arrived"):
        runs(
            fp.fedavg(),
            population=fp.Population(1.0, available=short),
            asynchronous=fp.Asynchronous(1),
        )
    never = fp.Population(1.0, available=fp.Intervals([99], [0.0], [1.0], 10.0), draw=True)
    with pytest.raises(InputError, match="with seed 0 no client is ever on"):
        runs(fp.fedavg(), population=never, asynchronous=fp.Asynchronous(1))


def test_a_buffer_larger_than_the_clients_at_work_is_refused() -> None:
    with pytest.raises(InputError, match="it must be at most the clients at work"):
        runs(fp.fedavg(), asynchronous=fp.Asynchronous(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 0}, "asynchronous.buffer = 0; it must be a whole number of at least 1"),
        ({"staleness": "linear"}, "it must be one of constant, polynomial, hinge"),
        ({"a": 0.0}, "asynchronous.a = 0.0; it must be above 0"),
        ({"b": -1}, "asynchronous.b = -1; it must be a whole number of at least 0"),
        ({"most_staleness": -1}, "asynchronous.most_staleness = -1; it must be a whole number"),
        ({"adds": "all"}, "it must be one of updates, models"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        fp.Asynchronous(**{"buffer": 2, **options})
    assert message in str(error.value)
