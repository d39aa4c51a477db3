"""When the clients' devices are on: for some hours of each day, or as in a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, require, require_number, require_whole
from fedprox.federation import offsets_of
from fedprox.streams import Purpose, generator

DAY = 86_400.0
"""Seconds of a day."""

HOUR = 3_600.0

ROUNDING = 1e-9
"""By how much, relatively, a client may go on too early."""


@dataclass(frozen=True)
class DayNight:
    """Clients that are on for some hours of each day, in time zones that are drawn.

    A run begins at midnight in the first zone.

    Attributes:
        hours: Hours of the day for which a client is on, above 0 and at most 24.
        begins: The local hour at which it goes on, from 0 to 24.
        zones: Number of time zones, evenly spread over the day, from 1 to 24. Each client draws
            one; with 1 all clients go on at once.

    Example:
        >>> DayNight(hours=6.0, begins=23.0).zones
        24
    """

    hours: float = 8.0
    begins: float = 22.0
    zones: int = 24

    def __post_init__(self) -> None:
        require_number("population.available.hours", self.hours, most=24, positive=True)
        require_number("population.available.begins", self.begins, most=24)
        require_whole("population.available.zones", self.zones, most=24)

    def hours_of(self, seed: int, devices: NDArray[np.int64]) -> "Hours":
        """When clients are on, a function of (seed, client).

        Args:
            seed: Seed of the run.
            devices: Each client's device; only their number counts.
        """
        clients = len(devices)
        zone = generator(seed, Purpose.ZONE).integers(self.zones, size=clients)
        begin = np.mod(self.begins * HOUR - zone * DAY / self.zones, DAY)
        return Hours(np.arange(clients + 1), begin, np.full(clients, self.hours * HOUR), DAY)


@dataclass(frozen=True)
class Intervals:
    """When each device is on, as in a trace: one row for each interval.

    Attributes:
        device: Index of the interval's device, from 0; arrays of one length.
        on: Seconds since the begin of the trace at which the interval begins.
        off: Seconds at which it ends, after `on`. Intervals of a device must not overlap.
        period: Seconds after which the trace begins anew, not before the last `off`.

    Example:
        >>> Intervals(device=[0, 1], on=[0.0, 30.0], off=[60.0, 90.0], period=120.0).period
        120.0
    """

    device: Sequence[int]
    on: Sequence[float]
    off: Sequence[float]
    period: float

    def __post_init__(self) -> None:
        name = "population.available"
        try:
            device, on, off = (np.asarray(a) for a in (self.device, self.on, self.off))
        except ValueError:  # lists of different lengths
            raise InputError(f"{name}: device, on and off must be lists of numbers") from None
        numbers = np.issubdtype(on.dtype, np.number) and np.issubdtype(off.dtype, np.number)
        require(
            numbers
            and device.ndim == 1
            and len(device) > 0
            and device.shape == on.shape == off.shape,
            f"{name}: device, on and off must be lists of numbers of one length, with one at least",
        )
        require(
            np.issubdtype(device.dtype, np.integer) and bool((device >= 0).all()),
            f"{name}.device: it must hold whole numbers of at least 0",
        )
        require_number(f"{name}.period", self.period, positive=True)
        known = np.isfinite(on) & np.isfinite(off) & (on >= 0) & (off > on) & (off <= self.period)
        wrong = np.flatnonzero(~known)
        require(
            not len(wrong),
            f"{name}: an interval must begin at 0 or later, end after it begins, and not after the "
            f"period of {self.period:g} seconds; interval {wrong[:1].tolist()} does not",
        )
        order = np.lexsort((on, device))
        device, on, off = device[order], on[order], off[order]
        overlap = np.flatnonzero((device[1:] == device[:-1]) & (on[1:] < off[:-1]))
        require(
            not len(overlap),
            f"{name}: two intervals of device {device[overlap[:1]].tolist()} overlap",
        )

    def rows_of(self, devices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The intervals of some devices, one after the other, and how many each has."""
        device = np.asarray(self.device)
        order = np.lexsort((np.asarray(self.on), device))
        counts = np.bincount(device, minlength=int(devices.max(initial=0)) + 1)
        first, of_device = offsets_of(counts)[devices], counts[devices]
        before = offsets_of(of_device)
        at = np.arange(before[-1]) + np.repeat(first - before[:-1], of_device)
        return order[at], of_device

    def of_devices(self, devices: NDArray[np.int64]) -> "Intervals":
        """The intervals of some devices, which are numbered anew."""
        rows, counts = self.rows_of(devices)
        on, off = (np.asarray(a)[rows].tolist() for a in (self.on, self.off))
        return Intervals(np.repeat(np.arange(len(counts)), counts).tolist(), on, off, self.period)

    def hours_of(self, seed: int, devices: NDArray[np.int64]) -> "Hours":
        """When clients are on that have these devices, shape (clients,)."""
        del seed
        rows, counts = self.rows_of(devices)
        on, off = (np.asarray(a, float)[rows] for a in (self.on, self.off))
        return Hours(offsets_of(counts), on, off - on, self.period)


class Hours(NamedTuple):
    """When each client is on: intervals that repeat, sorted by client.

    Attributes:
        first: The first interval of each client, int64 (clients + 1,).
        begin: Seconds at which an interval begins, float64 (intervals,).
        length: Seconds that it lasts, float64 (intervals,).
        period: Seconds after which intervals repeat.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.float64]
    length: NDArray[np.float64]
    period: float

    def left(self, now: float, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds for which clients stay on from `now`, 0 for those that are off, (clients,)."""
        counts = self.first[clients + 1] - self.first[clients]
        before = offsets_of(counts)
        at = np.arange(before[-1]) + np.repeat(self.first[clients] - before[:-1], counts)
        since = np.mod(now - self.begin[at], self.period)
        since[self.period - since < ROUNDING * self.period] = 0.0
        found = np.zeros(len(clients))
        of_client = np.repeat(np.arange(len(clients)), counts)
        np.maximum.at(found, of_client, np.maximum(self.length[at] - since, 0.0))
        return found

    def wait(self, now: float) -> float:
        """Seconds from `now` until another client goes on."""
        seconds = np.mod(self.begin - now, self.period)
        return float(np.where(seconds > ROUNDING * self.period, seconds, self.period).min())
