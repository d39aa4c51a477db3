"""Faulty updates: updates that are not finite, or far larger than the others of their round.

An update is a client's message and its new client state. It is faulty at a sweep point if one of
its numbers or their squares is NaN or infinite (in single precision, squares overflow beyond
1.8e19). It is also faulty if its size is more than `norm` times the median size of the round's
finite updates,

    s_k > norm * median_j s_j,   s_k = ||message_k||,

with the lower median if their number is even. Faulty sizes are therefore detected as long as they
are at most half of the cohort. In a cohort of two, the larger update is compared with the smaller.
A single update is never too large, and no update is if the median is 0.

`Algorithm.size` defines the size of a message: its norm, without parts that may well differ between
sound clients. A faulty update is left out as if its client had not been in the cohort: the mean and
the participation are those of the other clients, and the client keeps its old state. A round
without a sound update changes nothing.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from fedprox.algorithms.base import Algorithm
from fedprox.errors import as_float, require, require_one_of, shown

Policy = Literal["drop", "fail", "clip"]
"""What happens to a faulty update, or to the run."""


@dataclass(frozen=True)
class Faults:
    """How faulty updates are treated.

    The test for finite numbers is one pass over each message when it arrives. The comparison of
    sizes needs all messages of a round: each device then stores the messages and new client states
    of its clients until the end of the round.

    Attributes:
        policy: "drop": faulty updates are left out. "fail": a faulty update ends the run. "clip":
            an update that is only too large is scaled down to `norm` times the median, and the
            change of its client's state by the same factor; an update that is not finite is left
            out.
        norm: Largest allowed size of an update, as a multiple of the median, at least 1. Infinity
            allows any finite size.

    Raises:
        InputError: If `policy` is unknown, `norm` is out of range, or `norm` is infinite with
            "clip".

    Example:
        >>> Faults("clip", norm=5.0).policy
        'clip'
    """

    policy: Policy = "drop"
    norm: float = 10.0

    def __post_init__(self) -> None:
        require_one_of("faults.policy", self.policy, get_args(Policy))
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

    def check_private(self) -> None:
        """Raise `InputError` if a client would change whether others count."""
        require(
            not self.compares,
            f"faults.norm = {self.norm}; with privacy it must be inf, since a client would change "
            "whether others count",
        )

    def check_method(self, algorithm: Algorithm) -> None:
        """Raise `InputError` if a method needs the updates that would be left out."""
        require(
            not algorithm.everyone or self.policy == "fail",
            f'{algorithm.name} needs every client in every round: faults.policy must be "fail"',
        )
