"""Schedules and draws made for many clients at once, against one client after another."""

import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedprox import Solver, Systems, line_search_descent
from fedprox.engine.planning import batch_plan
from fedprox.engine.planning.batch_plan import Capacity, Shape, job_ticks, plan_bytes, plan_rounds
from fedprox.engine.planning.jobs import Jobs, choose_lanes, pack, segments
from fedprox.federation import offsets_of
from fedprox.streams import Purpose, Streams, generator

LISTS = st.lists(st.integers(1, 60), max_size=12)
SEEDS = st.integers(0, 2**63 - 1)
CLIENTS = st.lists(st.integers(0, 2**40), max_size=8, unique=True)


@given(seed=SEEDS, round_=st.integers(0, 2**40), clients=CLIENTS)
def test_a_stream_asked_for_again_or_after_others_is_as_if_made_anew(
    seed: int, round_: int, clients: list[int]
) -> None:
    streams = Streams(seed, Purpose.WORK)
    for client in [*clients, *clients]:
        moved, new = streams.at(round_, client), generator(seed, Purpose.WORK, round_, client)
        # numbers of 32 and 64 bits: a generator may hold back half of a word for the next
        for stream in (moved, new):
            stream.integers(5)
        assert moved.integers(1, 20, endpoint=True) == new.integers(1, 20, endpoint=True)
        assert moved.standard_normal() == new.standard_normal()
        moved.integers(7)


def shuffled(seed: int, round_: int, client: int, count: int, size: int) -> list[list[int]]:
    """Permutations by sorting positions by random bits, ties by position."""
    bits = max(size - 1, 1).bit_length()
    raw = generator(seed, Purpose.BATCHES, round_, client).bit_generator.random_raw(count * size)
    words = [int(word) >> bits for word in np.atleast_1d(raw)]
    epochs = [words[i * size : (i + 1) * size] for i in range(count)]
    return [[i for _, i in sorted(zip(epoch, range(size), strict=True))] for epoch in epochs]


class Tick(NamedTuple):
    """What a lane does in a tick."""

    rows: list[int]
    size: int
    last: bool
    check: bool


def ticks_of(solver: Solver, seed: int, round_: int, job: Any, width: int) -> list[Tick]:
    """A job's ticks, one mini-batch after another."""
    client, offset, n, steps = job
    if solver.searches_line:
        return [Tick([offset], n, last=True, check=False)] * steps

    def cut(rows: list[int], *, check: bool) -> list[Tick]:
        return [
            Tick(rows[i : i + width], len(rows), i + width >= len(rows), check)
            for i in range(0, len(rows), width)
        ]

    batch = n if solver.batch_size == "all" else min(solver.batch_size, n)
    epochs = math.ceil(steps / math.ceil(n / batch))
    ticks: list[Tick] = []
    for order in shuffled(seed, round_, client, epochs, n):
        rows = [offset + i for i in order]
        if solver.gamma is not None and solver.batch_size != "all":
            ticks += cut(rows, check=True)
        for i in list(range(0, n, batch))[:steps]:
            ticks += cut(rows[i : i + batch], check=False)
            steps -= 1
    return ticks


@st.composite
def solvers(draw: st.DrawFn) -> Solver:
    kind = draw(st.sampled_from(["sgd", "gamma", "line"]))
    work = draw(st.sampled_from(["epochs", "steps"]))
    amount = {work: draw(st.integers(1, 4 if work == "epochs" else 30))}
    if kind == "line":
        return Solver(0.1, "all", optimizer=line_search_descent, **amount)
    batch = draw(st.one_of(st.just("all"), st.integers(1, 40)))
    gamma = 0.1 if kind == "gamma" else None
    return Solver(0.1, batch, gamma=gamma, **amount)  # type: ignore[arg-type]


