r"""Messages as whole numbers, whose sums over nodes cannot wrap.

With :math:`n` nodes, words of :math:`b` bits and a bound :math:`B`, a number :math:`x` becomes

.. math:: q = \lfloor x 2^k / B + u \rfloor, \qquad k = b - 1 - \lceil \log_2 (n + 1) \rceil,

with :math:`u` uniform on [0, 1), so that :math:`q B / 2^k` is :math:`x` on average and differs from
it by less than a step :math:`B / 2^k`. A node's numbers are at most :math:`B` times the weight of
its clients, which is at most 1, so :math:`|q| \le 2^k` and a sum of n of them is below
:math:`2^{b - 1}`. The sum over nodes differs from that of the numbers by less than n steps, and by
a standard deviation of at most :math:`\sqrt n / 2` steps.

With privacy each node adds noise to its whole numbers, rounded normal numbers of the standard
deviation

.. math:: \sigma = 1.01 \, z C / (K \sqrt h),

so that the noise of any :math:`h` nodes, those which are honest, hides a client, which moves the
sum by at most :math:`C / K`; 1 % is for rounding, which moves it by at most :math:`\sqrt d` steps
more. A sum of rounded normal numbers, with a standard deviation of :math:`s` steps each, has the
probabilities of a rounded normal number of :math:`s \sqrt h` steps, up to a factor
:math:`e^{\pm 5 / s^2}` for each of the :math:`d` numbers up to 10 standard deviations. So epsilon
is that of the Gaussian mechanism with z, plus at most :math:`10 d / s^2` a release, the gap.
"""

import math
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.crypto import FURTHEST, Words, normals
from fedprox.deployment.wire import OF_ALL, Securing, Setup, Summed, required
from fedprox.errors import require

ROUNDED_PIECE = 2**16
"""Numbers that are rounded together, which stay in a processor's cache."""

MEASURES_BOUND = 2.0**32
"""The bound of measures, sums over rows; with 64 bits their step is at most 2^-24."""

MARGIN = 1.01
"""Factor of the noise, for what rounding adds to how far a client moves a sum."""

NOISE_PLACES = 30
"""Binary places of the noise's standard deviation at most: normal numbers have about 52."""

GAP = 1e-6
"""The largest gap of a release."""


