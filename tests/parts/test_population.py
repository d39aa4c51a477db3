"""Devices of clients: their draws, their files, and the clock of synchronous rounds."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprox as fp
from fedprox.engine.planning.round_work import RoundWork, works
from fedprox.errors import InputError
from fedprox.parts.clock import Pace, Timeline
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.streams import Purpose, generator
from tests.quadratics import one_run, quadratic_federation, quadratic_model

SIZES = [5, 40, 1, 33, 20, 12]
CLIENTS = len(SIZES)
BYTES = 8
"""Of a model of two numbers in single precision."""


def federation(sizes: list[int] = SIZES) -> fp.Federation:
    count = len(sizes)
    return quadratic_federation([np.eye(2)] * count, [np.zeros(2)] * count, rows=sizes)


def work_of(
    algorithm: fp.Algorithm, rounds: int, population: fp.Population, **options: Any
) -> list[RoundWork]:
    """The work of the first rounds of a method."""
    settings: dict[str, Any] = {
        "solver": fp.Solver(0.1, batch_size=10, epochs=2),
        "cohort": fp.Cohort(3),
        "systems": fp.Systems(),
        "faults": None,
        "rounds": rounds,
        "evaluation": fp.Evaluation(gradients=False),
        "client_store": "auto",
        "seeds": (0,),
        "target": None,
        "stop_at_target": "never",
    }
    model = quadratic_model(np.zeros(2))
    settings |= {"federation": federation(), "model": model, "population": population}
    protocol = Protocol(**settings | options)
    method = Method(protocol, protocol.reported(algorithm))
    protocol.check(algorithm, method.solver)
    found = works(protocol, method.algorithm, method.solver, 0)
    return [next(found) for _ in range(rounds)]


def pace_of(population: fp.Population, clients: int, seed: int = 0) -> Pace:
    """How fast clients of one row each are."""
    return population.pace(seed, fp.fedavg(), np.ones(clients, np.int64), BYTES, BYTES)


def test_a_clients_device_is_a_function_of_seed_and_client() -> None:
    one = fp.Population(fp.LogNormal(2.0, 0.5), fp.LogNormal(10.0, 0.5), 4.0, latency=0.25)
    few, many, other = pace_of(one, 3), pace_of(one, 4000), pace_of(one, 4000, seed=1)
    np.testing.assert_array_equal(few.step, many.step[:3])
    np.testing.assert_array_equal(few.way, many.way[:3])
    assert not np.array_equal(other.step, many.step)
    assert np.log(many.step).mean() == pytest.approx(np.log(2), abs=0.03)
    assert np.log(many.step).std() == pytest.approx(0.5, abs=0.03)
    down = many.way - 0.5 - BYTES / 4.0
    assert np.log(BYTES / down).mean() == pytest.approx(np.log(10), abs=0.03)
    assert abs(np.corrcoef(np.log(down), np.log(many.step))[0, 1]) < 0.05


def test_clients_draw_devices_with_replacement() -> None:
    pace = pace_of(fp.Population([1.0, 2.0, 4.0], download=[8.0, 4.0, 2.0], draw=True), 3000)
    np.testing.assert_array_equal(pace.step, pace.way)  # both are of one device
    shares = [np.mean(pace.step == seconds) for seconds in (1.0, 2.0, 4.0)]
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)


# ---------------------------------------------------------------------- the clock of a round


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    seconds, speeds = [0.1, 0.2, 0.4, 0.1, 0.3, 0.5], [8.0, 4.0, 2.0, 1.0, 8.0, 4.0]
    population = fp.Population(seconds, download=speeds, upload=2.0, latency=0.5)
    time = 0.0
    for work in work_of(fp.fedavg(), 5, population):
        ends = [
            2 * 0.5 + BYTES / speeds[k] + BYTES / 2.0 + steps * seconds[k]
            for k, steps in zip(work.jobs.client, work.jobs.steps, strict=True)
        ]
        time += max(ends)
        assert work.time == pytest.approx(time, rel=1e-12)
        assert (work.stragglers, work.dropped) == (0, 0)


@pytest.mark.parametrize(
    ("algorithm", "models", "passes", "solves"),
    [
        (fp.scaffold(), 2, 0, 1),
        (fp.scaffold(option=1), 2, 1, 1),
        (fp.qffl(q=1.0), 1, 1, 1),
        (fp.ditto(1.0), 1, 0, 2),
    ],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_passes_problems_and_models_take_their_time(
    algorithm: fp.Algorithm, models: int, passes: int, solves: int
) -> None:
    (work,) = work_of(algorithm, 1, fp.Population(0.5, download=4.0, upload=1.0))
    jobs = work.jobs
    epoch = -(-jobs.size // 10)
    ends = models * BYTES * (1 / 4 + 1) + 0.5 * (passes * epoch + solves * jobs.steps)
    assert work.time == pytest.approx(max(ends))


@pytest.mark.parametrize("algorithm", [fp.feddane(mu=0.1), fp.mime()], ids=["feddane", "mime"])
def test_a_first_exchange_takes_its_time(algorithm: fp.Algorithm) -> None:
    (work,) = work_of(algorithm, 1, fp.Population(0.5, upload=1.0))
    first = max(BYTES + 0.5 * -(-work.exchange.size // 10))
    again = 1 if algorithm.first.cohort == "another" else 0
    jobs = work.jobs
    own = max(BYTES + 0.5 * (again * -(-jobs.size // 10) + jobs.steps))
    assert work.time == pytest.approx(first + own)


def test_gradients_that_are_late_do_not_count() -> None:
    slow = [100.0 if k in (1, 3) else 0.1 for k in range(CLIENTS)]
    timed: dict[str, Any] = {"systems": fp.Systems(deadline=100.0), "cohort": fp.Cohort(CLIENTS)}
    (other,) = work_of(fp.feddane(mu=0.1), 1, fp.Population(slow), **timed)
    assert set(other.exchange.client) == {0, 2, 4, 5}
    # a quarter of the deadline is gone, and reading its rows takes client 3 all of the rest
    assert set(other.jobs.client) == {0, 2, 4, 5}
    (own,) = work_of(fp.mime(), 1, fp.Population(slow), **timed)
    assert set(own.jobs.client) == set(own.exchange.client) == {0, 2, 4, 5}
    assert own.time == other.time == 100.0
    assert (own.stragglers, own.dropped) == (2, 2)


# ------------------------------------------------------------------------------- the deadline


def test_a_deadline_of_whole_steps_is_whole_steps() -> None:
    # 0.3 / 0.1 and 0.6 / 0.2 fall just below 3 as floating-point numbers
    for deadline, seconds in ((0.3, 0.1), (0.6, 0.2)):
        pace = pace_of(fp.Population(seconds), 1)
        assert pace.in_time(np.arange(1), deadline).tolist() == [3]


def test_speeds_may_be_extreme() -> None:
    pace = pace_of(fp.Population([1.0, 1e-300, 0.0]), 3)
    assert (pace.in_time(np.arange(3), 1e308) > 1e300).all()
    late = pace_of(fp.Population([1.0, 0.0], latency=1.0), 2)
    assert late.in_time(np.arange(2), 1.5).tolist() == [0, 0]


def test_records_tell_the_time_and_targets_are_read_by_it() -> None:
    data = quadratic_federation([np.eye(1)] * 3, [np.ones(1)] * 3)
    same = data, quadratic_model(np.zeros(1)), fp.fedavg(), fp.Solver(0.5, "all", steps=1)
    run, without = (one_run(*same, population=p, rounds=4) for p in (fp.Population(3.0), None))
    assert [record.time for record in run.history] == [0.0, 3.0, 6.0, 9.0, 12.0]
    target = fp.Target("train_loss", (run.history[1].train_loss + run.history[2].train_loss) / 2)
    assert run.rounds_to(target) == pytest.approx(1.5)
    assert run.time_to(target) == pytest.approx(4.5)
    assert run.time_to(fp.Target("train_loss", 1e-9)) is None
    assert [record.time for record in without.history] == [None] * 5
    assert without.time_to(target) is None
    # a clock changes nothing but the time
    timed = replace(without.final, measures={**without.final.measures, "time": 12.0})
    assert str(timed.as_dict()) == str(run.final.as_dict())


# -------------------------------------------------------- over-selection, losses, availability


def test_where_nothing_takes_time_a_round_waits_for_its_deadline_alone() -> None:
    clients, takes_part = np.arange(3), np.array([True, False, True])
    timeline = Timeline(Pace.instant(3), 0.0, 3, seed=0)
    for left, all_there, end in ((math.inf, False, 0.0), (5.0, False, 5.0), (5.0, True, 0.0)):
        there = takes_part | all_there
        counts, seconds = timeline.end(0, clients, np.ones(3, int), there, 3, 0.0, left)
        assert (counts.tolist(), seconds) == (there.tolist(), end)


@given(
    over=st.sampled_from([1.0, 1.5, 2.0]),
    dropout=st.sampled_from([0.0, 0.4]),
    deadline=st.sampled_from([None, 2.0, 5.0]),
    drop=st.booleans(),
    hours=st.booleans(),
)
def test_rounds_are_those_of_an_event_by_event_simulation(
    over: float, dropout: float, deadline: float | None, drop: bool, hours: bool
) -> None:
    seconds = [0.3, 0.1, 1.0, 0.25, 0.5, 0.05]
    intervals = {k: [(0.5 * k, 0.5 * k + 4.0), (9.0, 9.0 + k + 1)] for k in range(CLIENTS)}
    available = None
    if hours:
        rows = [(k, *each) for k, each_of in intervals.items() for each in each_of]
        device, on, off = (list(column) for column in zip(*rows, strict=True))
        available = fp.Intervals(device, on, off, period=20.0)
    method = fp.fedavg() if drop else fp.fedprox(mu=0.0)
    found = work_of(
        method,
        8,
        fp.Population(seconds, latency=0.05, dropout=dropout, available=available),
        cohort=fp.Cohort(3, over_selection=over),
        systems=fp.Systems(deadline=deadline),
    )
    events = Events(seconds, intervals if hours else None, dropout, deadline, drop, [0.0])
    for t, work in enumerate(found):
        counts, count, partial = events.round(t, over)
        steps = dict(zip(work.jobs.client.tolist(), work.jobs.steps.tolist(), strict=True))
        assert steps == counts
        assert work.time == pytest.approx(events.now, abs=1e-9)
        lost = count - len(counts)
        assert (work.clients, work.dropped, work.stragglers) == (count, lost, lost + partial)
        weights = np.array([SIZES[k] for k in work.jobs.client], float)
        np.testing.assert_allclose(work.jobs.weight, weights / max(weights.sum(), 1))


class Events(NamedTuple):
    """A simulation that goes from one event to the next; cohorts of three, two epochs of ten rows.

    Messages take 0.05 seconds. `clock` holds the time.
    """

    seconds: list[float]
    intervals: Mapping[int, list[tuple[float, float]]] | None
    dropout: float
    deadline: float | None
    drop: bool
    clock: list[float]

    @property
    def now(self) -> float:
        return self.clock[0]

    def on_until(self, k: int, when: float) -> float:
        """When a client goes off; `when` if it is off."""
        if self.intervals is None:
            return math.inf
        turns = [20 * turn for turn in range(int(when // 20) + 1)]
        ends = [
            turn + end
            for turn in turns
            for begin, end in self.intervals[k]
            if turn + begin <= when < turn + end
        ]
        return ends[0] if ends else when

    def wait(self) -> list[int]:
        """The clients that are on, once there is one."""
        on = [k for k in range(CLIENTS) if self.on_until(k, self.now) > self.now]
        if on or self.intervals is None:
            return on
        turns = [20 * (int(self.now // 20) + turn) for turn in range(2)]
        begins = [t + b for each in self.intervals.values() for b, _ in each for t in turns]
        self.clock[0] = min(begin for begin in begins if begin > self.now)
        return self.wait()

    def client(self, t: int, k: int) -> tuple[int, float, str]:
        """The steps of a client, when the server next hears of it, and what."""
        whole = done = 2 * -(-SIZES[k] // 10)
        if self.deadline is not None:
            done = min(whole, math.floor((self.deadline - 0.1) / self.seconds[k] * (1 + 1e-9)))
        takes = 0.1 + done * self.seconds[k]
        gone = self.on_until(k, self.now) - self.now
        if self.dropout:
            stream = generator(0, Purpose.DROPOUT, t, k)
            if stream.random() < self.dropout:
                gone = min(gone, stream.random() * takes)
        useless = not done or (self.drop and done < whole)
        if gone < takes:
            return done, gone, "useless, lost" if useless else "lost"
        return done, takes, "useless" if useless else "message"

    def round(self, t: int, over: float) -> tuple[dict[int, int], int, int]:
        """The steps of a round's clients that count, how many began, and how many did a part."""
        on = self.wait()
        count = min(math.ceil(3 * over), len(on))
        chosen = [on[i] for i in generator(0, Purpose.COHORT, t).choice(len(on), count, False)]
        heard = [(self.client(t, k), order) for order, k in enumerate(chosen)]
        most, counts, end = 3 if over > 1 else count, dict[int, int](), 0.0
        for (done, when, what), order in sorted(heard, key=lambda each: (each[0][1], each[1])):
            if what == "message" and len(counts) < most:
                counts[chosen[order]], end = done, when
        if len(counts) < most:
            end = max([end, *(when for (_, when, what), _ in heard if "lost" in what)])
            if self.deadline is not None:
                waits = any("useless" in what for (_, _, what), _ in heard)
                end = self.deadline if waits else min(end, self.deadline)
        self.clock[0] += end
        partial = sum(done < 2 * -(-SIZES[k] // 10) for k, done in counts.items())
        return counts, count, partial


def test_a_day_has_its_hours() -> None:
    zones = fp.DayNight(hours=8.0, begins=22.0, zones=24)
    pace = pace_of(fp.Population(available=zones), 2400)
    everyone = np.arange(2400)
    shares = [(pace.hours.left(3600.0 * h, everyone) > 0).mean() for h in range(48)]
    np.testing.assert_allclose(shares, 8 / 24, atol=0.04)
    alone = pace_of(fp.Population(available=replace(zones, zones=1)), 1)
    on = [alone.hours.left(3600.0 * h, np.arange(1))[0] / 3600 for h in range(24)]
    assert on == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0, *[0.0] * 16, 8.0, 7.0]
    assert alone.hours.wait(3600.0 * 10) == 12 * 3600.0


# ------------------------------------------------------------------------------------- files


def test_devices_are_read_from_plain_columns(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "device": np.array([7, 3, 7]),
        "step_seconds": np.array([0.5, 0.25, 0.5]),
        "on": np.array([0.0, 1.0, 5.0]),
        "off": np.array([2.0, 4.0, 6.0]),
    }
    np.savez(tmp_path / "a.npz", **columns)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]  # noqa: B905
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    for name in ("a.npz", "a.csv"):
        read = fp.read_population(tmp_path / name, fp.Population(upload=3.0))
        assert (read.step_seconds, read.upload) == ([0.5, 0.25], 3.0)
        assert read.available == fp.Intervals([0, 1, 0], [0.0, 1.0, 5.0], [2.0, 4.0, 6.0], 6.0)
    later = fp.read_population(tmp_path / "a.csv", period=10.0).available
    assert isinstance(later, fp.Intervals)
    assert later.period == 10.0


