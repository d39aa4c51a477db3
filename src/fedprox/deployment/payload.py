"""The arrays of a round's requests and answers: those that clients read, and their messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import ROUNDING, Algorithm, ClientContext, Solution, State
from fedprox.algorithms.check import GIVEN, STEPS, context_shape, scalar
from fedprox.deployment.wire import Array, prefixed, require_like, tree_of
from fedprox.devices.programs import jit_once
from fedprox.engine.planning.batch_plan import round_key
from fedprox.engine.planning.jobs import Jobs
from fedprox.errors import require
from fedprox.jax_internals import inputs_read
from fedprox.model import Params, Variables, trainable
from fedprox.parts.part import Coding, mean_of
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol


class SentState(NamedTuple):
    """The part of the server's state that the nodes of a method receive.

    Attributes:
        state: The server's state, in shape, for one sweep point.
        read: Whether clients read each leaf of the state. A server's own momentum, for example,
            is not sent.
        params: The parameters, in shape.
        initial: Whether a client makes its first state from w^0.
    """

    state: State
    read: tuple[bool, ...]
    params: Params
    initial: bool

    def sent(
        self, state: State, hparams: Mapping[str, NDArray[np.float32]], initial: Params | None
    ) -> list[Array]:
        """The arrays of a request."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        chosen = [leaf for leaf, read in zip(leaves, self.read, strict=True) if read]
        numbers = [np.asarray(hparams[name]) for name in sorted(hparams)]
        return chosen + numbers + [np.asarray(leaf) for leaf in jax.tree.leaves(initial)]

    def received(
        self, method: Method, arrays: Sequence[Array], *, with_initial: bool
    ) -> tuple[State, dict[str, NDArray[np.float32]], Params]:
        """The state, hyperparameters and w^0 of a request; what was not sent is zero, or None."""
        points = len(method.points)
        leaves, structure = jax.tree.flatten(at_points(self.state, points))
        likes = list(zip(leaves, self.read, strict=True))
        number = jax.ShapeDtypeStruct((points,), np.float32)
        state, hparams, initial = filled(
            (
                [like for like, read in likes if read],
                dict.fromkeys(method.points[0], number),
                self.params if with_initial else None,
            ),
            arrays,
        )
        given = iter(state)
        whole = [next(given) if read else np.zeros(a.shape, a.dtype) for a, read in likes]
        return jax.tree.unflatten(structure, whole), hparams, initial


def sent_state_of(algorithm: Algorithm, params: Params) -> SentState:
    """The part of the server's state that the nodes of a method receive.

    >>> from fedprox.algorithms import feddyn
    >>> sent_state_of(feddyn(alpha=0.1), jax.ShapeDtypeStruct((2,), np.float32)).read  # not h
    (True, False)
    """
    state = jax.eval_shape(algorithm.server.init, params)
    kept = algorithm.client.state
    client_state = None if kept is None else jax.eval_shape(kept, params)
    hparams = dict.fromkeys((*algorithm.hparams, *GIVEN), scalar())
    context = context_shape(algorithm, params, client_state)

    def on_client(
        state: State, hparams: Any, context: ClientContext, solved: Params, steps: Any
    ) -> Any:
        context, memory = algorithm.begun(state, context), algorithm.client.memory
        problem = algorithm.subproblem(state, hparams, context)
        solution = Solution(problem, solved, steps)
        after = None if memory is None else memory.update(state, hparams, context, solved)
        sent = algorithm.client.message(state, hparams, context, solution)
        return algorithm.server.params(state), tuple(problem), after, sent

    used = inputs_read(on_client, state, hparams, context, trainable(params), STEPS)
    read = tuple(used[: len(jax.tree.leaves(state))])
    return SentState(state, read, params, kept is not None and any(inputs_read(kept, params)))


def filled(like: Any, arrays: Sequence[Array]) -> Any:
    """A tree of the same shapes as another, whose leaves are some arrays in order."""
    leaves, structure = jax.tree.flatten(like)
    require(len(arrays) == len(leaves), f"{len(arrays)} arrays; the method needs {len(leaves)}")
    for i, (leaf, array) in enumerate(zip(leaves, arrays, strict=True)):
        require_like(f"array {i}", array, leaf)
    return jax.tree.unflatten(structure, list(arrays))


