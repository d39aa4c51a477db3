"""What a private run has declared, and whether its requests keep to it.

By how much a client can move the sum of a round, and so the epsilon, follows from these numbers. A
node computes the epsilon from the declaration, so it answers nothing else. How many steps clients
take and where they stop needs no check: their messages are clipped in any case.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.deployment.messages import Hiding, Setup
from fedprox.errors import require
from fedprox.messages.private import releases
from fedprox.simulation.planning.jobs import Jobs

ROUNDING = 1e-5
"""Relative error of numbers that were computed in single precision."""

BOTH = "privacy hides clients or rows; a run has one of both"

DEVIATIONS = 10
"""Standard deviations of noise that are never exceeded."""


def check_declaration(setup: Setup, hiding: Hiding, algorithm: Algorithm, points: int) -> None:
    """Raise `InputError` if what a private run declares does not fit its method.

    Args:
        setup: The run.
        hiding: Its declaration.
        algorithm: The method, as the library has it.
        points: Its sweep points.
    """
    require(setup.private_steps is None, BOTH)
    mechanism, cohort = hiding.mechanism, (setup.clients, setup.clients_per_round)
    declared = mechanism.clients, mechanism.clients_per_round
    require(declared == cohort, f"cohorts of {cohort} clients; privacy is for {declared}")
    needed = releases(algorithm)
    require(
        mechanism.releases == needed,
        f"privacy.mechanism.releases = {mechanism.releases}; a round of the method has {needed}",
    )
    require(
        hiding.rounds >= setup.rounds,
        f"{setup.rounds} rounds; privacy is declared for {hiding.rounds}",
    )
    _require_one_point(points)


def check_steps(setup: Setup, points: int) -> None:
    """Raise `InputError` if a run whose local steps hide rows declares what it cannot keep."""
    require(setup.privacy is None, BOTH)
    _require_one_point(points)


def _require_one_point(points: int) -> None:
    require(points == 1, f"{points} sweep points; a private run has one")


def check_jobs(setup: Setup, hiding: Hiding, jobs: Jobs, participation: float) -> None:
    """Raise `InputError` if the jobs of a private round are not as declared."""
    mechanism, count = hiding.mechanism, len(jobs.client)
    most = mechanism.clients
    if mechanism.sampling == "uniform":
        most = mechanism.clients_per_round
    elif mechanism.capacity is not None:
        most = mechanism.capacity
    require(count <= most, f"{count} clients; a private round has at most {most}")
    share = setup.clients_per_round / setup.clients
    for name, values, value in (
        ("weight", jobs.weight, 1 / setup.clients_per_round),
        ("relative_size", jobs.relative_size, 1.0),
        ("participation", np.array([participation]), share),
    ):
        same = np.allclose(values, value, rtol=ROUNDING, atol=0.0)
        require(same, f"{name} = {values.tolist()}; in this private run it is {value:g}")


def check_clip(setup: Setup, hiding: Hiding, round_: int, clip: NDArray[np.float32]) -> None:
    """Raise `InputError` if a clipping norm is not the declared one, or cannot follow from it.

    An adaptive norm moves by a factor each round, which has a largest value.
    """
    declared, adaptive = np.float32(hiding.clip), hiding.adaptive_clip
    if adaptive is None:
        require((clip == declared).all(), f"clip = {clip.tolist()}; {declared:g} is declared")
        return
    mechanism = hiding.mechanism
    cohort, most = setup.clients_per_round, mechanism.capacity or mechanism.clients
    # of the mean of bits 1/2 or -1/2 from its quantile, with its noise
    distance = most / (2 * cohort) + 0.5 + DEVIATIONS * adaptive.count_noise / cohort
    reach = ROUNDING + round_ * (adaptive.rate * distance + ROUNDING)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.abs(np.log(clip.astype(np.float64)) - math.log(declared))
    require(
        (moved <= reach).all(),
        f"clip = {clip.tolist()}; in round {round_ + 1} it cannot be so far from {declared:g}, "
        "with which it began",
    )
