r"""Messages as whole numbers, whose sums over nodes cannot wrap.

With :math:`n` nodes, words of :math:`b` bits and a bound :math:`B`, a number :math:`x` becomes

.. math:: q = \lfloor x 2^k / B + u \rfloor, \qquad k = b - 1 - \lceil \log_2 (n + 1) \rceil,

with :math:`u` uniform on [0, 1), so that :math:`q B / 2^k` is :math:`x` on average and differs from
it by less than a step :math:`B / 2^k`. A node's numbers are at most :math:`B` times the weight of
its clients, which is at most 1, so :math:`|q| \le 2^k` and a sum of n of them is below
:math:`2^{b - 1}`. The sum over nodes differs from that of the numbers by less than n steps, and by
a standard deviation of at most :math:`\sqrt n / 2` steps.

**What a sum can be** is all that the operator checks, since nobody can look at a node's words. With
the weight :math:`W` of the clients that count, each number of a sum over n nodes is at most
:math:`B W + n B / 2^k`, up to rounding. That is one check of all n: a node that lies has the room
of all, and the mean is any that it wants within :math:`\pm B`. No check of sums can do better.
Any allowed sum can result from one message: the sum less the others.

With a norm :math:`C` in place of the bound, each node scales its d numbers to a norm of at most
:math:`C` times its weight, so :math:`B = C`. The operator refuses a sum whose norm is above

.. math:: C W + n \sqrt d B / 2^k.

So a liar moves the mean by :math:`C`, not by :math:`B \sqrt d`.

With privacy each node adds noise to its whole numbers, rounded normal numbers of the standard
deviation

.. math:: \sigma = 1.01 \, z C / (K \sqrt h),

so that the noise of any :math:`h` nodes, those which are honest, hides a client. A client moves the
sum by at most :math:`C / K`. 1 % is for rounding, which moves it by at most :math:`\sqrt d` steps
more. Take a sum of :math:`h` rounded normal numbers with a standard deviation of :math:`s` steps
each. It has the probabilities of a rounded normal number of :math:`s \sqrt h` steps, up to a factor
:math:`e^{\pm 5 / s^2}` for each of the :math:`d` numbers up to 10 standard deviations. So epsilon
is that of the Gaussian mechanism with z, plus at most :math:`10 d / s^2` a release, the gap.

The clients' messages are clipped, so C is a norm as above. With the noise of n nodes a sum is at
most :math:`\sigma \sqrt n (\sqrt d + t)` longer, but for a probability of :math:`e^{-t^2 / 2}`
(concentration of a Lipschitz function of normal numbers). That is below 1e-19 for t = 9.5.
"""

