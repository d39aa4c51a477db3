"""The constants of `lane_cost`, and the number of lanes that they imply against the best of a grid.

A tick of w lanes is assumed to cost a + b w. The overhead of `lane_cost` is a / b: the fixed cost
of a tick, in units of one lane's work. Rounds are run with each number of lanes w of a grid, the
time of a tick is fitted, and the number that the fit implies is compared with the fastest one.
Reading ticks, of evaluations, likewise.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from benchmarks.gpu_parts.part import Part
from benchmarks.models import Row, row_named
from fedprox.simulation.compiled import layout
from fedprox.simulation.planning.packing import choose_lanes, pack
from fedprox.simulation.planning.reads import slice_width, slices

GRID = (1, 8, 64, 16, 32, 4, 2)
"""Numbers of lanes, in the order in which they are measured."""

NAMES = ("FedDyn CNN", "logistic", "character LSTM 2x100", "2NN", "MNIST CNN")
"""The models, in the order in which they are measured."""

CLIENTS = 64

SPREAD = 0.5
"""Standard deviation of the logarithm of clients' steps."""


@contextmanager
def with_lanes(lanes: int) -> Iterator[None]:
    """Runs with a fixed number of lanes on each device, for steps and for reading."""
    with mock.patch.object(layout, "choose_lanes", lambda *_: lanes):
        yield


class Measured(NamedTuple):
    """Rounds with some number of lanes.

    Attributes:
        lanes: The number of lanes.
        round: Seconds of a round.
        tick: Seconds of a tick of a round.
        reading: Seconds of a tick of an evaluation.
        evaluation: Seconds of an evaluation.
    """

    lanes: int
    round: float
    tick: float
    reading: float
    evaluation: float


class Setting(NamedTuple):
    """A federation of clients of different sizes, and the ticks of its jobs.

    Attributes:
        federation: The clients, all of which take part in each round.
        steps: Steps of each client in a round.
        reads: Slices of each client in an evaluation.
    """

    federation: fp.Federation
    steps: NDArray[np.int64]
    reads: NDArray[np.int64]


def setting_of(row: Row, clients: int) -> Setting:
    """Random data of a model's shape for clients with 1 to 20 mini-batches, four at the median."""
    rng = np.random.default_rng(2)
    steps = np.clip(np.rint(4 * rng.lognormal(0, SPREAD, clients)), 1, 20).astype(np.int64)
    x, y = row.federation(1).train.client(0)
    rows = [rng.integers(len(y), size=row.batch * count) for count in steps]
    federation = fp.Federation.from_arrays([(x[i], y[i]) for i in rows], classes=row.classes)
    sizes = federation.train.sizes
    return Setting(federation, steps, slices(sizes, slice_width(sizes)))


def measure(row: Row, setting: Setting, lanes: int, rounds: int, repeats: int) -> Measured:
    """Time rounds and evaluations with some number of lanes on one device."""

    def run(rounds: int, every: int) -> float:
        with with_lanes(lanes):
            return fp.simulate(
                setting.federation,
                row.model(setting.federation),
                fp.fedavg(),
                solver=fp.Solver(0.01, row.batch, epochs=1),
                cohort=fp.Cohort(len(setting.federation)),
                rounds=rounds,
                evaluation=fp.Evaluation(every=every, gradients=False),
                devices=1,
                progress=False,
            )[0].run_seconds

    run(1, 1)
    few, many, often = math.inf, math.inf, math.inf
    for _ in range(repeats):
        few = min(few, run(1, 1))  # two evaluations, as in the next
        many = min(many, run(1 + rounds, 1 + rounds))
        often = min(often, run(1 + rounds, 1))
    one = max(many - few, 1e-9) / rounds
    evaluation = max(often - many, 1e-9) / rounds
    return Measured(
        lanes,
        one,
        one / pack(setting.steps, lanes).ticks,
        evaluation / pack(setting.reads, lanes).ticks,
        evaluation,
    )


