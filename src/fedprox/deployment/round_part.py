"""A node's part of a round, and the arrays of an answer that hold it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.messages import Array, prefixed, prefixed_names, require_like, tree_of
from fedprox.errors import require
from fedprox.messages.sums import mean_of
from fedprox.simulation.planning.jobs import Jobs


class RoundPart(NamedTuple):
    """A node's part of a round.

    Attributes:
        message: The messages that count, times their weights, summed, leaves (points, ...). On its
            way with compression, what each client sends, leaves (jobs, points, ...).
        counted: Sum of the weights of those that count, (points,).
        steps: Steps of each job, (jobs, points).
        counts: Whether each job counts, (jobs, points).
        faulty: Whether each job's update was faulty, (jobs, points).
    """

    message: Any
    counted: NDArray[np.float32]
    steps: NDArray[np.int64]
    counts: NDArray[np.bool_]
    faulty: NDArray[np.bool_]

    def arrays(self) -> dict[str, Array]:
        """The arrays of an answer."""
        return {
            **prefixed("message", self.message),
            "counted": self.counted,
            "steps": self.steps,
            "counts": self.counts,
            "faulty": self.faulty,
        }


def require_clipped(part: RoundPart, sum_: Any, clip: NDArray[np.float32]) -> None:
    """Raise `InputError` if a sum of clipped messages is larger than it can be.

    Args:
        part: The node's part of a round.
        sum_: What was clipped in its messages, times the weights, summed, leaves (points, ...).
        clip: The clipping norm, (points,).
    """
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(sum_)]
    norms = np.sqrt(sum((a**2).reshape(len(a), -1).sum(axis=1) for a in leaves))
    most = part.counted * clip * (1 + ROUNDING)
    require(
        (norms <= most).all(),
        f"its sum has the norms {norms.tolist()}; clipped to {clip.tolist()}, its clients' "
        f"messages have at most {most.tolist()}",
    )


Possible = Callable[[Any, NDArray[np.int64]], NDArray[np.bool_]]
"""(mean message, most steps of a client (points,)) -> whether clients can send it, (points,)."""


def part_shapes(jobs: int, message: Any, points: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of an answer, in shape.

    Args:
        jobs: Number of the node's jobs.
        message: The message, in shape, leaves (points, ...).
        points: Number of sweep points.
    """
    by_job = jobs, points
    return {
        **dict(zip(prefixed_names("message", message), jax.tree.leaves(message), strict=True)),
        "counted": jax.ShapeDtypeStruct((points,), np.float32),
        "steps": jax.ShapeDtypeStruct(by_job, np.int64),
        "counts": jax.ShapeDtypeStruct(by_job, np.bool_),
        "faulty": jax.ShapeDtypeStruct(by_job, np.bool_),
    }


def read_part(
    arrays: Mapping[str, Array],
    jobs: Jobs,
    message: Any,
    points: int,
    possible: Possible | None = None,
) -> RoundPart:
    """The inverse of `RoundPart.arrays`, with checks.

    Args:
        arrays: The arrays of an answer.
        jobs: The node's jobs.
        message: The message, in shape, leaves (points, ...).
        points: Number of sweep points.
        possible: Which mean messages clients can send; None if it may be any.

    Raises:
        InputError: If an array is missing, or is not what such a node can answer.
    """
    for name, like in part_shapes(len(jobs.client), message, points).items():
        require(name in arrays, f"the array {name!r} is missing")
        require_like(name, arrays[name], like)
    part = RoundPart(
        tree_of(message, arrays, "message"),
        arrays["counted"],
        arrays["steps"],
        arrays["counts"],
        arrays["faulty"],
    )
    weights = (jobs.weight[:, None] * part.counts).sum(axis=0)
    require(
        (np.abs(part.counted - weights) <= weights * ROUNDING).all(),
        f"it counts weights {part.counted.tolist()}; those of its clients sum to "
        f"{weights.tolist()}",
    )
    require(not (part.counts & part.faulty).any(), "it counts faulty updates")
    require(
        ((part.steps >= 0) & (part.steps <= jobs.steps[:, None])).all(),
        "it says that clients took more steps than they were asked for",
    )
    if possible is not None:
        require_possible(possible, part.message, [part])
    return part


def require_possible(possible: Possible, message: Any, parts: Sequence[RoundPart]) -> None:
    """Raise `InputError` if the clients of some parts cannot send a message.

    Args:
        possible: Which mean messages clients can send.
        message: Their messages, times their weights, summed, leaves (points, ...).
        parts: The parts.
    """
    counted = sum(part.counted for part in parts)
    counts, steps = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "steps")
    )
    most = np.where(counts, steps, 0).max(axis=0, initial=0)
    good = possible(mean_of(message, jnp.asarray(counted)), most)
    require(np.asarray(good).all(), "its message is none that its clients can send")
