"""The population of the clients' devices: how fast each computes and sends, and when it is on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.errors import InputError, PositiveFloat, Within, check_fields, require, require_number
from fedprox.federation import offsets_of
from fedprox.files.packed import read_columns
from fedprox.parts.clock import Hours, Pace
from fedprox.solver import as_values
from fedprox.streams import Purpose, generator

DAY = 86_400.0
"""Seconds of a day."""

HOUR = 3_600.0


@dataclass(frozen=True)
class DayNight:
    """Clients that are on for some hours of each day, in random time zones.

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

    hours: Annotated[float, Within(positive=True, most=24)] = 8.0
    begins: Annotated[float, Within(most=24)] = 22.0
    zones: Annotated[int, Within(1, 24)] = 24

    def __post_init__(self) -> None:
        check_fields("population.available", self)

    def hours_of(self, seed: int, devices: NDArray[np.int64]) -> Hours:
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

    def hours_of(self, seed: int, devices: NDArray[np.int64]) -> Hours:
        """When clients are on that have these devices, shape (clients,)."""
        del seed
        rows, counts = self.rows_of(devices)
        on, off = (np.asarray(a, float)[rows] for a in (self.on, self.off))
        return Hours(offsets_of(counts), on, off - on, self.period)


@dataclass(frozen=True)
class LogNormal:
    """A number for each client, log-normal around a median.

    Client k has median exp(spread z_k), z_k ~ N(0, 1), in all rounds of a seed.

    Attributes:
        median: The median over the clients, above 0.
        spread: The standard deviation of the logarithm, from 0 to 10.

    Example:
        >>> LogNormal(0.1, spread=1.0).median
        0.1
    """

    median: PositiveFloat
    spread: Annotated[float, Within(most=10)]


Quantity = float | Sequence[float] | LogNormal
"""A number that all clients have, one for each of them, or one drawn for each."""


@dataclass(frozen=True)
class Population:
    """The clients' devices, whose speeds give a simulation a clock.

    A synchronous round takes as long as its slowest client that counts: it receives the model,
    takes its steps, and sends its message. Each of `step_seconds`, `download`, `upload` and
    `latency` is one number for all clients, or a list with one for each client. A
    :class:`fedprox.LogNormal` draws one for each client from the seed.

    Attributes:
        step_seconds: Seconds per mini-batch step. A pass over all of a client's rows, such as for
            its gradient at w^t, counts as the steps of an epoch.
        download: Bytes per second that a client receives; None if sending takes no time.
        upload: Bytes per second that it sends; None likewise.
        latency: Seconds that each message takes beside its bytes, there and back.
        available: When clients are on: a :class:`fedprox.DayNight`, or the
            :class:`fedprox.Intervals` of a trace. Cohorts are drawn from those that are on when the
            round begins, and a client that goes off before it has sent its message is lost. None
            means always.
        dropout: Chance that a client is lost within a round, from 0 to below 1, at a time that is
            uniform over its work.
        draw: Whether the lists describe devices, of which each client draws one with replacement,
            in place of one entry for each client.

    Raises:
        InputError: If a number is out of range, or the lists differ in length.

    Example:
        >>> Population(step_seconds=LogNormal(0.1, spread=1.0), upload=125_000.0).dropout
        0.0
    """

    step_seconds: Quantity = 0.0
    download: Quantity | None = None
    upload: Quantity | None = None
    latency: Quantity = 0.0
    available: DayNight | Intervals | None = None
    dropout: Annotated[float, Within(below=1)] = 0.0
    draw: bool = False

    def __post_init__(self) -> None:
        for name in QUANTITIES:
            value = getattr(self, name)
            positive = name in ("download", "upload")
            if isinstance(value, LogNormal):
                check_fields(f"population.{name}", value)
            elif value is not None or not positive:
                for each in as_values(f"population.{name}", value):
                    require_number(f"population.{name}", each, positive=positive)
        check_fields("population", self)
        lengths = self._lengths()
        require(
            len(set(lengths.values())) <= 1,
            "population: "
            + " and ".join(f"{name} has {count} numbers" for name, count in lengths.items())
            + "; lists must have one length",
        )
        require(
            bool(lengths or isinstance(self.available, Intervals)) or not self.draw,
            "population.draw = True; it needs lists of devices to draw from",
        )
        if isinstance(self.available, Intervals):
            last = int(np.max(self.available.device))
            for name, count in lengths.items():
                require(
                    last < count,
                    f"population.available: an interval of device {last}; population.{name} "
                    f"describes {count} devices",
                )

    def _lengths(self) -> dict[str, int]:
        """The lengths of the quantities that are lists."""
        values = {name: getattr(self, name) for name in QUANTITIES}
        return {
            name: len(value)
            for name, value in values.items()
            if value is not None and not isinstance(value, LogNormal) and np.ndim(value) > 0
        }

    @property
    def devices(self) -> int:
        """The number of devices that lists or a trace describe; 0 without any."""
        found = list(self._lengths().values())
        if isinstance(self.available, Intervals):
            found.append(int(np.max(self.available.device)) + 1)
        return max(found, default=0)

    def check(self, clients: int) -> None:
        """Raise `InputError` if lists do not fit the number of clients."""
        lengths = self._lengths()
        require(
            self.draw or set(lengths.values()) <= {clients},
            f"population.{next(iter(lengths), '')}: {self.devices} numbers; the federation has "
            f"{clients} clients, and with draw = True each of them would draw a device",
        )
        require(
            self.draw or self.devices <= clients,
            f"population.available: an interval of device {self.devices - 1}; the "
            f"federation has {clients} clients, and with draw = True each would draw a device",
        )

    def of_clients(self, clients: NDArray[np.int64]) -> "Population":
        """The population of a subset of the clients, in its order."""
        if self.draw:
            return self
        lists: dict[str, Any] = {
            name: np.asarray(getattr(self, name))[clients].tolist() for name in self._lengths()
        }
        available = self.available
        if isinstance(available, Intervals):
            available = available.of_devices(clients)
        return replace(self, **lists, available=available)

    def pace(
        self,
        seed: int,
        method: Algorithm,
        pass_steps: NDArray[np.int64],
        down: float = 0.0,
        up: float = 0.0,
        probes: int = 0,
    ) -> Pace:
        """How long each client takes for the rounds of a method, a function of (seed, client).

        A client receives and sends so many bytes, takes `pass_steps` mini-batch steps in a pass
        over all of its rows, and the method's probe has so many models.
        """
        clients = len(pass_steps)
        at = np.arange(clients)
        if self.draw and self.devices:
            at = generator(seed, Purpose.DEVICE).integers(self.devices, size=clients)

        def of(name: str) -> NDArray[np.float64]:
            value = getattr(self, name)
            if value is None:  # sending takes no time
                value = math.inf
            if isinstance(value, LogNormal):
                stream = generator(seed, Purpose.POPULATION, QUANTITIES.index(name))
                return value.median * np.exp(value.spread * stream.standard_normal(clients))
            values = np.array(as_values(name, value))
            return np.full(clients, values[0]) if np.ndim(value) == 0 else values[at]

        step, download, upload, latency = map(of, QUANTITIES)
        hours = self.available.hours_of(seed, at) if self.available else Hours.without_end()
        require(len(hours.begin), f"population.available: with seed {seed} no client is ever on")
        first, own = method.first, method.personal
        # the round's own clients know the gradient of the first exchange
        knows = first.exchange is not None and first.cohort == "own"
        reading = pass_steps * step
        return Pace(
            way=2 * latency + (down / download + up / upload),
            reading=reading,
            before=(int(first.measures and not knows) + probes) * reading,
            step=(1 + bool(own and own.subproblem)) * step,
            hours=hours,
        )


