"""What nodes are sent for a round: the arrays of the server's state that clients read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, ClientContext, Solution, State
from fedprox.algorithms.check import GIVEN, STEPS, context_shape, scalar
from fedprox.deployment.messages import Array, require_like
from fedprox.errors import require
from fedprox.jax_internals import inputs_read
from fedprox.model import Params
from fedprox.simulation.config.method import Method


class Broadcast(NamedTuple):
    """What the nodes of a method are sent.

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
        """The arrays of a request.

        Args:
            state: The server's state, leaves (points, ...).
            hparams: The hyperparameters, arrays (points,).
            initial: w^0, from which clients make their first state; None if none needs it.
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        chosen = [leaf for leaf, read in zip(leaves, self.read, strict=True) if read]
        numbers = [np.asarray(hparams[name]) for name in sorted(hparams)]
        return chosen + numbers + [np.asarray(leaf) for leaf in jax.tree.leaves(initial)]

    def received(
        self, method: Method, arrays: Sequence[Array], *, with_initial: bool
    ) -> tuple[State, dict[str, NDArray[np.float32]], Params]:
        """The state, hyperparameters and w^0 of a request; what was not sent is zero, or None.

        Raises:
            InputError: If arrays are missing or have other shapes.
        """
        points, remaining = len(method.points), list(arrays)
        leaves, structure = jax.tree.flatten(at_points(self.state, points))
        names = sorted(method.points[0])
        first = jax.tree.leaves(self.params) if with_initial else []
        needed = sum(self.read) + len(names) + len(first)
        require(len(arrays) == needed, f"{len(arrays)} arrays; the method needs {needed}")
        state = []
        for i, (like, read) in enumerate(zip(leaves, self.read, strict=True)):
            array = remaining.pop(0) if read else np.zeros(like.shape, like.dtype)
            require_like(f"state {i}", array, like)
            state.append(array)
        hparams = {name: remaining.pop(0) for name in names}
        for name, array in hparams.items():
            require_like(name, array, jax.ShapeDtypeStruct((points,), np.float32))
        for i, (leaf, array) in enumerate(zip(first, remaining, strict=True)):
            require_like(f"initial {i}", array, leaf)
        initial = jax.tree.unflatten(jax.tree.structure(self.params), remaining) if first else None
        return jax.tree.unflatten(structure, state), hparams, initial


def broadcast_of(algorithm: Algorithm, params: Params) -> Broadcast:
    """What the nodes of a method are sent.

    Args:
        algorithm: The method.
        params: The parameters, in shape.

    >>> from fedprox.algorithms import feddyn
    >>> broadcast_of(feddyn(alpha=0.1), jax.ShapeDtypeStruct((2,), np.float32)).read  # not h
    (True, False)
    """
    state = jax.eval_shape(algorithm.server.init, params)
    has_state = algorithm.client.state is not None
    client_state = jax.eval_shape(algorithm.client.state, params) if has_state else None  # type: ignore[arg-type]
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

    used = inputs_read(on_client, state, hparams, context, params, STEPS)
    read = tuple(used[: len(jax.tree.leaves(state))])
    return Broadcast(state, read, params, _reads(algorithm.client.state, params))


def _reads(function: Callable[[Params], Any] | None, params: Params) -> bool:
    """Whether a function reads the parameters, and not only their shapes."""
    return function is not None and any(inputs_read(function, params))


def filled(shapes: Sequence[Any], points: int, arrays: Sequence[Array]) -> list[Any]:
    """Trees of the given shapes at each sweep point, whose leaves are some arrays in order.

    Raises:
        InputError: If arrays are missing or have other shapes.
    """
    leaves, structure = jax.tree.flatten(at_points(list(shapes), points))
    require(len(arrays) == len(leaves), f"{len(arrays)} arrays; {len(leaves)} are needed")
    for i, (leaf, array) in enumerate(zip(leaves, arrays, strict=True)):
        require_like(f"array {i}", array, leaf)
    trees: list[Any] = jax.tree.unflatten(structure, list(arrays))
    return trees


def at_points(shapes: Any, points: int) -> Any:
    """A tree of shapes with an axis of sweep points before the others."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct((points, *a.shape), a.dtype), shapes)
