"""The population of the clients' devices: how fast each computes and sends, and when it is on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_number, shown
from fedprox.parts.time.availability import DayNight, Intervals
from fedprox.parts.time.pace import Legs, Pace
from fedprox.solver import as_values
from fedprox.streams import Purpose, generator


@dataclass(frozen=True)
class LogNormal:
    """A number of each client that varies around a median.

    Client k has median exp(spread z_k), z_k ~ N(0, 1), in all rounds of a seed.

    Attributes:
        median: The median over the clients, above 0.
        spread: The standard deviation of the logarithm, from 0 to 10.

    Example:
        >>> LogNormal(0.1, spread=1.0).median
        0.1
    """

    median: float
    spread: float


Quantity = float | Sequence[float] | LogNormal
"""A number that all clients have, one for each of them, or one drawn for each."""


@dataclass(frozen=True)
class Population:
    """The devices of the clients, by which a simulation has a clock.

    A synchronous round takes as long as its slowest client that counts: it receives the model,
    takes its steps, and sends its message. Each of `step_seconds`, `download`, `upload` and
    `latency` is one number for all clients, a list with one for each client, or a
    :class:`fedprox.LogNormal`, which draws one for each client from the seed.

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
    dropout: float = 0.0
    draw: bool = False

    def __post_init__(self) -> None:
        for name in QUANTITIES:
            value = getattr(self, name)
            positive = name in ("download", "upload")
            if isinstance(value, LogNormal):
                require_number(f"population.{name}.median", value.median, positive=True)
                require_number(f"population.{name}.spread", value.spread, most=10)
            elif value is not None or not positive:
                for each in as_values(f"population.{name}", value):
                    require_number(f"population.{name}", each, positive=positive)
        require(
            isinstance(self.available, DayNight | Intervals | None),
            f"population.available = {shown(self.available)}; it must be a fedprox.DayNight, a "
            "fedprox.Intervals or None",
        )
        require(
            isinstance(self.draw, bool),
            f"population.draw = {shown(self.draw)}; it must be True or False",
        )
        require_number("population.dropout", self.dropout, most=1)
        require(self.dropout < 1, "population.dropout = 1; it must be below 1: all would be lost")
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
    def devices(self) -> int | None:
        """The number of devices that lists or a trace describe; None without any."""
        found = list(self._lengths().values())
        if isinstance(self.available, Intervals):
            found.append(int(np.max(self.available.device)) + 1)
        return max(found, default=None)

    def check(self, clients: int) -> None:
        """Raise `InputError` if lists do not fit the number of clients."""
        lengths = self._lengths()
        require(
            self.draw or set(lengths.values()) <= {clients},
            f"population.{next(iter(lengths), '')}: {self.devices} numbers; the federation has "
            f"{clients} clients, and with draw = True each of them would draw a device",
        )
        require(
            self.draw or self.devices is None or self.devices <= clients,
            f"population.available: an interval of device {(self.devices or 0) - 1}; the "
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
        legs: Legs,
        model_bytes: float,
        pass_steps: NDArray[np.int64],
        message_bytes: float | None = None,
    ) -> Pace:
        """How long each client takes for the rounds of a method, a function of (seed, client).

        Args:
            seed: Seed of the run.
            legs: What a client does in a round.
            model_bytes: Bytes of one model.
            pass_steps: Mini-batch steps of a pass over all rows of each client, shape (clients,).
            message_bytes: Bytes that a client sends; None for as many as it receives.
        """
        clients = len(pass_steps)
        at = np.arange(clients)
        if self.draw and self.devices is not None:
            at = generator(seed, Purpose.DEVICE).integers(self.devices, size=clients)

        def of(name: str) -> NDArray[np.float64] | None:
            value = getattr(self, name)
            if value is None:
                return None
            if isinstance(value, LogNormal):
                stream = generator(seed, Purpose.POPULATION, QUANTITIES.index(name))
                return value.median * np.exp(value.spread * stream.standard_normal(clients))
            values = np.array(as_values(name, value))
            return np.full(clients, values[0]) if np.ndim(value) == 0 else values[at]

        step, download, upload, latency = map(of, QUANTITIES)
        assert step is not None
        assert latency is not None
        hours = None if self.available is None else self.available.hours_of(seed, at)
        require(
            hours is None or len(hours.begin),
            f"population.available: with seed {seed} no client is ever on",
        )
        sent, reading = legs.models * model_bytes, pass_steps * step
        back = sent if message_bytes is None else message_bytes
        ways = [
            size / speed for size, speed in ((sent, download), (back, upload)) if speed is not None
        ]
        return Pace(
            way=2 * latency + sum(ways),
            reading=reading,
            before=legs.passes * reading,
            step=legs.solves * step,
            hours=hours,
        )


QUANTITIES = ("step_seconds", "download", "upload", "latency")
"""The attributes of a population that are numbers of each client."""