QUANTITIES = ("step_seconds", "download", "upload", "latency")
"""The attributes of a population that are numbers of each client."""


ON_AND_OFF = ("on", "off")
"""The columns of a trace that say when devices are on."""


def read_population(
    path: str | PathLike[str],
    population: Population = Population(),
    *,
    period: float | None = None,
) -> Population:
    r"""Read a population of devices from a file with a column for each property.

    The column `device` names each row's device; without it, each row is one. The columns
    `step_seconds`, `download`, `upload` and `latency` hold what :class:`fedprox.Population`
    describes. `on` and `off` are seconds between which a device is on; a device may have several
    rows, which then differ in these two alone. Other columns are not read.

    Args:
        path: A file that ends in .csv, .parquet or .npz.
        population: The settings that the file does not have.
        period: Seconds after which the times of `on` and `off` begin anew; None for the last `off`.

    Returns:
        The population, with lists in the order in which devices first appear.

    Raises:
        InputError: If the file cannot be read, or has none of these columns or only one of `on` and
            `off`. Also if a device's rows differ in another column, or a number is out of range.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "devices.csv")
        ...     _ = file.write_text("device,step_seconds\nphone,0.2\ntablet,0.1\n")
        ...     read_population(file).step_seconds
        [0.2, 0.1]
    """
    columns = read_columns(Path(path))
    rows = len(next(iter(columns.values())))
    _, first, device = np.unique(
        columns.get("device", np.arange(rows)), return_index=True, return_inverse=True
    )
    order = np.argsort(first)  # by first appearance
    device, first = np.argsort(order)[device], first[order]
    known = [name for name in (*QUANTITIES, *ON_AND_OFF) if name in columns]
    require(
        known,
        f"{path}: it has the columns {', '.join(columns)}; it must have one of "
        f"{', '.join((*QUANTITIES, *ON_AND_OFF))}",
    )
    for name in known:
        require(
            columns[name].dtype.kind in "iuf", f"{path}: the column {name} must hold numbers alone"
        )
    lists: dict[str, Any] = {}
    for name in [name for name in known if name in QUANTITIES]:
        values = columns[name]
        different = np.flatnonzero(values != values[first][device])
        require(
            not len(different),
            f"{path}: the rows of a device differ in {name}: row {different[:1].tolist()}",
        )
        lists[name] = values[first].tolist()
    times = [columns[name] for name in ON_AND_OFF if name in columns]
    require(len(times) != 1, f"{path}: it must have both columns, on and off, or neither")
    if times:
        on, off = (column.tolist() for column in times)
        lists["available"] = Intervals(device.tolist(), on, off, period or max(off))
    return replace(population, **lists)
