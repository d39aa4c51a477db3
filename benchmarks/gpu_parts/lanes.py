"""The constants of `lane_cost`, and the number of lanes that they imply against the best of a grid.

A tick of w lanes is assumed to cost a + b w. The overhead of `lane_cost` is a / b: the fixed cost
of a tick, in units of one lane's work. Rounds are run with each number of lanes w of a grid, a and
b are fitted, and the number that the fit implies is compared with the fastest one. Evaluations,
whose ticks read rows, likewise. What a round costs once is neglected: it cannot be told from b,
since lanes that are never idle do the same work in all, whatever their number. Several local epochs
make it small.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

import fedprox as fp
from benchmarks.gpu_parts.part import Part
from benchmarks.models import Row, rounds_for, row_named
from fedprox.engine.compiled import layout
from fedprox.engine.planning.jobs import choose_lanes, pack
from fedprox.engine.planning.reads import slice_width, slices

GRID = (1, 8, 64, 16, 32, 4, 2)
"""Numbers of lanes, in the order in which they are measured."""

NAMES = ("FedDyn CNN", "logistic", "character LSTM 2x100", "2NN", "MNIST CNN")
"""The models, in the order in which they are measured."""

CLIENTS = 64

EPOCHS = 4
"""Local epochs of a round."""

SPREAD = 0.5
"""Standard deviation of the logarithm of clients' steps."""


@contextmanager
def with_lanes(lanes: int) -> Iterator[None]:
    """Runs with a fixed number of lanes on each device, for steps and for reading."""
    with mock.patch.object(layout, "choose_lanes", return_value=lanes):
        yield


class Measured(NamedTuple):
    """Rounds with some number of lanes.

    Attributes:
        lanes: The number of lanes.
        round: Seconds of a round.
        evaluation: Seconds of an evaluation.
    """

    lanes: int
    round: float
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
    return Setting(federation, EPOCHS * steps, slices(sizes, slice_width(sizes)))


def measure(row: Row, setting: Setting, lanes: int, seconds: float) -> Measured:
    """Time rounds and evaluations with some number of lanes on one device."""
    model = row.model(setting.federation)

    def run(rounds: int, *, often: bool = False, apart: bool = False) -> fp.Run:
        """Rounds with two evaluations, or with `often` one a round; `apart`: a call for each."""
        small = 0 if apart else layout.SMALL_MODEL
        with with_lanes(lanes), mock.patch.object(layout, "SMALL_MODEL", small):
            return fp.simulate(
                setting.federation,
                model,
                fp.fedavg(),
                solver=fp.Solver(0.01, row.batch, epochs=EPOCHS),
                cohort=fp.Cohort(len(setting.federation)),
                rounds=rounds,
                evaluation=fp.Evaluation(every=1 if often else rounds, gradients=False),
                devices=1,
                progress=False,
            )[0]

    rounds = rounds_for(seconds, run)
    few, many, apart, often = (math.inf,) * 4
    for _ in range(2):
        few = min(few, run(1).run_seconds)
        many = min(many, run(1 + rounds).run_seconds)
        apart = min(apart, run(1 + rounds, apart=True).run_seconds)
        often = min(often, run(1 + rounds, often=True, apart=True).run_seconds)
    return Measured(lanes, (many - few) / rounds, (often - apart) / rounds)


class Fit(NamedTuple):
    """The cost ticks (a + b w) of a round, or of an evaluation, in w lanes.

    Attributes:
        overhead: a / b, the constant of `lane_cost`; infinite if lanes cost nothing.
        tick: a, seconds.
        lane: b, seconds.
    """

    overhead: float
    tick: float
    lane: float


def fit(lanes: Sequence[int], ticks: Sequence[int], seconds: Sequence[float]) -> Fit:
    """The cost with the least squared relative error.

    >>> costs = [ticks * (10 + lanes) for ticks, lanes in ((64, 1), (16, 4), (4, 16), (1, 64))]
    >>> [round(number, 6) for number in fit([1, 4, 16, 64], [64, 16, 4, 1], costs)]
    [10.0, 10.0, 1.0]
    """
    w, n, t = (np.asarray(values, float) for values in (lanes, ticks, seconds))
    known = t > 0  # the others are lost in noise
    if not known.any():
        return Fit(*(math.nan,) * 3)
    columns = np.stack([n, n * w], axis=1)[known] / t[known, None]
    (a, b), _ = nnls(columns, np.ones(len(columns)))
    return Fit(float(a / b) if b > 0 else math.inf, float(a), float(b))


def main(part: Part) -> None:
    """Measure each model's ticks and write the constants that they imply."""
    grid, clients, seconds = ((1, 2, 4), 8, 0.05) if part.tiny else (GRID, CLIENTS, 0.2)
    for name in ("logistic",) if part.tiny else NAMES:
        row = row_named(name)
        setting = setting_of(row, clients)
        measured: list[Measured] = []
        for lanes in grid:
            try:
                one = measure(row, setting, lanes, seconds)
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
                    "ticks": pack(setting.steps, lanes).ticks,
                    "round ms": 1e3 * one.round,
                    "evaluation ms": 1e3 * one.evaluation,
                },
            )
            if len(measured) > 2:  # the last of these lines is the best
                part.write("Constants of lane_cost", **implied(row, setting, measured))


def implied(row: Row, setting: Setting, measured: Sequence[Measured]) -> dict[str, Any]:
    """The fitted constants, and how the choices of lanes compare with the fastest of the grid."""
    shapes = row.model(setting.federation).shapes
    parameters = sum(a.size for a in jax.tree.leaves(shapes))
    step_now, reading_now, most = layout.lane_cost(
        parameters, accelerator=jax.default_backend() != "cpu"
    )
    lanes = [one.lanes for one in measured]

    def fitted(jobs: NDArray[np.int64], seconds: Sequence[float]) -> Fit:
        return fit(lanes, [pack(jobs, w).ticks for w in lanes], seconds)

    step = fitted(setting.steps, [one.round for one in measured])
    reading = fitted(setting.reads, [one.evaluation for one in measured])
    times = {one.lanes: one.round for one in measured}
    best = min(times, key=times.__getitem__)

    def chosen(overhead: float) -> int:
        finite = min(overhead, 1e9) if overhead == overhead else 0.0
        return choose_lanes([setting.steps], 1, finite, most)

    def slower(lanes: int) -> float:
        """Time of a round at the measured number of lanes that is nearest, over the best."""
        nearest = min(times, key=lambda other: abs(math.log(other / lanes)))
        return times[nearest] / times[best]

    now, by_fit = chosen(step_now), chosen(step.overhead)
    return {
        "model": row.name,
        "parameters": parameters,
        "lanes measured": len(measured),
        "step, now": step_now,
        "step, measured": step.overhead,
        "tick us": 1e6 * step.tick,
        "lane us": 1e6 * step.lane,
        "reading, now": reading_now,
        "reading, measured": reading.overhead,
        "most lanes": most,
        "lanes now": now,
        "now / best": slower(now),
        "lanes by the fit": by_fit,
        "fit / best": slower(by_fit),
        "best lanes": best,
    }
