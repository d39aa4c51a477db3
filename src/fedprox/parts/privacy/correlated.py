r"""Correlated noise: what later rounds add takes back a part of what earlier rounds added.

The noise of round :math:`t` is row :math:`t` of :math:`C^{-1} Z`, where the rows of :math:`Z` are
independent and :math:`C` is a lower triangular Toeplitz matrix, the strategy. The noisy sums
:math:`G + C^{-1} Z` follow from :math:`C G + Z`, which is one Gaussian mechanism. Its sensitivity
is how far one client moves :math:`C G` in all rounds together (Denisov et al. 2022, "Improved
Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive Streams", theorem
2.1). It is small if rounds in which a client takes part are far apart.

Two kinds of strategies are optimized by jax-privacy, for the mean squared error of the sum of all
noise so far, which is what a model has of it:

* "banded": :math:`C` has as many diagonals as rounds lie between two of a client, :math:`b`
  (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"). The server keeps
  :math:`b - 1` noises, each of a model's size.
* "blt": a buffered linear Toeplitz matrix (McMahan et al. 2024, "A Hassle-free Algorithm for
  Private Learning in Practice"). The server keeps one to four such buffers for any b.

jax-privacy is imported inside functions: it is an extra, and takes a second.
"""

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import installing, require, require_number, require_one_of, require_whole
from fedprox.jax_internals import nans_allowed
from fedprox.precision import real_type

Correlation = Literal["independent", "banded", "blt"]
"""How the noise of a round depends on that of earlier rounds."""

CORRELATIONS: dict[Correlation, str] = {
    "independent": "independent noise",
    "banded": "correlated noise of a banded Toeplitz matrix",
    "blt": "correlated noise of a buffered linear Toeplitz matrix",
}
"""The same in words."""

MOST_BUFFERS, ENOUGH = 4, 1.01
"""Most buffers of a "blt" strategy, and by what factor one more must lower the squared error."""

MOST_NUMBERS = 10**4
"""Most numbers of a strategy that another host declares."""