def test_devices_are_read_from_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"step_seconds": [0.5, 0.25]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert fp.read_population(tmp_path / "a.parquet").step_seconds == [0.5, 0.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_seconds\n", "it must have columns of one length, with a row at least"),
        ("a\n1\n", "it has the columns a; it must have one of step_seconds, download"),
        ("step_seconds\nfast\n", "the column step_seconds must hold numbers alone"),
        ("step_seconds,upload\n1\n", "line 2 has 1 values; the first line names 2 columns"),
        ("device,upload\n1,2\n1,3\n", "the rows of a device differ in upload: row [1]"),
        ("on\n1\n", "it must have both columns, on and off, or neither"),
        ("on,off\n2,1\n", "an interval must begin at 0 or later, end after it begins"),
        ("device,on,off\n0,0,2\n0,1,3\n", "two intervals of device [0] overlap"),
        ("step_seconds\n-1\n", "population.step_seconds = -1.0; it must be at least 0"),
    ],
)
def test_a_file_of_devices_that_cannot_be_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError) as error:
        fp.read_population(tmp_path / "a.csv")
    assert message in str(error.value)
    with pytest.raises(InputError, match=r"its name must end in \.csv, \.npz, \.parquet"):
        fp.read_population(tmp_path / "a.txt")
    (tmp_path / "a.npz").write_text(text)
    with pytest.raises(InputError, match=r"not an \.npz file"):
        fp.read_population(tmp_path / "a.npz")