def at_points(shapes: Any, points: int) -> Any:
    """A tree of shapes with an axis of sweep points before the others."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((points, *a.shape), a.dtype), shapes)


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
        trees = self._asdict().items()
        return {name: leaf for key, tree in trees for name, leaf in prefixed(key, tree).items()}

    @property
    def counts_at_each_point(self) -> bool:
        """Whether an update counts at each sweep point, as in a sum under masks."""
        return bool(self.counts.any(axis=0).all())


def require_clipped(part: RoundPart, sum_: Any, clip: NDArray[np.float32]) -> None:
    """Raise `InputError` if a sum of clipped messages is larger than it can be."""
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


def _part_like(jobs: int, message: Any, points: int) -> RoundPart:
    """A node's part of a round, in shape."""
    counted = jax.ShapeDtypeStruct((points,), np.float32)
    by_job = (jax.ShapeDtypeStruct((jobs, points), kind) for kind in (np.int64, np.bool_, np.bool_))
    return RoundPart(message, counted, *by_job)  # type: ignore[arg-type]


def part_shapes(jobs: int, message: Any, points: int) -> dict[str, Any]:
    """The arrays of an answer, in shape."""
    return _part_like(jobs, message, points).arrays()


def checked_part(
    arrays: Mapping[str, Array],
    jobs: Jobs,
    message: Any,
    points: int,
    possible: Possible | None = None,
) -> RoundPart:
    """The inverse of `RoundPart.arrays`, with checks."""
    like = _part_like(len(jobs.client), message, points)._asdict()
    part = RoundPart(**{key: tree_of(tree, arrays, key) for key, tree in like.items()})
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
    """Raise `InputError` if the clients of some parts cannot send a message."""
    counted = sum(part.counted for part in parts)
    counts, steps = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "steps")
    )
    most = np.where(counts, steps, 0).max(axis=0, initial=0)
    good = possible(mean_of(message, jnp.asarray(counted)), most)
    require(np.asarray(good).all(), "its message is none that its clients can send")


class Coded:
    """How the messages of a method's clients travel."""

    def __init__(self, coding: Coding, points: int) -> None:
        self.coding, self.points = coding, points

        def weighted(code: Any, weight: jax.Array, noise_key: jax.Array, client: Any) -> Any:
            """A client's message at one sweep point, times its weight."""
            message = coding.message(code, noise_key, client)
            return jax.tree.map(lambda a: jnp.where(weight > 0, weight * a, 0), message)

        self.weighted = jit_once(jax.vmap(weighted, in_axes=(0, 0, None, None)))

    def shapes(self, jobs: int) -> Any:
        """The shapes of a node's messages for a number of clients."""
        return self.coding.shapes(jobs, self.points)

    def packed(self, codes: Any, jobs: int) -> Any:
        """A node's packed codes for its first jobs, from codes with leaves (points, slots, ...)."""
        by_job = jax.tree.map(lambda a: np.moveaxis(np.asarray(a), 1, 0)[:jobs], codes)
        return self.coding.packed(by_job)

    def summed(self, part: RoundPart, jobs: Jobs, seed: int, t: int) -> RoundPart:
        """A node's part with the weighted sum of the messages that count."""
        codes, noise_key = self.coding.codes(part.message), round_key(seed, t)
        weights = (jobs.weight[:, None] * part.counts).astype(np.float32)
        messages: Sequence[Any] = [
            self.weighted(
                jax.tree.map(lambda a, j=j: a[j], codes), weights[j], noise_key, np.int32(client)
            )
            for j, client in enumerate(jobs.client.tolist())
        ]
        total = jax.tree.map(lambda *each: np.asarray(sum(each[1:], each[0])), *messages)
        return part._replace(message=total)


def coded_of(protocol: Protocol, algorithm: Algorithm, points: int) -> Coded | None:
    """How messages travel by the parts of a run; None if nodes send sums in full."""
    shapes = protocol.model.shapes
    found = (part.coding(trainable(shapes)) for part in protocol.parts)
    coding = next((each for each in found if each is not None), None)
    if coding is not None and protocol.model.state and algorithm.moves_model_state:
        coding = _beside_state(coding, shapes.state)
    return coding and Coded(coding, points)


def _beside_state(coding: Coding, state: Any) -> Coding:
    """How messages travel whose other part is the change of a model's state, in full."""

    def in_full(jobs: int, points: int) -> Any:
        def one(a: Any) -> Any:
            return jax.ShapeDtypeStruct((jobs, points, *a.shape), np.float32)

        return jax.tree.map(one, state)

    return Coding(
        shapes=lambda jobs, points: Variables(coding.shapes(jobs, points), in_full(jobs, points)),
        packed=lambda codes: codes._replace(params=coding.packed(codes.params)),
        codes=lambda arrays: arrays._replace(params=coding.codes(arrays.params)),
        message=lambda code, key, client: code._replace(
            params=coding.message(code.params, key, client)
        ),
    )
