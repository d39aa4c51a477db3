r"""The numbers that standardize the tables of all nodes: what nodes send of theirs, and their sums.

In the clear a node sends counts, means and sums of squared deviations of its training rows, which
are joined as those of a simulation's clients are. A secure sum only adds whole numbers of a fixed
bound, so there are two. The first has, of each node k with :math:`n_k` values of a column,

.. math:: n_k, \qquad n_k \bar v_k, \qquad n_k \sqrt{\overline{v^2_k}},

each over the number of all rows, which gives the mean m and a size u of the column. The second has
:math:`n_k` and the sums of :math:`(v - m) / u` and of its square.

An operator cannot choose what it learns: all follows from mean and deviation of a node's rows in
the clear, of all rows together in a secure sum.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.columns import Columns, Moments, standardized
from fedprox.deployment.conversation import Answered, Failed
from fedprox.deployment.coordinator import Coordinator
from fedprox.deployment.fixed_point import MEASURES_BOUND
from fedprox.deployment.secure_sum import SecureSum
from fedprox.deployment.wire import Array, prefixed, tree_of
from fedprox.errors import InputError, plural, require

RESOLVED = 1000
"""A size or a squared deviation must be so many times the error of a sum."""


REFUSED = "moments: "
"""How a node's refusal of its moments begins, whose run it may accept."""

INSTEAD = "give the same numbers as standardize in [data] of all nodes' files"
"""The advice to a run without moments."""


class Summed(NamedTuple):
    """A node's part of a secure sum of moments, or the sum itself, float64 (1, columns) each.

    Attributes:
        counts: Rows that have a value.
        sums: In the first sum the values' sum, in the second that of (v - m) / u.
        sizes: In the first sum the root of the mean square times the count, in the second the sum
            of ((v - m) / u)^2.
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]
    sizes: NDArray[np.float64]


def require_enough(columns: Columns, own: Moments, fewest: int) -> None:
    """Raise `InputError` if a column has fewer values than a node's policy asks."""
    for column, count in zip(columns.numeric, own.counts[0].astype(int).tolist(), strict=True):
        rows = f"{plural(count, 'training row')} {'has' if count == 1 else 'have'} a value"
        require(
            count >= fewest,
            f"{REFUSED}column {column.name!r}: {rows}; policy.fewest_rows = {fewest}",
        )


def summed_part(own: Moments, about: Sequence[Array], rows: float) -> Summed:
    """A node's part of a secure sum, over the number of all rows; m and u are for the second.

    Numbers beyond the bound of the sum are cut off and counted in it, and not refused: a refusal
    would tell something of this node alone.
    """
    counts, means, squares = own
    if about:
        mean, unit = about
        for array in about:
            like = f"{means.dtype}{means.shape}"
            require(f"{array.dtype}{array.shape}" == like, f"moments: arrays must be {like}")
        require(np.isfinite(mean).all() and (unit > 0).all(), "moments: m finite, u above 0")
        with np.errstate(over="ignore"):
            apart = (means - mean) / unit
            sums, sizes = counts * apart, (np.sqrt(squares) / unit) ** 2 + counts * apart**2
    else:
        sums = counts * means
        sizes = counts * np.sqrt(squares / np.maximum(counts, 1) + means**2)
    beyond = 2 * MEASURES_BOUND
    return Summed(*(np.clip(each / rows, -beyond, beyond) for each in (counts, sums, sizes)))


def mean_and_size(columns: Columns, first: Summed, error: float) -> tuple[Array, Array]:
    """Mean and size by the first sum, which may be wrong by `error`; size is 1 if all are 0."""
    require((first.counts > RESOLVED * error).all(), "a column without values")
    mean, size = first.sums / first.counts, first.sizes / first.counts
    for column, each in zip(columns.numeric, size[0].tolist(), strict=True):
        require(
            each == 0 or each >= RESOLVED * error,
            f"column {column.name!r}: values of about {each:.2g} are too small for a secure sum; "
            f"use another unit, or {INSTEAD}",
        )
    return mean, np.where(size > 0, size, 1.0)


def scaled_by_sum(
    columns: Columns, mean: Array, unit: Array, second: Summed, error: float
) -> tuple[Columns, list[str]]:
    """Columns with mean and deviation by the second sum, which may be wrong by `error`.

    Beside them the names of those whose deviation is 0 or too small; it counts as 1.
    """
    apart = second.sums / second.counts
    variance = second.sizes / second.counts - apart**2
    known = variance >= RESOLVED * error
    scale = np.where(known, unit * np.sqrt(np.where(known, variance, 1)), 1.0)
    center = mean + unit * apart
    without = [c.name for c, k in zip(columns.numeric, known[0].tolist(), strict=True) if not k]
    columns = replace(columns, mean=tuple(center[0].tolist()), scale=tuple(scale[0].tolist()))
    return columns, without