import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.crypto import Words
from fedprox.deployment.entropy import FURTHEST, normals
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
        norm: Largest norm of a message, relative to its weight; infinite for any.

    >>> FixedPoint(1.0, 32, nodes=10).places
    27
    """

    bound: float
    bits: int
    nodes: int
    deviation: float = 0.0
    moved: float = 0.0
    norm: float = math.inf

    @property
    def scales(self) -> bool:
        """Whether nodes scale their messages; with noise their clients have clipped them."""
        return math.isfinite(self.norm) and not self.deviation

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
        """A node's message as whole numbers, and at the end how many of them were clipped.

        With a norm, at how many sweep points the message was scaled to it.
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(message)]
        self.require_hidden(size_of(leaves) - 1)
        vector = np.empty(size_of(leaves), self.word)
        generator = np.random.default_rng(secrets.randbits(128))
        begin, clipped, weights = 0, 0, np.minimum(counted.astype(float), 1.0)
        factors = self._factors(leaves, weights)
        for leaf in leaves:
            for row, weight, factor in zip(leaf, weights, factors, strict=True):
                end = begin + row.size
                clipped += self._round(
                    row.reshape(-1), factor, self.bound * weight, vector[begin:end], generator
                )
                begin = end
        if self.scales:
            clipped = int(np.count_nonzero(factors < 1))
        # clipped to a norm before, so none is but for rounding
        vector[-1] = 0 if self.deviation else min(clipped, 2**self.places)
        return vector

    def _factors(
        self, leaves: Sequence[NDArray[Any]], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """By what a message is scaled to the norm at each sweep point."""
        factors = np.ones(len(weights))
        if self.scales:
            norms, most = norms_of(leaves), self.norm * weights
            np.divide(most, norms, out=factors, where=norms > most)
        return factors

    def _round(
        self,
        numbers: NDArray[Any],
        factor: float,
        limit: float,
        into: Words,
        generator: np.random.Generator,
    ) -> int:
        """Scale numbers, clip them to a limit and round them; how many were clipped."""
        clipped = 0
        for begin in range(0, len(numbers), ROUNDED_PIECE):
            piece = numbers[begin : begin + ROUNDED_PIECE].astype(np.float64)
            require(np.isfinite(piece).all(), "its sum is not finite")
            if factor < 1:
                piece *= factor
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
        self._check_norms(whole, message, counted, nodes)
        most = 0 if self.deviation else nodes * min(begin, 2**self.places)
        what, clipped = "clipped numbers", int(whole[-1])
        if self.scales:
            most, what = nodes * len(counted), "scaled messages"
        require(0 <= clipped <= most, f"it has {clipped:,} {what}, and at most {most:,} may be")

    def _check_norms(
        self, whole: NDArray[Any], message: Any, counted: NDArray[np.float32], nodes: int
    ) -> None:
        """Raise `InputError` unless a sum is as short as one of messages with the norm."""
        if not math.isfinite(self.norm):
            return
        begin, leaves = 0, list[NDArray[Any]]()
        for leaf in jax.tree.leaves(message):
            end = begin + math.prod(leaf.shape)
            leaves.append(whole[begin:end].reshape(leaf.shape))
            begin = end
        root = math.sqrt(begin / len(counted))
        noise = self.deviation * math.sqrt(nodes) * (root + FURTHEST + 1)
        limits = self.norm * (1 + ROUNDING) * counted.astype(float) + noise
        limits += nodes * self.step * root
        for norm, limit in zip(norms_of(leaves) * self.step, limits, strict=True):
            require(norm <= limit, f"its norm is {norm:g}, and at most {limit:g}")

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
        bound, norm = securing.bound, securing.norm
        if norm is not None:
            return FixedPoint(norm, securing.bits, nodes, norm=norm)
        assert bound is not None  # `_securing` and `Sums.check` see to it
        return FixedPoint(bound, securing.bits, nodes)
    moved = hiding.clip / setup.clients_per_round
    deviation = MARGIN * hiding.mechanism.noise_multiplier * moved / math.sqrt(securing.honest)
    bound = hiding.clip + (FURTHEST + 1) * deviation
    return FixedPoint(bound, securing.bits, nodes, deviation, moved, hiding.clip)


def norms_of(leaves: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """The norm of a message at each sweep point, from leaves (points, ...).

    >>> norms_of([np.array([[3.0], [0.0]]), np.array([[4.0], [2.0]])]).tolist()
    [5.0, 2.0]
    """

    def pieces(row: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
        for begin in range(0, row.size, ROUNDED_PIECE):
            yield row.reshape(-1)[begin : begin + ROUNDED_PIECE].astype(np.float64)

    squares = [
        sum(float(piece @ piece) for row in rows for piece in pieces(row))
        for rows in zip(*leaves, strict=True)
    ]
    return np.sqrt(np.array(squares))


def size_of(leaves: Sequence[Any]) -> int:
    """The words of a message with such leaves.

    >>> size_of([np.zeros((1, 3)), np.zeros((1, 2, 2))])
    8
    """
    return sum(math.prod(leaf.shape) for leaf in leaves) + 1
