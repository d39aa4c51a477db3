"""A real clock inside compiled programs, by which the jobs of a node stop.

A look at the clock calls the host, so it is made every few ticks. How many follows from the time
between the last two looks. Nothing is known of a machine's speed before, and nothing is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.jax_internals import call_host

LOOK_SECONDS = 0.02
"""Seconds between looks at the clock."""

FASTER = 4
"""By which factor the ticks between looks may grow from one look to the next."""

MOST_TICKS = 2**20
"""Most ticks between looks."""

Clock = Callable[[], float]
"""Seconds since the beginning of the current round, read from inside a program."""


class Until(NamedTuple):
    """Seconds since the beginning of a node's round at which each of its passes ends, float32.

    A pass has the time from the end of the one before, so it inherits what that one left.

    Attributes:
        reading: Reading the clients' own gradients and losses, or those of a first cohort.
        personal: The local work on the clients' own models.
        local: The method's local work.
    """

    reading: Any
    personal: Any
    local: Any


class Watch(NamedTuple):
    """The looks at the clock of one pass on one device.

    Attributes:
        seconds: Seconds on the clock at the last look, float32.
        since: Ticks since then, int32.
        every: Ticks from that look to the next, int32.
    """

    seconds: jax.Array
    since: jax.Array
    every: jax.Array


def begin_watch(clock: Clock, after: Any) -> Watch:
    """The first look of a pass, once the trees `after` are computed."""
    computed = [leaf.ravel()[:1] for leaf in jax.tree.leaves(after)]
    return Watch(_look(clock, *computed), jnp.int32(0), jnp.int32(1))


def before_tick(clock: Clock, watch: Watch) -> Watch:
    """Look at the clock before a tick, if it is time to."""

    def look(watch: Watch) -> Watch:
        seconds = _look(clock, watch.since)
        ticks = LOOK_SECONDS / (seconds - watch.seconds) * watch.since  # infinite after no time
        most = jnp.minimum(FASTER * watch.every, MOST_TICKS)
        every = jnp.clip(ticks, 1, most).astype(jnp.int32)
        return Watch(seconds, jnp.int32(0), every)

    watch = jax.lax.cond(watch.since >= watch.every, look, lambda same: same, watch)
    return watch._replace(since=watch.since + 1)


def deadline(began: jax.Array, until: jax.Array, due: jax.Array) -> jax.Array:
    """When jobs that are `due` after a part of a pass stop, seconds as the clock's."""
    return began + (until - began) * due


def _look(clock: Clock, *after: jax.Array) -> jax.Array:
    """Seconds on the clock, once the arrays are computed."""

    def read(*_: Any) -> Any:
        return np.float32(clock())

    seconds: jax.Array = call_host(read, jax.ShapeDtypeStruct((), jnp.float32), *after)
    return seconds