# ---------------------------------------------------------------------------------- refusals

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"step_seconds": "fast"}, "population.step_seconds = 'fast'; it must be a number"),
    ({"step_seconds": -1.0}, "population.step_seconds = -1.0; it must be at least 0"),
    ({"step_seconds": None}, "population.step_seconds = None; it must be a number"),
    ({"download": 0.0}, "population.download = 0.0; it must be above 0"),
    ({"upload": fp.LogNormal(0.0, 1.0)}, "population.upload.median = 0.0; it must be above 0"),
    ({"latency": fp.LogNormal(1.0, 11.0)}, "population.latency.spread = 11.0; it must be from 0"),
    ({"dropout": 1.0}, "population.dropout = 1.0; it must be at least 0 and below 1"),
    ({"available": "always"}, "population.available = 'always'; it must be a fedprox.DayNight"),
    ({"draw": True}, "population.draw = True; it needs lists of devices to draw from"),
    (
        {"step_seconds": [1.0], "upload": [1.0, 2.0]},
        "step_seconds has 1 numbers and upload has 2 numbers; lists must have one length",
    ),
    (
        {
            "step_seconds": [1.0, 2.0],
            "draw": True,
            "available": fp.Intervals([0, 5], [0.0, 0.0], [1.0, 1.0], 2.0),
        },
        "an interval of device 5; population.step_seconds describes 2 devices",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_a_population_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        fp.Population(**options)
    assert message in str(error.value)


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"population": fp.Population([1.0] * 2)}, "2 numbers; the federation has 3 clients"),
    (
        {"population": fp.Population(available=fp.Intervals([4], [0.0], [1.0], 2.0))},
        "an interval of device 4; the federation has 3 clients",
    ),
    (
        {"population": fp.Population(9.0), "systems": fp.Systems(deadline=1.0)},
        "no client has time for all of its steps, and stragglers are dropped",
    ),
]