class FixedPoint(NamedTuple):
    """How numbers become whole ones.

    Attributes:
        bound: Largest absolute value, with room for the noise.
        bits: Bits of a word, 32 or 64.
        nodes: Number of nodes over which is summed at most.
        deviation: Standard deviation of the noise that each node adds; 0 without privacy.
        moved: By how much a client moves the sum, with noise.

    >>> FixedPoint(1.0, 32, nodes=10).places
    27
    """

    bound: float
    bits: int
    nodes: int
    deviation: float = 0.0
    moved: float = 0.0

    @property
    def places(self) -> int:
        """k: the bound is the whole number 2^k."""
        most = self.bits - 1 - self.nodes.bit_length()
        if not self.deviation:
            return most
        return min(most, NOISE_PLACES + math.floor(math.log2(self.bound / self.deviation)))

    @property
    def step(self) -> float:
        """The value of 1."""
        return math.ldexp(self.bound, -self.places)

    @property
    def word(self) -> np.dtype[Any]:
        """The type of whole numbers modulo 2^bits."""
        return np.dtype(f"uint{self.bits}")

    @property
    def signed(self) -> np.dtype[Any]:
        """The type of the same words, from -2^(bits - 1) on."""
        return np.dtype(f"int{self.bits}")

    def require_hidden(self, size: int) -> None:
        """Raise `InputError` if rounding is not negligible beside the noise."""
        require(
            not self.deviation
            or (
                10 * size * (self.step / self.deviation) ** 2 <= GAP
                and math.sqrt(size) * self.step <= (MARGIN - 1) * self.moved
            ),
            f"deployment.secure.bits = {self.bits}: with [privacy] and {size:,} numbers rounding "
            "would be seen beside the noise; use 64",
        )

    def quantized(self, message: Any, counted: NDArray[np.float32]) -> Words:
        """A node's message as whole numbers, and at the end how many of them were clipped."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(message)]
        self.require_hidden(size_of(leaves) - 1)
        vector = np.empty(size_of(leaves), self.word)
        generator = np.random.default_rng(secrets.randbits(128))
        begin, clipped = 0, 0
        for leaf in leaves:
            for row, weight in zip(leaf, np.minimum(counted.astype(float), 1.0), strict=True):
                end = begin + row.size
                clipped += self._round(
                    row.reshape(-1), self.bound * weight, vector[begin:end], generator
                )
                begin = end
        # clipped to a norm before, so none is but for rounding
        vector[-1] = 0 if self.deviation else min(clipped, 2**self.places)
        return vector

    def _round(
        self,
        numbers: NDArray[Any],
        limit: float,
        into: Words,
        generator: np.random.Generator,
    ) -> int:
        """Clip numbers to a limit and round them; how many were clipped."""
        clipped = 0
        for begin in range(0, len(numbers), ROUNDED_PIECE):
            piece = numbers[begin : begin + ROUNDED_PIECE].astype(np.float64)
            require(np.isfinite(piece).all(), "its sum is not finite")
            clipped += int(np.count_nonzero(np.abs(piece) > limit))
            np.clip(piece, -limit, limit, out=piece)
            piece /= self.step
            piece += generator.random(len(piece))
            np.floor(piece, out=piece)
            if self.deviation:
                piece += np.rint(normals(len(piece)) * (self.deviation / self.step))
            into[begin : begin + ROUNDED_PIECE] = piece.astype(self.signed).view(self.word)
        return clipped

    def check(self, total: Words, message: Any, counted: NDArray[np.float32], nodes: int) -> None:
        """Raise `InputError` unless a sum can be one of some nodes."""
        noise = (FURTHEST + 1) * self.deviation
        # each node rounds its numbers by less than a step
        own = (self.bound - noise) * (1 + ROUNDING) * counted.astype(float)
        limits = own + nodes * (noise + self.step)
        whole, begin = total.view(self.signed), 0
        for leaf in jax.tree.leaves(message):
            greatest = np.inf if np.dtype(leaf.dtype).kind == "f" else np.iinfo(leaf.dtype).max
            for limit in np.minimum(limits, greatest).tolist():
                end = begin + math.prod(leaf.shape[1:])
                row = whole[begin:end]
                largest = max(int(row.max()), -int(row.min())) * self.step
                require(
                    largest <= limit,
                    f"it has numbers of {largest:g}, and they are at most {limit:g}",
                )
                begin = end
        most = 0 if self.deviation else nodes * min(begin, 2**self.places)
        clipped = int(whole[-1])
        require(
            0 <= clipped <= most, f"it has {clipped:,} clipped numbers, and at most {most:,} may be"
        )

    def values(self, total: Words, message: Any) -> tuple[Any, int]:
        """The numbers of a sum, and how many of them were clipped before."""
        leaves, structure = jax.tree.flatten(message)
        whole, begin, values = total.view(self.signed), 0, []
        for leaf in leaves:
            end = begin + math.prod(leaf.shape)
            numbers = (whole[begin:end] * self.step).astype(leaf.dtype)
            values.append(numbers.reshape(leaf.shape))
            begin = end
        return jax.tree.unflatten(structure, values), int(whole[-1])


def secured(setup: Setup) -> Securing:
    """How the messages of a run are summed in secret; `InputError` if they are not."""
    return required(setup.secure, "the run has no secure sums")


def fixed_point_of(setup: Setup, of: Summed) -> FixedPoint:
    """The whole numbers of a run's sums."""
    securing, hiding = secured(setup), setup.privacy
    nodes = len(securing.nodes)
    if of in OF_ALL:
        return FixedPoint(MEASURES_BOUND, 64, nodes)
    if hiding is None:
        assert securing.bound is not None  # `_securing` and `Sums.check` see to it
        return FixedPoint(securing.bound, securing.bits, nodes)
    moved = hiding.clip / setup.clients_per_round
    deviation = MARGIN * hiding.mechanism.noise_multiplier * moved / math.sqrt(securing.honest)
    bound = hiding.clip + (FURTHEST + 1) * deviation
    return FixedPoint(bound, securing.bits, nodes, deviation, moved)


def size_of(leaves: Sequence[Any]) -> int:
    """The words of a message with such leaves.

    >>> size_of([np.zeros((1, 3)), np.zeros((1, 2, 2))])
    8
    """
    return sum(math.prod(leaf.shape) for leaf in leaves) + 1
