"""Asynchronous rounds: the server steps whenever some updates are in, and waits for nobody.

How long each client takes is known before any training, so events are ordered on the host. A step
of the server is a round of B jobs with their staleness.

The engine runs the B updates of a server's step as the jobs of a round. Each client's context says
how many steps ago it started, and its local problem reads the server's state of that time from a
ring. Steps, weights and messages are the method's own.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple
from typing import Protocol as TypingProtocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
)
from fedprox.algorithms.lift import lift
from fedprox.errors import PositiveFloat, PositiveInt, Within, check_fields, require
from fedprox.federation import Federation
from fedprox.model import Params, Variables
from fedprox.parts.clock import TOO_EARLY, Devices, Step
from fedprox.parts.part import Columns, Part, Reduction, Setting, beside
from fedprox.streams import Purpose, Streams, generator

Staleness = Literal["constant", "polynomial", "hinge"]
"""How the weight of an update falls with its staleness."""

Adds = Literal["updates", "models"]
"""The sum that the server adds to its model."""


@dataclass(frozen=True)
class Asynchronous(Part):
    r"""Rounds without a barrier: M clients work at any time, and the server steps after B updates.

    M is `Cohort.clients_per_round`. A client that has sent its update is replaced at once by
    another, drawn uniformly from those that are neither at work nor in the buffer. It starts from
    the server's current model. An update whose client started :math:`\tau` steps of the server ago
    has the weight :math:`s(\tau)` of a fresh one:

    .. math:: w^{t+1} = w^t + \sum_{k \in \text{buffer}} p_k \, s(\tau_k) (w_k - w^{t - \tau_k}),

    with :math:`p_k` as in a round of these B clients. A round is a step of the server: `rounds`,
    records and schedules count them, and a client uses the learning rate of the step from which it
    started. In a simulation, the devices of a :class:`fedprox.Population` order the events; in a
    deployment without one, its nodes do. With screening, a faulty update counts as zero, and the
    others keep their weights.

    Attributes:
        buffer: B, the updates of a step, at most M. With 1 and ``adds="models"`` this is FedAsync.
        staleness: s: "constant" is 1; "polynomial" is :math:`(1 + \tau)^{-a}`; "hinge" is 1 up to
            :math:`\tau = b`, and :math:`1 / (1 + a (\tau - b))` beyond it.
        a: How fast s falls, above 0.
        b: The last staleness whose weight "hinge" leaves as it is.
        most_staleness: Staleness beyond which an update is left out. The server keeps its last
            `most_staleness` states in memory.
        adds: "updates" adds the clients' changes, as FedBuff does; "models" moves towards the
            clients' models, :math:`w_k - w^t`, as FedAsync does.

    Raises:
        InputError: If a setting is unknown or out of range.

    Example:
        >>> Asynchronous(buffer=10).factor(np.array([0, 3])).tolist()
        [1.0, 0.5]

    References:
        Nguyen et al., `Federated Learning with Buffered Asynchronous Aggregation
        <https://arxiv.org/abs/2106.06639>`_, AISTATS 2022, Algorithm 1; Xie et al., `Asynchronous
        Federated Optimization <https://arxiv.org/abs/1903.03934>`_, 2019, Algorithm 1 and section
        5.2.
    """

    buffer: PositiveInt
    staleness: Staleness = "polynomial"
    a: PositiveFloat = 0.5
    b: Annotated[int, Within()] = 4
    most_staleness: Annotated[int, Within(0, 10_000)] = 20
    adds: Adds = "updates"

    def __post_init__(self) -> None:
        check_fields("asynchronous", self)

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise `InputError` if a step needs more updates than there are clients at work."""
        del sizes
        require(
            self.buffer <= setting.per_round,
            f"asynchronous.buffer = {self.buffer}; it must be at most the clients at work, "
            f"cohort.clients_per_round = {setting.per_round}",
        )

    def factor(self, staleness: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of updates, relative to fresh ones."""
        late = staleness.astype(np.float64)
        if self.staleness == "polynomial":
            return (1.0 + late) ** -self.a
        if self.staleness == "hinge":
            return 1.0 / (1.0 + self.a * np.maximum(late - self.b, 0.0))
        return np.ones_like(late)

    several_starts = True
    """The clients of a step started from different models."""

    @property
    def always_updates(self) -> bool:
        """A server with a buffer has some messages."""
        return True

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """Steps of the server since the clients started, and their rates relative to the round's.

        These are those of clients that start with the round; the order of events sets others.
        """
        del federation
        return {"age": np.zeros(len(clients), np.int64), "rate": np.ones(len(clients))}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """Each client knows when it started, and its rate."""
        del key
        return {name: numbers[name] for name in ("age", "rate")}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method whose clients start from models of the past, which nodes are sent."""
        if setting.sent != "arrives":
            return method
        return from_past_states(method, self.most_staleness, models=self.adds == "models")

    def reduce(self, reduction: Reduction) -> Reduction:
        """The other updates of a buffer keep their weights."""
        return reduction._replace(fixed=True)

    def steps(self, devices: Callable[[], Devices], most: int) -> Iterator[Step]:
        """The steps in the order of the devices' events."""
        return server_steps(self, Events(devices()), most)

    def recorded(self, columns: Columns) -> Mapping[str, float]:
        """The mean staleness of a round's updates."""
        late = columns.get("age", np.zeros(0))
        return {"staleness": float(late.mean()) if len(late) else 0.0}

    def models_a_round(self, per_round: int) -> float:
        """A step has the updates of a buffer."""
        return self.buffer / per_round


class Versions(NamedTuple):
    """A method's state, and its states after the last steps.

    Attributes:
        state: The current state.
        past: State t at index t mod (the number of states), leaves (states, ...).
        step: t, an int32 scalar.
    """

    state: State
    past: Any
    step: jax.Array


def ahead_of(sent: Message, start: Params, now: Params, counted: Any = None) -> Message:
    """A client's change from where it started, as one from the server's model now.

    For a sum of changes, `counted` is the sum of their weights, (points,).
    """

    def one(m: Any, a: Any, b: Any) -> Any:
        return m + (a - b if counted is None else beside(counted, m) * (a - b))

    return jax.tree.map(one, sent, start, now)


def from_now(
    sent: Message, start: Params, now: Params, counted: Any = None, *, models: bool
) -> Message:
    """A message with changes from the server's model now, of `models` or else of their state alone.

    So the server has a mean of states, and a variance stays positive.
    """
    if models:
        return ahead_of(sent, start, now, counted)
    if not isinstance(sent, Variables):
        return sent
    return sent._replace(state=ahead_of(sent.state, start.state, now.state, counted))


def from_past_states(algorithm: Algorithm, most_staleness: int, *, models: bool) -> Algorithm:
    """The same method, whose clients start from the state that a column of their context tells."""
    count = most_staleness + 1

    def started(state: Versions, context: ClientContext) -> State:
        at = jnp.mod(state.step - context.columns["age"], count)
        return jax.tree.map(lambda a: a[at], state.past)

    def at_rate(hparams: HParams, context: ClientContext | None) -> HParams:
        if context is None:
            return hparams
        return {**hparams, "learning_rate": hparams["learning_rate"] * context.columns["rate"]}

    def versions(first: State, _: Params) -> Versions:
        past = jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *jnp.shape(a))), first)
        return Versions(first, past, jnp.int32(0))

    inner = lift(algorithm, server=versions, seen=started, hparams=at_rate)

    def message(
        state: Versions, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, own_state = inner.client.message(state, hparams, context, solution)
        start, now = algorithm.server.params(started(state, context)), inner.server.params(state)
        return from_now(sent, start, now, models=models), own_state

    def update(state: Versions, mean: Message, hparams: HParams) -> Versions:
        after, step = inner.server.update(state, mean, hparams).state, state.step + 1
        past = jax.tree.map(lambda a, new: a.at[jnp.mod(step, count)].set(new), state.past, after)
        return Versions(after, past, step)

    return inner._replace(
        client=inner.client._replace(message=message),
        server=inner.server._replace(
            update=update,
            received=lambda state, context: algorithm.server.params(started(state, context)),
        ),
    )


DRAWN_TOGETHER = 1024
"""Random numbers that are drawn together, since each call costs as much as tens of numbers."""

TRIES = 64
"""How often a client is drawn that cannot start, before those that can are listed."""


MOST_LOST = 10_000
"""Most updates that may be lost between two steps, or ten for each client."""


class AtWork(TypingProtocol):
    """The clients at work, by a clock.

    Attributes:
        clients: Number of clients.
    """

    clients: int

    @property
    def now(self) -> float:
        """Seconds from the begin of the run."""

    def start(self, most: int, step: int) -> int:
        """Start clients at a step, at most so many, and return their number."""

    def next(self, *, full: bool) -> Iterator[tuple[int, int, bool]]:
        """Who is done next: client, the step at which it started, whether it arrives.

        Unless M clients are at work (`full`), nobody may be done before another goes on.
        """

    def free(self, clients: list[int]) -> None:
        """Let clients be drawn again."""


def server_steps(
    asynchronous: Asynchronous, events: AtWork, most: int, first: int = 0
) -> Iterator[Step]:
    """The steps of the server.

    Updates that arrive at the same time count in the order in which their clients started. New
    clients start after all that happens at a time, from the newest state.
    """
    at_work, step, lost = 0, first, 0
    clients, versions = list[int](), list[int]()
    while True:
        at_work += events.start(most - at_work, step)
        for client, started, arrives in events.next(full=at_work == most):
            at_work -= 1
            if not arrives or step - started > asynchronous.most_staleness:
                events.free([client])
                lost += 1
                require(
                    lost < max(MOST_LOST, 10 * events.clients),
                    f"asynchronous: {lost} updates in a row were lost or too old, and none arrived "
                    f"for step {step}: clients must be on for as long as they need, and "
                    "most_staleness not be too small",
                )
                continue
            clients.append(client)
            versions.append(started)
            if len(clients) == asynchronous.buffer:
                starts = np.array(versions)
                factor = asynchronous.factor(step - starts)
                yield Step(np.array(clients), starts, events.now, lost, factor)
                events.free(clients)
                step, lost, clients, versions = step + 1, 0, [], []


def blocks(draw: Callable[[], NDArray[Any]]) -> Iterator[Any]:
    """The numbers of blocks that are drawn when they are needed."""
    while True:
        yield from draw().tolist()


class Events:
    """The clients at work, by when their devices are done.

    Args:
        devices: The clients' devices.
        on_start: Called with each client that starts and will arrive, and with its step.
    """

    def __init__(
        self,
        devices: Devices,
        on_start: Callable[[int, int], None] = lambda client, step: None,  # noqa: ARG005
    ) -> None:
        pace, seconds, self.dropout, seed = devices
        self.on_start = on_start
        self.clients = len(seconds)
        self.seconds: list[float] = seconds.tolist()
        self.hours, self.always = pace.hours, pace.hours.always
        # Python's numbers are faster for one client after the other
        self.first, self.begin, self.length = (a.tolist() for a in pace.hours[:3])
        self.now, self.order = 0.0, 0
        self.busy, self.count = bytearray(self.clients), 0
        self.queue: list[tuple[float, int, int, int, bool]] = []
        self.cohorts = Streams(seed, Purpose.COHORT)
        stream = generator(seed, Purpose.ARRIVALS)
        self.drawn = blocks(lambda: stream.integers(self.clients, size=DRAWN_TOGETHER))
        losses = generator(seed, Purpose.DROPOUT)
        self.losses = blocks(lambda: losses.random(DRAWN_TOGETHER))

    def free(self, clients: list[int]) -> None:
        """Let clients be drawn again."""
        for client in clients:
            self.busy[client] = 0
        self.count -= len(clients)

    def start(self, most: int, step: int) -> int:
        """Start clients at a step, at most so many, and return their number."""
        chosen = list[int]()
        if not self.count and self.always:  # as the cohort of a round with a barrier
            stream = self.cohorts.at(step, 0)
            chosen = stream.choice(self.clients, min(most, self.clients), replace=False).tolist()
            self.take(chosen)
        while len(chosen) < most and (client := self.draw()) is not None:
            chosen.append(client)
            self.take([client])
        for client in chosen:
            seconds, arrives = self.end(client)
            if arrives:
                self.on_start(client, step)
            heapq.heappush(self.queue, (self.now + seconds, self.order, client, step, arrives))
            self.order += 1
        return len(chosen)

    def draw(self) -> int | None:
        """A client that is neither at work nor in the buffer, and on; None if there is none."""
        if self.count == self.clients:
            return None
        for client in itertools.islice(self.drawn, TRIES):
            if not self.busy[client] and self.left(client):
                return client
        free = np.flatnonzero(np.frombuffer(self.busy, np.uint8) == 0).tolist()
        free = [client for client in free if self.left(client)]
        return free[next(self.drawn) % len(free)] if free else None

    def left(self, client: int) -> float:
        """Seconds for which a client stays on, 0 if it is off; as `Hours.left`."""
        if self.always:
            return math.inf
        period = self.hours.period
        for at in range(self.first[client], self.first[client + 1]):
            since = (self.now - self.begin[at]) % period
            if period - since < TOO_EARLY * period:
                since = 0.0
            if since < self.length[at]:
                return float(self.length[at] - since)
        return 0.0

    def take(self, clients: list[int]) -> None:
        """Mark clients as busy."""
        for client in clients:
            self.busy[client] = 1
        self.count += len(clients)

    def end(self, client: int) -> tuple[float, bool]:
        """Seconds until a client that starts now is done or lost, and whether it arrives."""
        seconds = lost = self.seconds[client]
        if self.dropout and next(self.losses) < self.dropout:
            lost = next(self.losses) * seconds
        lost = min(lost, self.left(client))
        return lost, lost == seconds

    def next(self, *, full: bool) -> Iterator[tuple[int, int, bool]]:
        """The clients that are done next, as `AtWork` says."""
        if not self.always and not full:
            goes_on = self.now + self.hours.wait(self.now)
            if not self.queue or goes_on < self.queue[0][0]:
                self.now = goes_on
                return
        self.now = self.queue[0][0]
        while self.queue and self.queue[0][0] == self.now:
            _, _, client, started, arrives = heapq.heappop(self.queue)
            yield client, started, arrives
