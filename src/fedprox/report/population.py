"""What the devices of a population mean for rounds: a figure, and a line of words."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.federation import Federation
from fedprox.messages.compression import Compression
from fedprox.model import Model
from fedprox.report.figure import make_logarithmic
from fedprox.simulation.config.availability import Hours
from fedprox.simulation.config.population import Population
from fedprox.simulation.config.protocol import pace_of
from fedprox.solver import Solver

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMES = 97
"""Times of a period at which the clients that are on are counted."""


def work_seconds(
    population: Population,
    federation: Federation,
    model: Model,
    method: Algorithm,
    solver: Solver,
    seed: int,
    compression: Compression | None = None,
) -> tuple[NDArray[np.float64], Hours | None]:
    """Seconds of each client for a round of a method with all of its work, and when it is on."""
    sizes, own = federation.train.sizes, method.solver(solver)
    pace = pace_of(population, federation, model, method, own, seed, compression)
    return pace.seconds(np.arange(len(sizes)), own.steps_for(sizes)), pace.hours


def share_on(hours: Hours) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times of a period, and the share of the clients that are on at each.

    >>> day = Hours(np.array([0, 1, 1]), np.array([0.0]), np.array([30.0]), 120.0)
    >>> share_on(day)[1].mean().round(3)
    np.float64(0.129)
    """
    times = np.linspace(0, hours.period, TIMES)
    clients = np.arange(len(hours.first) - 1)
    return times, np.array([(hours.left(t, clients) > 0).mean() for t in times])


def population_words(seconds: NDArray[np.float64], hours: Hours | None, dropout: float) -> str:
    """A line about the clients' devices.

    >>> population_words(np.array([1.0, 2.0, 40.0]), None, 0.1)
    "a client's round: 2 s in the median, from 1 s to 40 s; always on; 10 % of them are lost"
    """
    middle, least, most = np.median(seconds), seconds.min(), seconds.max()
    on = (
        "always on"
        if hours is None
        else f"on for {100 * share_on(hours)[1].mean():.0f} % of the time"
    )
    lost = f"; {100 * dropout:g} % of them are lost" if dropout else ""
    return (
        f"a client's round: {middle:.3g} s in the median, from {least:.3g} s to {most:.3g} s; "
        f"{on}{lost}"
    )


def population_figure(seconds: NDArray[np.float64], hours: Hours | None, title: str) -> "Figure":
    """A figure of how long clients take for a round, slowest first, and of how many are on."""
    from matplotlib.figure import Figure  # here, since it is slow to import

    drawn = Figure(figsize=(11, 4.4), layout="constrained")
    drawn.suptitle(title, fontsize=11, parse_math=False)  # it holds a user's path
    left, right = drawn.subplots(1, 2)
    left.stairs(np.sort(seconds)[::-1], np.arange(len(seconds) + 1) + 0.5, baseline=None)
    left.axhline(float(np.median(seconds)), color="0.4", linestyle="--", linewidth=1)
    left.set_title(f"seconds of a client's round, {np.median(seconds):.3g} in the median")
    left.set_xlabel("client, slowest first")
    left.grid(alpha=0.3)
    if 0 < 5 * seconds.min() < seconds.max():
        make_logarithmic(left, float(seconds.min()), float(seconds.max()))
    else:
        left.set_ylim(0, 1.15 * max(float(seconds.max()), 1e-9))
    if hours is None:
        right.text(0.5, 0.5, "all clients are always on", ha="center", va="center")
        right.axis("off")
        return drawn
    times, share = share_on(hours)
    right.plot(times / 3600, 100 * share)
    right.set_ylim(0, 105)
    right.set_title("clients that are on, in percent")
    right.set_xlabel("hours from the begin of the run, then repeated")
    right.grid(alpha=0.3)
    return drawn
