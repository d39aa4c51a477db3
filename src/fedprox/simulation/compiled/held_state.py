"""Client state in a call of several rounds.

Such a call holds the state of the clients of all its rounds. Each device has a copy of all of it. A
round takes the state of its clients from the copy to their places. At its end, devices exchange the
new states, so that all copies remain equal. These functions run inside `spread`.
"""

from typing import TypeVar

import jax

from fedprox.algorithms.base import ClientState
from fedprox.simulation.compiled.lanes import put
from fedprox.simulation.devices.mesh import AXIS

T = TypeVar("T")


def from_all_devices(tree: T) -> T:
    """The parts of all devices, one after another along the first axis."""
    return jax.tree.map(lambda a: jax.lax.all_gather(a, AXIS, tiled=True), tree)


def part_of_device(tree: T) -> T:
    """This device's part of the first axis."""

    def part(a: jax.Array) -> jax.Array:
        size = len(a) // jax.lax.axis_size(AXIS)
        return jax.lax.dynamic_slice_in_dim(a, jax.lax.axis_index(AXIS) * size, size)

    return jax.tree.map(part, tree)


def take_cohort(held: ClientState, at: jax.Array) -> ClientState:
    """The state of a round's clients on this device, leaves (places, points, ...).

    Args:
        held: The state of all clients of the call, leaves (clients, points, ...).
        at: Where each place's client is in `held`, (devices, places); out of range for none.
    """
    own = at[jax.lax.axis_index(AXIS)]
    return jax.tree.map(lambda a: a.at[own].get(mode="clip"), held)


def put_cohort(held: ClientState, at: jax.Array, cohort: ClientState) -> ClientState:
    """Write the new state of a round's clients, as `take_cohort` returned it, to `held`."""
    return put(held, at.ravel(), from_all_devices(cohort))