@pytest.mark.parametrize(("options", "message"), UNFIT)
def test_a_population_that_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    data = quadratic_federation([np.eye(1)] * 3, [np.zeros(1)] * 3)
    solver = fp.Solver(1.0, batch_size="all", steps=2)
    with pytest.raises(InputError) as error:
        one_run(data, quadratic_model(np.zeros(1)), fp.fedavg(), solver, **options)
    assert message in str(error.value)


def test_over_selection_is_of_uniform_cohorts() -> None:
    with pytest.raises(InputError, match=r"cohort\.over_selection = 0\.5; it must be from 1 to 10"):
        fp.Cohort(2, over_selection=0.5)
    with pytest.raises(InputError, match="there are no first K"):
        fp.Cohort(2, sampling="bernoulli", over_selection=2.0)


def test_some_clients_keep_their_devices_in_their_order() -> None:
    some = np.array([2, 0])
    population = fp.Population(
        [0.1, 0.2, 0.3], available=fp.Intervals([0, 1, 2], [0.0, 1.0, 2.0], [3.0] * 3, 4.0)
    )
    own = population.of_clients(some)
    assert own.step_seconds == [0.3, 0.1]
    assert own.available == fp.Intervals([0, 1], [2.0, 0.0], [3.0, 3.0], 4.0)
    alike = fp.Population(fp.LogNormal(1.0, 1.0), available=fp.DayNight())
    assert alike.of_clients(some) == alike
