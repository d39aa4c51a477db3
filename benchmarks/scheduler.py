"""The lane scheduler alone, at cohorts of up to 100,000 clients, and a cost model of a round.

    python -m benchmarks.scheduler

There are a million clients of log-normal sizes, 100 rows on average. E = 1, B = 10, and half of
every cohort are stragglers. The number of lanes is the library's choice for logistic regression, on
accelerators and on CPU devices. Nothing is trained. Times are processor seconds, because other work
may share the machine, and the least of several. *Idle* is the share of lane ticks in which a lane
has no client.

Clients' rows of 4 and of 784 bytes are read from a file of 2 GB, which the system was asked to drop
from its cache, in two ways: as the library reads them, and one client after another.

The last two tables are those of docs/development/scale.md: the cost of rounds over 10^8 clients on
1, 8 and 64 accelerators. `round_cost` computes them from these times, from the steps measured with
`benchmarks.models`, and from an assumed accelerator (`Machine`).
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import fedprox as fp
from benchmarks.page import show, table
from fedprox.devices.processes import find_ownership
from fedprox.engine.compiled.layout import lane_cost
from fedprox.engine.planning.batch_plan import (
    Capacity,
    Shape,
    job_ticks,
    plan_bytes,
    plan_rounds,
    tick_width,
)
from fedprox.engine.planning.jobs import Jobs, choose_lanes, pack, segments
from fedprox.federation import offsets_of
from fedprox.files.mapping import copy_stretches, map_file
from fedprox.protocol.cohort import weights

CLIENTS, COHORTS, DEVICES = 1_000_000, (100, 1000, 10_000, 100_000), (1, 8, 64)
MEAN, SPREAD, LEAST, MOST = 100, 0.8, 10, 2000
"""Rows of a client: mean, standard deviation of the logarithm, the fewest and the most."""

PARAMETERS = 7850
"""Parameters of logistic regression on MNIST."""

ALL = 10**8
"""Clients of the federation in the last tables."""

FILE = 2**31
"""Bytes of the file to read from."""

EVALUATED = 10_000
"""Clients of an evaluation in the last tables."""

SYSTEMS = fp.Systems(stragglers=0.5)
HOMES, ROUNDS = (8, 64), 20

T = TypeVar("T")


def sizes(clients: int) -> NDArray[np.int64]:
    """Rows of each client."""
    drawn = np.random.default_rng(0).lognormal(math.log(MEAN) - SPREAD**2 / 2, SPREAD, clients)
    return np.clip(drawn, LEAST, MOST).astype(np.int64)


def timed(make: Callable[[], T], seconds: float = 0.5) -> tuple[T, float]:
    """A function's result, and the least processor seconds of at least two calls."""
    times: list[float] = []
    while len(times) < 2 or (sum(times) < seconds and len(times) < 50):
        begin = time.process_time()
        result = make()
        times.append(time.process_time() - begin)
    return result, min(times)


def drawing(everyone: NDArray[np.int64], cohort: int) -> float:
    """Seconds to draw a cohort of all clients."""
    return timed(lambda: fp.Cohort(cohort).draw(0, 0, everyone))[1]


class Drawn(NamedTuple):
    """A cohort's work, and the seconds to compute it."""

    jobs: Jobs
    ticks: NDArray[np.int64]
    draw: float
    work: float
    counting: float


def draw(
    offsets: NDArray[np.int64],
    cohort: int,
    solver: fp.Solver,
    systems: fp.Systems,
    *,
    t: int = 0,
    processes: int = 1,
) -> Drawn:
    """A round's clients, their steps and their ticks."""
    drawn, seconds = timed(lambda: fp.Cohort(cohort).draw(0, t, offsets))
    first = offsets[drawn.clients]
    rows = offsets[drawn.clients + 1] - first
    work, working = timed(lambda: systems.work(0, t, drawn.clients, rows, solver))
    weight, none = weights(drawn.mass), np.zeros(cohort)
    home = find_ownership(offsets, processes).of(drawn.clients)
    jobs = Jobs(
        drawn.clients,
        first_row=first,
        size=rows,
        steps=work.steps,
        weight=weight,
        gamma=none,
        participation=none,
        relative_size=none,
        owner=home,
        device_row=first,
    )
    ticks, counting = timed(lambda: job_ticks(solver, jobs, tick_width(solver, MOST)))
    return Drawn(jobs, ticks, seconds, working, counting)


class Planned(NamedTuple):
    """A round's schedule, and the seconds of its parts; `plan` includes all but `choose`."""

    lanes: int
    ticks: int
    ends: int
    idle: float
    choose: float
    pack: float
    segments: float
    plan: float
    bytes: int