class Strategy(NamedTuple):
    r"""A lower triangular Toeplitz matrix :math:`C` of the size of a run's rounds.

    It is used divided by the norm of its first column, so that a client that takes part once moves
    :math:`C G` by at most the clipping norm.

    Attributes:
        kind: How its first column follows from the numbers.
        separation: Rounds from one of a client to its next, at least, :math:`b`.
        rounds: Rounds of the run, :math:`T`.
        scale: For "blt" what each buffer adds, :math:`\omega_i`; else the first column, up to
            zeros.
        decay: For "blt" what remains of each buffer from round to round, :math:`\theta_i`: entry
            :math:`j` of the column is :math:`\sum_i \omega_i \theta_i^{j - 1}`, and entry 0 is 1.
    """

    kind: Correlation
    separation: int
    rounds: int
    scale: tuple[float, ...] = (1.0,)
    decay: tuple[float, ...] = ()

    @property
    def correlates(self) -> bool:
        """Whether a round's noise depends on that of earlier rounds."""
        return self.kind == "blt" or len(self.scale) > 1

    def participations(self, rounds: int) -> int:
        """Most of some first rounds in which one client takes part."""
        return -(-rounds // self.separation)

    def column(self, rounds: int) -> NDArray[np.float64]:
        """The first column of the matrix of so many rounds, before it is divided by its norm.

        >>> Strategy("blt", 2, 4, (0.5,), (0.8,)).column(4).round(4).tolist()
        [1.0, 0.5, 0.4, 0.32]
        """
        return _impulse(*_polynomials(self), rounds)

    def inverse(self, rounds: int) -> NDArray[np.float64]:
        """The first column of the inverse of that matrix, which is Toeplitz, too.

        >>> Strategy("banded", 2, 4, (1.0, 0.5)).inverse(4).tolist()
        [1.0, -0.5, 0.25, -0.125]
        """
        above, below = _polynomials(self)
        return _impulse(below, above, rounds)


def _polynomials(strategy: Strategy) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The generating function of the first column as a quotient, lowest powers first."""
    if strategy.kind != "blt":
        return np.array(strategy.scale), np.ones(1)
    factors = [np.array([1.0, -decay]) for decay in strategy.decay]

    def product(left_out: int | None = None) -> NDArray[np.float64]:
        found = np.ones(1)
        for i, factor in enumerate(factors):
            found = found if i == left_out else np.convolve(found, factor)
        return found

    below = product()
    above = below.copy()
    for i, scale in enumerate(strategy.scale):
        above[1:] += scale * product(i)
    return above, below


def _impulse(
    above: NDArray[np.float64], below: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """The first coefficients of a quotient of two polynomials."""
    from scipy import signal

    first = np.zeros(count)
    first[:1] = 1.0
    found: NDArray[np.float64] = signal.lfilter(above, below, first)
    return found


class Reach(NamedTuple):
    """How far one client moves what is released, over the clipping norm.

    Attributes:
        all: In all rounds together, the norm.
        most: In any one round.
    """

    all: float
    most: float


@lru_cache(maxsize=4096)
def reach(strategy: Strategy, rounds: int) -> Reach:
    r"""The sensitivity of a strategy's first rounds.

    Let the numbers of the column not be negative and not increase. Then no client moves :math:`C G`
    further than one that takes part in rounds :math:`0, b, 2b, \dots`, always with the same message
    (Kalinin and Lampert 2024, "Banded Square Root Matrix Factorization", theorem 2). With at most
    :math:`b` diagonals the columns of a client's rounds do not overlap, and signs and order do not
    matter.

    It is computed here in double precision and not by jax-privacy, whose value a test compares, so
    that nodes account without it.

    >>> reach(Strategy("independent", 10, 200), 200).all == 20**0.5
    True
    """
    column, apart = strategy.column(rounds), strategy.separation
    padded = np.pad(column, (0, -rounds % apart))
    moved = padded.reshape(-1, apart).cumsum(axis=0).reshape(-1)[:rounds]
    size = column_norm(strategy)
    return Reach(float(np.linalg.norm(moved)) / size, float(moved.max(initial=0.0)) / size)


@lru_cache(maxsize=256)
def column_norm(strategy: Strategy) -> float:
    """The norm of a strategy's first column, by which the strategy is divided."""
    return float(np.linalg.norm(strategy.column(strategy.rounds)))


@lru_cache(maxsize=256)
def error(strategy: Strategy) -> float:
    """The noise that a model has, with independent noise of 1 in its place before correlation.

    It is the root of the mean, over all rounds, of the variance of the sum of all noise so far.

    >>> round(error(Strategy("independent", 10, 200)) / 100.5**0.5, 6)
    1.0
    """
    sums = strategy.inverse(strategy.rounds).cumsum()
    return column_norm(strategy) * math.sqrt(np.cumsum(sums**2).mean())


@lru_cache(maxsize=256)
def last_deviation(strategy: Strategy) -> float:
    """The standard deviation of the noise of the last round, likewise."""
    return column_norm(strategy) * float(np.linalg.norm(strategy.inverse(strategy.rounds)))


def check_strategy(strategy: Strategy | None) -> None:
    """Raise `InputError` if a strategy that another host declares is none."""
    if strategy is None:
        return
    name = "privacy.mechanism"
    require_one_of(name, strategy.kind, tuple(CORRELATIONS))
    require_whole("cohort.min_separation", strategy.separation)
    require_whole("rounds", strategy.rounds)
    numbers = [*strategy.scale, *strategy.decay]
    require(
        1 <= len(numbers) <= MOST_NUMBERS,
        f"{name}: {len(numbers)} numbers; a strategy has from 1 to {MOST_NUMBERS:,}",
    )
    for number in numbers:
        require_number(name, number, least=-math.inf)
    of_blt = strategy.kind == "blt"
    require(
        len(strategy.decay) == of_blt * len(strategy.scale)
        and (strategy.kind != "independent" or strategy.scale == (1.0,)),
        f"{name}: numbers that are none of a {strategy.kind} strategy",
    )
    column = strategy.column(strategy.rounds)
    falls = (column >= 0).all() and (np.diff(column) <= 0).all()
    few = not of_blt and len(strategy.scale) <= strategy.separation
    require(
        bool(np.isfinite(column).all()) and column[0] > 0 and (falls or few),
        f"{name}: the first column of the strategy must be above 0 and not increase",
    )


def matrix_factorization() -> Any:
    """jax-privacy's matrix factorization, or `InputError` without the extra."""
    try:
        from jax_privacy import matrix_factorization
    except ImportError:
        line = f"privacy.mechanism needs jax-privacy: {installing('jax-privacy')}"
    else:
        return matrix_factorization
    require(False, line)
    raise AssertionError


@lru_cache(maxsize=64)
def strategy_of(kind: Correlation, separation: int, rounds: int) -> Strategy:
    """The strategy of a run, optimized once: some seconds, most of them to compile.

    Its numbers are rounded to single precision, in which noise is computed.
    """
    if kind == "independent" or (kind == "banded" and min(separation, rounds) == 1):
        return Strategy(kind, separation, rounds)
    optimized = {"banded": _banded, "blt": _blt}[kind]
    # on a CPU, since GPUs may lack double precision or eigenvalues
    with nans_allowed(), jax.default_device(jax.local_devices(backend="cpu")[0]):
        scale, decay = optimized(matrix_factorization(), separation, rounds)
    rounded = [tuple(np.float32(numbers).astype(float).tolist()) for numbers in (scale, decay)]
    strategy = Strategy(kind, separation, rounds, *rounded)
    check_strategy(strategy)
    return strategy


Numbers = tuple[NDArray[np.floating], NDArray[np.floating]]


def _banded(library: Any, separation: int, rounds: int) -> Numbers:
    column = library.toeplitz.optimize_banded_toeplitz(rounds, min(separation, rounds))
    return np.asarray(column), np.zeros(0)


def _blt(library: Any, separation: int, rounds: int) -> Numbers:
    """A buffer is added as long as the error falls."""
    of_blt = library.buffered_toeplitz
    loss = of_blt.LossFn.build_min_sep(
        n=rounds, error="mean", min_sep=separation, max_participations=None
    )
    best, first = of_blt.optimize_loss(loss, num_buffers=1)
    lowest = float(first)
    for count in range(2, MOST_BUFFERS + 1):
        try:
            more, reached = of_blt.optimize_loss(loss, num_buffers=count)
        except RuntimeError:  # the library's optimization has failed
            break
        if not ENOUGH * float(reached) < lowest:
            break
        best, lowest = more, float(reached)
    return np.asarray(best.output_scale), np.asarray(best.buf_decay)


def streaming(strategy: Strategy) -> Any:
    """The inverse of a strategy's matrix, applied to noise round by round, by jax-privacy.

    Its `multiply_next(z, state)` returns the noise of a round and the next state, and
    `init_multiply(like)` the first state.
    """
    library = matrix_factorization()
    scale, decay = (np.array(each, real_type()) for each in (strategy.scale, strategy.decay))
    if strategy.kind != "blt":
        return library.toeplitz.inverse_as_streaming_matrix(scale)
    built = library.buffered_toeplitz.StreamingMatrixBuilder(buf_decay=decay, output_scale=scale)
    return built.build_inverse()