@settings(max_examples=100)
@given(
    solver=solvers(),
    sizes=LISTS,
    chance=st.randoms(use_true_random=False),
    seed=SEEDS,
    lanes=st.integers(1, 3),
    processes=st.integers(1, 2),
    widest=st.sampled_from([4, 128]),
    together=st.sampled_from([1, 64, 2**15]),
)
def test_a_processs_plan_is_that_of_its_jobs_one_after_another(
    solver: Solver,
    sizes: list[int],
    chance: Any,
    seed: int,
    lanes: int,
    processes: int,
    widest: int,
    together: int,
) -> None:
    n = np.array(sizes, np.int64)
    steps = np.array([chance.randint(1, solver.steps_for(size)) for size in sizes], np.int64)
    client = np.array(chance.sample(range(100), len(sizes)), np.int64)
    owner = np.array([chance.randint(0, processes - 1) for _ in sizes], np.int64)
    ones = np.ones(len(n))
    first = offsets_of(n)[:-1]
    jobs = Jobs(
        client,
        first_row=first,
        size=n,
        steps=steps,
        weight=ones,
        gamma=ones,
        participation=ones,
        relative_size=ones,
        owner=owner,
        device_row=first,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_plan, "WIDEST_TICK", widest)
        patch.setattr(batch_plan, "ROWS_TOGETHER", together)
        width = batch_plan.tick_width(solver, max(sizes, default=1))
        packing = pack(job_ticks(solver, jobs, width), 2 * lanes, owner, processes)
        shape = Shape(2, 2, lanes, width, processes=processes)
        room = Capacity(packing.ticks + 1, len(n) + 1)
        plan = plan_rounds(
            shape, room, solver, seed, [(9, jobs)], noisy=True, process_index=processes - 1
        ).ticks

    idle = np.ones((2, 2, packing.ticks + 1, lanes), bool)
    assert plan.noise is not None
    for i, job in enumerate(zip(*(a.tolist() for a in jobs[:4]), strict=True)):
        if owner[i] != processes - 1:
            continue
        ticks = ticks_of(solver, seed, 9, job, width)
        assert len(ticks) == packing.end[i] - packing.start[i]
        keys = generator(seed, Purpose.AUGMENTATION, 9, job[0]).integers(
            2**32, size=(len(ticks), 2), dtype=np.uint32
        )
        device, lane = divmod(int(packing.lane[i]), lanes)
        for number, (tick, key) in enumerate(zip(ticks, keys, strict=True)):
            at = 0, device, int(packing.start[i]) + number, lane
            padding = [~job[1]] * (width - len(tick.rows))
            assert plan.rows[at].tolist() == tick.rows + padding
            assert (plan.size[at], plan.last[at]) == (tick.size, tick.last)
            assert plan.check is None or plan.check[at] == tick.check
            assert plan.check is not None or not tick.check
            np.testing.assert_array_equal(plan.noise[at], key)
            assert idle[at], "two jobs at once"
            idle[at] = False
    assert (plan.rows[idle] == -1).all()
    assert (plan.size[idle] == 1).all()
    assert not plan.last[idle].any()


def test_the_memory_of_a_plan_is_what_its_arrays_take() -> None:
    shape, room = Shape(rounds=2, devices=3, lanes=4, width=6), Capacity(ticks=7, slots=5)
    plan = plan_rounds(shape, room, Solver(0.1, 6, epochs=1, gamma=0.1), 0, [], noisy=True)
    assert plan_bytes(shape, room) == sum(array.nbytes for array in jax.tree.leaves(plan.ticks))


@given(lengths=LISTS, lanes=st.integers(1, 5))
def test_jobs_go_to_the_least_loaded_lane_longest_first(lengths: list[int], lanes: int) -> None:
    packing = pack(np.array(lengths, np.int64), lanes)
    load = [0] * lanes
    for job in sorted(range(len(lengths)), key=lambda job: (-lengths[job], job)):
        lane = load.index(min(load))
        assert (packing.lane[job], packing.start[job]) == (lane, load[lane])
        load[lane] += lengths[job]
        assert packing.end[job] == load[lane]
    assert packing.ticks == max(load)


def test_a_job_without_ticks_begins_and_ends_nowhere() -> None:
    ends = segments(pack(np.array([0, 3, 0]), lanes=1), devices=1, lanes=1, room=3)
    assert (ends.count.tolist(), ends.stop.tolist()) == ([1], [[3, 0, 0]])
    for jobs in (ends.begin, ends.end):
        assert jobs[0, :, 0].tolist() == [1, -1, -1]