def plan(
    drawn: Drawn,
    solver: fp.Solver,
    parameters: int,
    devices: int,
    *,
    accelerator: bool = True,
    processes: int = 1,
) -> Planned:
    """Pack a round's clients into lanes, and plan the rows that each lane of a process reads."""
    step, _, most = lane_cost(parameters, accelerator=accelerator)
    lanes, choosing = timed(lambda: choose_lanes([drawn.ticks], devices, step, most))
    home, cohort, width = drawn.jobs.owner, len(drawn.ticks), tick_width(solver, MOST)
    packing, packed = timed(lambda: pack(drawn.ticks, devices * lanes, home, processes))
    room = min(cohort, packing.ticks)
    ends, ending = timed(lambda: segments(packing, devices, lanes, room))
    shape, held = Shape(1, devices, lanes, width, processes), Capacity(packing.ticks, cohort)
    made, planning = timed(lambda: plan_rounds(shape, held, solver, 0, [(0, drawn.jobs)]))
    idle = 1 - int(drawn.ticks.sum()) / (packing.ticks * devices * lanes)
    size = plan_bytes(shape, held) + sum(a.nbytes for a in jax.tree.leaves((made.ends, made.jobs)))
    most = int(ends.count.max())
    return Planned(
        lanes, packing.ticks, most, idle, choosing, packed, ending, planning, size // devices
    )


class Unequal(NamedTuple):
    """Imbalance between processes that own their clients; means over rounds.

    Attributes:
        clients: Clients of the process with the most, divided by the mean, minus one.
        steps: Steps of the process with the most, divided by the mean, minus one.
        ticks: Ticks of a round, divided by those of a round in which any process may train any
            client, minus one.
    """

    clients: float
    steps: float
    ticks: float


def unequal(offsets: NDArray[np.int64], cohort: int, processes: int, devices: int) -> Unequal:
    """The imbalance with the library's number of lanes and half the clients as stragglers."""
    solver, rounds = fp.Solver(0.1, 10, epochs=1), []
    (step, _, most), lanes = lane_cost(PARAMETERS, accelerator=True), 0
    ownership = find_ownership(offsets, processes)
    for t in range(ROUNDS):
        clients = fp.Cohort(cohort).draw(0, t, offsets).clients
        rows = offsets[clients + 1] - offsets[clients]
        steps = SYSTEMS.work(0, t, clients, rows, solver).steps  # a tick each
        home = ownership.of(clients)
        lanes = lanes or choose_lanes([steps], devices, step, most)
        shared, own = (pack(steps, devices * lanes, home, p).ticks for p in (1, processes))
        each = np.bincount(home, minlength=processes), np.bincount(home, steps, processes)
        rounds.append([*(e.max() / e.mean() - 1 for e in each), own / shared - 1])
    return Unequal(*np.mean(rounds, axis=0).tolist())


class Model(NamedTuple):
    """A model of `benchmarks.models`, with its step as measured there on two CPU cores.

    Attributes:
        name: The model's name.
        batch: Rows of a mini-batch.
        parameters: Number of parameters.
        step: Seconds of a client's step in a round on both cores.
        rate: Floating-point operations a second in that step.
        row: Bytes of a row with its label in the files.
        tick: Assumed overhead of a tick on an accelerator in seconds, about five microseconds for
            each operation that is started.
    """

    name: str
    batch: int
    parameters: int
    step: float
    rate: float
    row: int
    tick: float


MODELS = (
    Model("logistic regression", 10, 7_850, 0.010e-3, 30e9, 788, 0.1e-3),
    Model("MNIST CNN", 10, 1_663_370, 3.6e-3, 200e9, 788, 0.5e-3),
    Model("character LSTM 2x100", 10, 132_720, 3.1e-3, 189e9, 84, 5e-3),
    Model("ResNet-18", 50, 11_181_642, 72.4e-3, 150e9, 3076, 2e-3),
)


class Machine(NamedTuple):
    """An accelerator of a data centre and its host, assumed.

    Attributes:
        arithmetic: Operations a second that a lane's small products reach.
        memory: Bytes a second of the accelerator's memory.
        each: Accelerators of a host.
        link: Bytes a second from the host to each accelerator.
        near: Bytes a second between accelerators of a host.
        far: Bytes a second between hosts, for each accelerator.
        meeting: Latency of a sum over devices, in seconds.
        disk: Bytes a second that a host reads.
        seek: Seconds for each stretch of a file that is read ahead; read one after another,
            stretches take about 110e-6.
    """

    arithmetic: float = 10e12
    memory: float = 2.5e12
    each: int = 8
    link: float = 25e9
    near: float = 200e9
    far: float = 25e9
    meeting: float = 100e-6
    disk: float = 3e9
    seek: float = 20e-6


