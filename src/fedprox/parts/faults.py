"""Faulty updates: updates that are not finite, or far larger than the others of their round.

An update is a client's message and its new client state. It is faulty at a sweep point if one of
its numbers or their squares is NaN or infinite (in single precision, squares overflow beyond
1.8e19). It is also faulty if its size is more than `norm` times the median size of the round's
finite updates,

    s_k > norm * median_j s_j,   s_k = ||message_k||,

with the lower median if their number is even. Faulty sizes are therefore detected as long as they
are at most half of the cohort. In a cohort of two, the larger update is compared with the smaller.
A single update is never too large, and no update is if the median is 0.

`OnClient.size` defines the size of a message: its norm, without parts that may well differ between
sound clients. A faulty update is left out as if its client had not been in the cohort. The mean and
the participation are those of the other clients, and the client keeps its old state. A round
without a sound update changes nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, as_float, check_fields, require, shown
from fedprox.parts.part import Part, Reduction, Screened
from fedprox.precision import real_type

FaultPolicy = Literal["drop", "fail", "clip"]
"""The treatment of a faulty update, or of the run."""


MOST_NAMED = 5
"""Most faulty clients that an error names."""


@dataclass(frozen=True)
class Faults(Part):
    """How faulty updates are treated.

    The test for finite numbers is one pass over each message when it arrives. The comparison of
    sizes needs all messages of a round: each device then stores the messages and new client states
    of its clients until the end of the round.

    Attributes:
        policy: "drop": faulty updates are left out. "fail": a faulty update ends the run. "clip":
            an update that is only too large is scaled down to `norm` times the median, and the
            change of its client's state by the same factor. An update that is not finite is left
            out then.
        norm: Largest allowed size of an update, as a multiple of the median, at least 1. Infinity
            allows any finite size.

    Raises:
        InputError: If `policy` is unknown, `norm` is out of range, or `norm` is infinite with
            "clip".

    Example:
        >>> Faults("clip", norm=5.0).policy
        'clip'
    """

    policy: FaultPolicy = "drop"
    norm: float = 10.0

    def __post_init__(self) -> None:
        check_fields("faults", self)
        number = isinstance(self.norm, Real) and not isinstance(self.norm, bool)
        require(
            number and self.norm >= 1,
            f"faults.norm = {shown(self.norm)}; it must be a number of at least 1, or inf",
        )
        require(
            self.policy != "clip" or self.compares,
            f'faults.norm = {shown(self.norm)}; with faults.policy = "clip" it must be finite',
        )

    @property
    def compares(self) -> bool:
        """Whether the sizes of a round's updates are compared."""
        return math.isfinite(as_float(self.norm))

    def measures_of(
        self, flagged: NDArray[np.int64], runs: Sequence[str], names: Sequence[str]
    ) -> dict[str, list[Any]]:
        """The measures of faulty updates in each run, from rows of (round, run, client)."""
        if self.policy == "fail" and len(flagged):
            t, run, _ = flagged[np.lexsort(flagged.T[1::-1])[0]]
            clients = np.unique(flagged[(flagged[:, 0] == t) & (flagged[:, 1] == run), 2])
            shown = ", ".join(names[k] for k in clients[:MOST_NAMED])
            more = f" and {len(clients) - MOST_NAMED} more" if len(clients) > MOST_NAMED else ""
            raise InputError(
                f"{runs[run]}: round {t + 1}: faulty update of client {shown}{more}, and "
                'faults.policy = "fail"; "drop" leaves such updates out'
            )
        found = [flagged[flagged[:, 1] == run, 2] for run in range(len(runs))]
        return {
            "faulty": [len(each) for each in found],
            "faulty_clients": [[names[k] for k in np.unique(each)] for each in found],
        }

    def reduce(self, reduction: Reduction) -> Reduction:
        """Faulty updates are left out."""
        return reduction._replace(screen=self)

    def screened(
        self, sound: jax.Array, size: jax.Array | None, weight: jax.Array, *, fixed: bool = False
    ) -> Screened:
        """Which updates of a round count, see `screen`."""
        return screen(self, sound, size if self.compares else None, weight, fixed=fixed)


def screen(
    faults: Faults,
    sound: jax.Array,
    size: jax.Array | None,
    weight: jax.Array,
    *,
    fixed: bool = False,
) -> Screened:
    """Find the faulty updates of a round.

    >>> sizes = jnp.array([[1.0], [3.0], [2.0], [50.0]])
    >>> screen(Faults("clip"), jnp.ones((4, 1)), sizes, jnp.full(4, 0.25)).scale[:, 0].tolist()
    [1.0, 1.0, 1.0, 0.4000000059604645]
    """
    is_job = (weight > 0)[:, None]
    finite = is_job & (sound > 0)
    scale, beyond = finite.astype(real_type()), jnp.zeros_like(finite)
    if size is not None:
        ordered = jnp.sort(jnp.where(finite, size, jnp.inf), axis=0)
        middle = jnp.maximum(finite.sum(axis=0) - 1, 0) // 2
        median = jnp.take_along_axis(ordered, middle[None], axis=0)
        bound = jnp.where(median > 0, faults.norm * median, jnp.inf)
        beyond = finite & (size > bound)
        scale = jnp.where(beyond, bound / size if faults.policy == "clip" else 0.0, scale)
    counts = scale > 0
    counted = jnp.sum(weight[:, None] * counts, axis=0)
    all_count = (counts | ~is_job).all(axis=0)
    all_count |= fixed
    return Screened(scale, is_job & (~finite | beyond), jnp.where(all_count, 1.0, counted))