def standardize(server: Coordinator) -> None:
    """Ask nodes once for the numbers of a run's columns, which its ledger keeps.

    `InputError` if a node does not answer: its rows would count for nothing.
    """
    columns, ledger = server.columns, server.ledger
    if columns is None or columns.standardize != "federation" or not columns.numeric:
        return
    if not ledger.scale:
        asking = _Asking(server, columns)
        known = asking.in_the_clear() if server.secure is None else asking.in_secret()
        assert known.mean is not None
        assert known.scale is not None
        ledger.mean, ledger.scale = known.mean, known.scale


class _Asking:
    """Asking all nodes for the moments of their columns."""

    def __init__(self, server: Coordinator, columns: Columns) -> None:
        self.server, self.columns = server, columns
        self.setup = server.setup(server.methods[0], server.protocol.seeds[0])

    def in_the_clear(self) -> Columns:
        """Columns with numbers by the moments of each node."""
        like = self._like(Moments)

        def read(_: int, answered: Answered) -> Moments:
            part: Moments = tree_of(like, answered.arrays, "moments")
            finite = all(np.isfinite(each).all() for each in part)
            positive = (part.counts > 0).all() and (part.squares >= 0).all()
            require(finite and positive, "its moments cannot be")
            return part

        parts = self._asked(read, prefixed("moments", like))
        return standardized(self.columns, Moments(*map(np.concatenate, zip(*parts, strict=True))))

    def in_secret(self) -> Columns:
        """Columns with numbers by secure sums, in which no node's are seen."""
        first, error = self._sum([])
        mean, unit = mean_and_size(self.columns, first, error)
        second, error = self._sum([mean, unit])
        columns, without = scaled_by_sum(self.columns, mean, unit, second, error)
        if without:
            self._warn(
                f"columns {', '.join(map(repr, without))}: constant, or with a deviation too small "
                "for a secure sum; they are not divided"
            )
        return columns

    def _sum(self, about: Sequence[Array]) -> tuple[Summed, float]:
        """A secure sum, and by how much it may be wrong."""
        like = self._like(Summed)
        secret = SecureSum(self.server, self.setup, "moments", like, self._warn)

        def read(_: int, answered: Answered) -> Answered:
            secret.require_masked(answered)
            return answered

        answers = self._asked(read, secret.allowed, about, secret)
        count = np.full(1, len(answers), np.float32)
        total: Summed = secret.total(dict(enumerate(answers)), count)
        require(
            not secret.clipped,
            f"{secret.clipped} of the columns' values are beyond {secret.fixed.bound:g}, too large "
            f"for a secure sum; use another unit, or {INSTEAD}",
        )
        return total, len(answers) * secret.fixed.step

    def _asked(
        self, read: Any, allowed: Any, arrays: Sequence[Array] = (), secret: SecureSum | None = None
    ) -> list[Any]:
        """Each node's answer as read."""
        server, nodes = self.server, range(len(self.server.nodes))
        requests = {
            i: server.request("moments", self.setup, round=int(bool(arrays))) for i in nodes
        }
        if secret is not None:
            try:
                requests = secret.prepared(requests, arrays)
            except InputError:
                self._require_all(secret.problems)
                raise
        asked = server.begin(requests, arrays, dict.fromkeys(requests, allowed))
        answers, failed = server.gather(asked, read)
        self._require_all(failed if secret is None else failed | secret.problems)
        return [answers[i] for i in nodes]

    def _require_all(self, failed: Mapping[int, Failed]) -> None:
        """Raise `InputError` if a node has failed."""
        for index, each in sorted(failed.items()):
            line = f"node {self.server.name(index)!r}: {each.why}"
            if REFUSED in each.why or not each.refused:  # else it refuses the run
                line += f"; the run needs mean and deviation of each node's columns: {INSTEAD}"
            raise InputError(line)

    def _like(self, kind: type[Any]) -> Any:
        """Moments of the columns, in shape."""
        number = jax.ShapeDtypeStruct((1, len(self.columns.numeric)), np.float64)
        return kind(number, number, number)

    @staticmethod
    def _warn(line: str) -> None:
        logging.getLogger(__name__).warning("%s", line)