class Fit(NamedTuple):
    """A tick's cost a + b w for w lanes.

    Attributes:
        overhead: a / b, infinite if lanes cost nothing.
        fixed: a, seconds.
        lane: b, seconds.
    """

    overhead: float
    fixed: float
    lane: float


def fit(lanes: Sequence[int], seconds: Sequence[float]) -> Fit:
    """The cost with the least squared relative error, with a and b of at least 0.

    >>> overhead, fixed, lane = fit([1, 4, 16], [11.0, 14.0, 26.0])
    >>> round(overhead, 6), round(fixed, 6), round(lane, 6)
    (10.0, 10.0, 1.0)
    """
    w, t = np.asarray(lanes, float), np.asarray(seconds, float)
    columns = np.stack([np.ones_like(w), w], axis=1) / t[:, None]
    (a, b), *_ = np.linalg.lstsq(columns, np.ones_like(t), rcond=None)
    if a < 0:
        a, b = 0.0, float((w / t).sum() / ((w / t) ** 2).sum())
    elif b <= 0:
        a, b = float((1 / t).sum() / (1 / t**2).sum()), 0.0
    return Fit(float(a / b) if b > 0 else math.inf, float(a), float(b))


def main(part: Part) -> None:
    """Measure each model's ticks and write the constants that they imply."""
    grid, clients, rounds = (1, 2, 4), 8, 2
    names: tuple[str, ...] = ("logistic",)
    if not part.tiny:
        grid, clients, rounds, names = GRID, CLIENTS, 10, NAMES
    for name in names:
        row = row_named(name)
        setting = setting_of(row, clients)
        parameters = sum(a.size for a in jax.tree.leaves(row.model(setting.federation).shapes))
        measured: list[Measured] = []
        for lanes in grid:
            try:
                one = measure(row, setting, lanes, rounds, 2)
            except Exception as error:  # such as too little memory for so many lanes
                wrong = repr(error)[:200]
                part.write("Numbers of lanes that failed", model=name, lanes=lanes, error=wrong)
                continue
            measured.append(one)
            part.write(
                "Rounds by number of lanes",
                **{
                    "model": name,
                    "lanes": lanes,
                    "round ms": 1e3 * one.round,
                    "tick us": 1e6 * one.tick,
                    "evaluation ms": 1e3 * one.evaluation,
                    "reading tick us": 1e6 * one.reading,
                },
            )
        if len(measured) > 1:
            part.write("Constants of lane_cost", **implied(name, parameters, setting, measured))


def implied(
    name: str, parameters: int, setting: Setting, measured: Sequence[Measured]
) -> dict[str, Any]:
    """The fitted constants, and how the choices of lanes compare with the fastest of the grid."""
    cost = layout.lane_cost(parameters, accelerator=jax.default_backend() != "cpu")
    lanes = [one.lanes for one in measured]
    step, reading = (fit(lanes, [getattr(m, k) for m in measured]) for k in ("tick", "reading"))
    times = {one.lanes: one.round for one in measured}
    best = min(times, key=times.__getitem__)

    def chosen(overhead: float) -> int:
        return choose_lanes([setting.steps], 1, min(overhead, 1e9), cost.most)

    def slower(lanes: int) -> float:
        """Time of a round at the measured number of lanes that is nearest, over the best."""
        nearest = min(times, key=lambda other: abs(math.log(other / lanes)))
        return times[nearest] / times[best]

    ours, fitted = chosen(cost.step), chosen(step.overhead)
    return {
        "model": name,
        "parameters": parameters,
        "step, now": cost.step,
        "step, measured": step.overhead,
        "reading, now": cost.reading,
        "reading, measured": reading.overhead,
        "most lanes": cost.most,
        "lanes now": ours,
        "to the best": slower(ours),
        "lanes by the fit": fitted,
        "fit to the best": slower(fitted),
        "best lanes": best,
    }
