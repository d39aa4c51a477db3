"""Combining the answers of nodes to a round: the mean of their messages."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.deployment.conversation import Answered
from fedprox.deployment.messages import Array
from fedprox.deployment.round_part import RoundPart
from fedprox.messages.faults import screen
from fedprox.messages.sums import beside, mean_of, scaled, sound
from fedprox.simulation.config.method import Method
from fedprox.simulation.devices.programs import jit_once
from fedprox.simulation.planning.jobs import Jobs


class NodePart(NamedTuple):
    """A node's part of a round, as the coordinator holds it.

    Attributes:
        node: The node's index.
        at: Which of the round's jobs are the node's, shape (n,).
        part: The part, with these n jobs.
        answered: The answer that held it.
    """

    node: int
    at: NDArray[np.int64]
    part: RoundPart
    answered: Answered


class Combined(NamedTuple):
    """The answers of all nodes to a round.

    Attributes:
        parts: The nodes' parts.
        mean: Weighted mean of the messages that count, leaves (points, ...); zeros without any.
            With privacy, and without a barrier, their weighted sum.
        steps: Steps of each job, (jobs, points); 0 for jobs of nodes without answer.
        counts: Whether each job counts, (jobs, points).
        faulty: Whether each job's update, or its node's, was faulty, (jobs, points).
    """

    parts: Sequence[NodePart]
    mean: Any
    steps: NDArray[np.int64]
    counts: NDArray[np.bool_]
    faulty: NDArray[np.bool_]


def combined(
    method: Method,
    jobs: Jobs,
    nodes: Sequence[NodePart],
    message: Any,
    size: Callable[[Any], jax.Array] | None = None,
    total: Any = None,
) -> Combined:
    """Combine the parts of nodes, whose order does not matter.

    A part's message is one update: it is faulty if it is not finite, or if its mean is far larger
    than those of the others. A robust rule reads the means of the parts that count.

    Args:
        method: The method.
        jobs: The round's jobs.
        nodes: Their parts.
        message: The message, in shape, leaves (points, ...).
        size: (message) -> its size; None for the method's.
        total: The sum of the parts' messages if it is all that is known of them; None if the parts
            have them.
    """
    points = len(method.points)
    shape = (len(jobs.client), points)
    steps, counts = np.zeros(shape, np.int64), np.zeros(shape, bool)
    faulty = np.zeros(shape, bool)
    nodes = sorted(nodes, key=lambda each: (each.node, int(each.at[0])))
    parts = [node.part for node in nodes]
    for _, at, part, _ in nodes:
        steps[at], counts[at], faulty[at] = part.steps, part.counts, part.faulty
    if not nodes:
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), message)
        return Combined(nodes, zeros, steps, counts, faulty)
    if total is not None:
        mean = mean_of(total, jnp.asarray(summed([part.counted for part in parts])))
        return Combined(nodes, mean, steps, counts, faulty)
    faults = method.faults
    assert faults is not None  # a deployment always screens
    answered = np.stack([part.counted > 0 for part in parts])
    means = [mean_of(part.message, jnp.asarray(part.counted)) for part in parts]
    is_sound = jit_once(jax.vmap(sound))
    finite = jnp.stack([is_sound(mean) for mean in means])
    sizes = None
    if faults.compares:
        measure = jit_once(jax.vmap(size or method.algorithm.client.size))
        sizes = jnp.stack([measure(mean) for mean in means])
    weight = jnp.array([part.counted.max() for part in parts])
    screened = screen(faults, finite * answered, sizes, weight)
    scales = np.asarray(screened.scale)
    bad = answered & np.asarray(screened.flagged)
    for i, (_, at, part, _) in enumerate(nodes):
        faulty[at] |= bad[i][None] & part.counts
        counts[at] &= (scales[i] > 0)[None]
    if method.rule.stores:
        stacked = jax.tree.map(lambda *each: jnp.stack(each, axis=1), *means)
        kept = scaled(screened.scale.T, stacked)
        rule = jit_once(jax.vmap(method.rule.of, in_axes=(0, 0, None)))
        taken = rule(kept, screened.scale.T > 0, weight)
        return Combined(nodes, taken, steps, counts, faulty)
    mean = weighted(scales, [part.message for part in parts])
    if not method.keeps_weights:
        counted = [part.counted * (scale > 0) for part, scale in zip(parts, scales, strict=True)]
        mean = mean_of(mean, summed(counted))
    return Combined(nodes, mean, steps, counts, faulty)


def summed(parts: Sequence[Any]) -> Any:
    """The sum of some trees of arrays."""
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)


def weighted(weights: Iterable[Any], trees: Iterable[Any]) -> Any:
    """The sum of trees with leaves (points, ...) times weights (points,).

    Where a weight is 0 the leaves may be infinite or NaN.
    """

    def times(weight: Array, leaf: Array) -> Array:
        weight = beside(weight, leaf)
        return np.where(weight > 0, weight * leaf, 0)

    with np.errstate(invalid="ignore"):  # 0 times infinity is not used
        return summed(
            [
                jax.tree.map(partial(times, weight), tree)
                for weight, tree in zip(weights, trees, strict=True)
            ]
        )