@given(lengths=LISTS, each=st.integers(1, 4), processes=st.integers(1, 3), seed=SEEDS)
def test_a_processs_jobs_are_packed_into_its_own_lanes(
    lengths: list[int], each: int, processes: int, seed: int
) -> None:
    ticks, owner = (
        np.array(lengths, np.int64),
        generator(seed, Purpose.DATA).integers(processes, size=12),
    )
    owner = owner[: len(ticks)]
    packing = pack(ticks, processes * each, owner, processes)
    for p in range(processes):
        alone = pack(ticks[owner == p], each)
        np.testing.assert_array_equal(packing.lane[owner == p], p * each + alone.lane)
        np.testing.assert_array_equal(packing.start[owner == p], alone.start)
        np.testing.assert_array_equal(packing.end[owner == p], alone.end)


@given(
    rounds=st.lists(LISTS, max_size=3),
    devices=st.integers(1, 3),
    overhead=st.sampled_from([0.0, 0.7, 3.0, 64.0]),
    most=st.integers(1, 24),
)
def test_no_other_number_of_lanes_costs_less(
    rounds: list[list[int]], devices: int, overhead: float, most: int
) -> None:
    lengths = [np.array(each, np.int64) for each in rounds]
    chosen = choose_lanes(lengths, devices, overhead, most)
    widest = max(map(len, rounds), default=1)
    choices = [w for w in (1, 2, 3, 4, 6, 8, 12, 16, 24) if w <= most]
    choices = [w for w in choices if w == 1 or w * devices < 2 * widest]

    def cost(w: int) -> float:
        return sum(pack(each, w * devices).ticks for each in lengths) * (overhead + w)

    assert chosen == min(choices, key=cost)  # of several that cost the same, the fewest


def slow_steps(
    systems: Systems, seed: int, round_: int, cohort: list[int], sizes: list[int], solver: Solver
) -> NDArray[np.int64]:
    """Each client's steps, from a generator of its own."""
    full = [solver.steps_for(n) for n in sizes]
    order = generator(seed, Purpose.STRAGGLERS, round_).permutation(len(cohort))
    steps = np.array(full)
    for slot in order[: round(systems.stragglers * len(cohort))]:
        stream = generator(seed, Purpose.WORK, round_, cohort[slot])
        if solver.epochs is None or solver.epochs == 1:
            steps[slot] = stream.integers(1, full[slot], endpoint=True)
        else:
            epochs = stream.integers(1, solver.epochs, endpoint=True)
            steps[slot] = epochs * math.ceil(sizes[slot] / solver.batch_of(sizes[slot]))
    return steps


def test_partial_work_of_many_epochs_is_that_of_one_client_after_another() -> None:
    systems, solver = Systems(1.0), Solver(0.1, 10, epochs=1000)
    cohort, sizes = [7, 3, 9, 1, 4], [5, 40, 1, 333, 20]
    for seed in range(4):
        work = systems.work(seed, 3, np.array(cohort), np.array(sizes), solver)
        expected = slow_steps(systems, seed, 3, cohort, sizes, solver)
        np.testing.assert_array_equal(work.steps, expected)


@given(
    solver=solvers(),
    cohort=CLIENTS,
    seed=SEEDS,
    round_=st.integers(0, 1000),
    systems=st.builds(Systems, stragglers=st.floats(0, 1)),
)
def test_work_is_that_of_one_client_after_another(
    solver: Solver, cohort: list[int], seed: int, round_: int, systems: Systems
) -> None:
    sizes = list(itertools.islice(itertools.cycle([5, 40, 1, 333]), len(cohort)))
    clients, rows = np.array(cohort, np.int64), np.array(sizes, np.int64)
    work = systems.work(seed, round_, clients, rows, solver)
    expected = slow_steps(systems, seed, round_, cohort, sizes, solver)
    np.testing.assert_array_equal(work.steps, expected)