class Cost(NamedTuple):
    """Seconds of a round's parts, and of an evaluation.

    Attributes:
        start: Drawing and packing the cohort.
        tick: Ticks without arithmetic and memory accesses.
        arithmetic: Arithmetic, or memory accesses if they take longer, of all lanes, idle or not.
        reduction: The sum over the devices.
        plan: Planning the mini-batches of a process's clients.
        gather: Reading the clients' rows from the disk.
        transfer: Copying these rows and the plan to every device of the host.
        evaluation: The arithmetic of the loss of a sample of clients.
    """

    start: float
    tick: float
    arithmetic: float
    reduction: float
    plan: float
    gather: float
    transfer: float
    evaluation: float

    @property
    def round(self) -> float:
        """Seconds of a round, in which a thread plans and gathers while devices compute."""
        computing = self.tick + self.arithmetic + self.reduction
        return self.start + max(computing, self.plan + self.gather, self.transfer)

    @property
    def bottleneck(self) -> str:
        """The part that takes longest."""
        parts = {name: seconds for name, seconds in self._asdict().items() if name != "evaluation"}
        return max(parts, key=lambda name: parts[name])


def round_cost(
    model: Model, machine: Machine, drawn: Drawn, planned: Planned, devices: int, draw_all: float
) -> Cost:
    """The cost of a round on some accelerators, computed from times and rates.

    A lane's step moves the parameters through the memory five times: the forward pass, the backward
    pass, writing and reading the gradient, the update. Where jobs end, the parameters of all lanes
    move six times, to be added to the sum and to be reset.
    """
    hosts = math.ceil(devices / machine.each)
    vector, rows = 4 * model.parameters, int(drawn.jobs.size.sum())
    operations = model.step * model.rate
    step = max(operations / machine.arithmetic, 5 * vector / machine.memory)
    ends = planned.ends * 6 * vector / machine.memory
    between = machine.near if hosts == 1 else machine.far
    moved = 2 * vector * (devices - 1) / devices
    cohort, size = len(drawn.ticks), rows * model.row / hosts
    return Cost(
        start=draw_all + drawn.work + drawn.counting + 2 * planned.pack,
        tick=planned.ticks * model.tick,
        arithmetic=planned.lanes * (planned.ticks * step + ends),
        reduction=moved / between + machine.meeting if devices > 1 else 0.0,
        plan=planned.plan,
        gather=max(2 * cohort / hosts * machine.seek, size / machine.disk),
        transfer=(size + planned.bytes) / machine.link,
        evaluation=EVALUATED * MEAN * operations / model.batch / 3 / machine.arithmetic / devices,
    )


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def scheduler_tables(offsets: NDArray[np.int64], everyone: NDArray[np.int64]) -> Iterator[Table]:
    """The tables of measurements."""
    solver = fp.Solver(0.1, 10, epochs=1)
    work = {cohort: draw(offsets, cohort, solver, SYSTEMS) for cohort in COHORTS}
    shown = table("cohort", "rows", "draw, ms", "of 10^8", "work", "ticks", "us a client")
    for cohort, drawn in work.items():
        parts = drawn.draw, drawing(everyone, cohort), drawn.work, drawn.counting
        each = f"{sum(parts[1:]) / cohort * 1e6:.2f}"
        shown.add_row(f"{cohort:,}", f"{drawn.jobs.size.sum():,}", *map(ms, parts), each)
    yield shown
    shown = table(
        "cohort", "devices", "", "lanes", "longest", "ticks", "idle", "choose, ms", "pack",
        "segments", "whole plan", "us a client", "MB a device",
    )  # fmt: skip
    for cohort, drawn in work.items():
        for devices in DEVICES:
            for accelerator in (True, False):
                done = plan(drawn, solver, PARAMETERS, devices, accelerator=accelerator)
                shown.add_row(
                    f"{cohort:,}",
                    str(devices),
                    "accelerators" if accelerator else "CPU",
                    str(done.lanes),
                    str(drawn.ticks.max()),
                    f"{done.ticks:,}",
                    f"{100 * done.idle:.1f} %",
                    *map(ms, (done.choose, done.pack, done.segments, done.plan)),
                    f"{done.plan / cohort * 1e6:.1f}",
                    f"{done.bytes / 1e6:.2f}",
                )
    yield shown
    shown = table("cohort", "processes", "devices", "clients", "steps", "by rule", "ticks")
    rows = np.diff(offsets)
    steps = -(-rows // 10) * 0.75  # a straggler does half of them
    spread = 1 + (steps.std() / steps.mean()) ** 2
    for cohort in COHORTS[1:]:
        for processes in HOMES:
            imbalance = unequal(offsets, cohort, processes, devices=64)
            rule = math.sqrt(2 * math.log(processes) * spread * processes / cohort)
            percent = (imbalance.clients, imbalance.steps, rule, imbalance.ticks)
            shown.add_row(
                f"{cohort:,}", str(processes), "64", *(f"+{100 * p:.1f} %" for p in percent)
            )
    yield shown


def seconds_to_read(path: Path, first: NDArray[np.int64], *, ahead: bool) -> float:
    """Seconds for each client to read its rows from a file that is not in the cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        rows: Any = map_file(path)
        some, place = np.full(len(first), MEAN), np.arange(len(first)) * MEAN
        buffer = np.empty((MEAN, rows.shape[1]), np.uint8)
        begin = time.perf_counter()
        if ahead:
            copy_stretches(rows, first, some, place, MEAN * len(first))
        else:
            for row in first.tolist():
                os.preadv(file.fileno(), [buffer.data], rows.offset + row * rows.shape[1])
        return (time.perf_counter() - begin) / len(first)


def reading_table() -> Table:
    """Times to read clients' rows, the least of three repetitions."""
    shown = table("bytes of a client", "one after another, us", "asked for ahead", "ratio", left=0)
    stream = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for row in (4, 784):
            path, rows = Path(folder) / f"{row}.npy", FILE // row
            made = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, row))
            for part in np.array_split(made, 64):
                part[:] = stream.integers(256, size=part.shape, dtype=np.uint8)
            made.flush()
            del made, part
            turns = []
            for _ in range(3):
                first = np.sort(stream.choice(rows // MEAN, 1000, replace=False)) * MEAN
                turns.append([seconds_to_read(path, first, ahead=ahead) for ahead in (False, True)])
            one, asked = np.min(turns, axis=0) * 1e6
            shown.add_row(f"{row * MEAN:,}", f"{one:.0f}", f"{asked:.0f}", f"{one / asked:.1f}")
            path.unlink()
    return shown


def cost_tables(offsets: NDArray[np.int64], everyone: NDArray[np.int64]) -> Iterator[Table]:
    """The tables of computed costs."""
    machine = Machine()
    shown = table(
        "model", "cohort", "devices", "lanes", "start, ms", "ticks", "arithmetic", "reduction",
        "plan", "gather", "transfer", "round", "bottleneck", "hours a pass", "evaluation, ms",
    )  # fmt: skip
    seconds = {cohort: drawing(everyone, cohort) for cohort in COHORTS[1:]}
    for model in MODELS:
        solver = fp.Solver(0.1, model.batch, epochs=1)
        for cohort in COHORTS[1:]:
            for devices in DEVICES:
                hosts = math.ceil(devices / machine.each)
                drawn = draw(offsets, cohort, solver, fp.Systems(), processes=hosts)
                done = plan(drawn, solver, model.parameters, devices, processes=hosts)
                cost = round_cost(model, machine, drawn, done, devices, seconds[cohort])
                *parts, evaluation = cost
                shown.add_row(
                    model.name,
                    f"{cohort:,}",
                    str(devices),
                    str(done.lanes),
                    *map(ms, (*parts, cost.round)),
                    cost.bottleneck,
                    f"{ALL / cohort * cost.round / 3600:.1f}",
                    ms(evaluation),
                )
    yield shown
    shown = table(
        "model", "data, TB", "model, MB", "state of all, TB", "of 10,000 clients, GB",
        "operations a pass", "days on two cores",
    )  # fmt: skip
    rows = np.diff(offsets)
    for model in MODELS:
        vector = 4 * model.parameters
        steps = ALL * float(np.mean(-(-rows // model.batch)))
        shown.add_row(
            model.name,
            f"{ALL * MEAN * model.row / 1e12:.1f}",
            f"{vector / 1e6:.2f}",
            f"{ALL * vector / 1e12:.0f}",
            f"{10_000 * vector / 1e9:.1f}",
            f"{steps * model.step * model.rate:.1e}",
            f"{steps * model.step / 86400:.1f}",
        )
    yield shown


def main() -> None:
    """Show what was measured, and print what is computed from it."""
    offsets = offsets_of(sizes(CLIENTS))
    everyone = np.arange(0, MEAN * ALL + 1, MEAN)
    drawn, plans, owners = scheduler_tables(offsets, everyone)
    for shown in (drawn, owners, *cost_tables(offsets, everyone)):
        Console(width=200).print(shown)  # for docs/development/scale.md
    show(plans, reading_table())


if __name__ == "__main__":
    main()
