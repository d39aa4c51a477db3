"""Faulty updates: what a client sends that is not finite, or far larger than what the others send.

An update is the message that a client sends and what it would keep. It is faulty at a point of a
sweep if a number in it is NaN or infinite, or its square is (beyond 1.8e19 in single precision); or
if its size is more than `norm` times the median of the round's finite updates,

    s_k > norm * median_j s_j,   s_k = ||message_k||,

the lower median where their count is even. So up to half of a cohort may be faulty in size and the
others are still told from them. In a cohort of two the smaller is the measure of the larger, and a
single update is never beyond itself; where the median is 0 there is nothing to compare with.

What a method calls the size of its message is `Algorithm.size`: the norm of all of it, but for
parts that differ between sound clients for a reason. Updates are then left out, as if their clients
had not been in the cohort: the mean is over the others, the share of the clients that took part is
theirs, and the client keeps what it had. Without a sound update the round changes nothing.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from fedprox.errors import as_float, require, require_one_of, shown

Policy = Literal["drop", "fail", "clip"]
"""What becomes of a faulty update, or of the run."""


@dataclass(frozen=True)
class Faults:
    """What is done about faulty updates.

    Finding those that are not finite takes a pass over each message as it comes in. Comparing sizes
    takes all of a round's messages at its end: each device then has room for the messages of its
    clients in the round, and for what they would keep, until the next.

    Attributes:
        policy: "drop": a faulty update is left out; "fail": the run ends; "clip": one that is only
            too large is scaled down to `norm` times the median, what its client keeps changes by
            the same share, and one that is not finite is left out.
        norm: How many times the median size an update may have, at least 1; infinity for any.

    Raises:
        InputError: Another policy, a number out of range, or nothing to clip to.

    >>> Faults(norm=5)
    Faults(policy='drop', norm=5)
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
