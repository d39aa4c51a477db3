"""Where the rounds of a method are computed: the interface between the loop and what computes.

`local.py` computes them on this machine's devices, `fedprox.deployment` on the nodes of a network.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import jax
from numpy.typing import NDArray

from fedprox.algorithms.base import HParams, State
from fedprox.model import Params
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.config.method import Method
from fedprox.simulation.loop.own_models import OwnMeasures
from fedprox.simulation.loop.participation import Trained
from fedprox.simulation.loop.planner import Chunk
from fedprox.simulation.loop.records import Faulty, Traffic
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.planning.round_work import RoundWork

Planned = Iterator[tuple[Chunk, Any]]
"""The calls of a seed's remaining rounds, each with the inputs that its execution needs."""


class RunState(NamedTuple):
    """The state of a seed's rounds, without client state and records.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        hparams: The current hyperparameters of all sweep points, which a method may adapt.
        memory: State of the method's adaptation of hyperparameters; None without one.
        taken: Steps since the last evaluation, a number or an array (points,) for each call.
        faulty: Faulty updates since the last evaluation, one item for each call; empty without
            screening.
        empty: Number of rounds since the last evaluation in which no client took part.
        capacity: Capacity of the last call; None before the first call.
        best: The best models so far, leaves (points, ...); None if only the last model is kept. An
            evaluation counts only if its round is a multiple of `Evaluation.every`, since a longer
            run has no other.
        traffic: What rounds since the last evaluation cost on a network; empty without one.
        trained: Jobs since the last evaluation; empty without client records.
    """

    round: int
    state: State
    hparams: Mapping[str, Any]
    memory: Any = None
    taken: tuple[Any, ...] = ()
    faulty: tuple[Faulty, ...] = ()
    empty: int = 0
    capacity: Capacity | None = None
    best: Params | None = None
    traffic: tuple[Traffic, ...] = ()
    trained: tuple[Trained, ...] = ()


class Computed(NamedTuple):
    """The results of one call of rounds.

    Attributes:
        state: The server's state.
        work: The work of the last round, as it was done.
        steps: Steps of all clients and rounds, a number or an array (points,).
        empty: Number of rounds in which no client took part.
        faulty: The faulty updates as one item; empty without screening.
        capacity: Capacity of the call; None if shapes are not fixed.
        gamma: gamma_k of the last round's jobs (slots, points); None if not measured.
        local_steps: Steps of the last round's jobs (slots, points); None if clients take the
            planned steps.
        traffic: What the rounds cost on a network; empty without one.
        trained: The jobs of the rounds as one item; empty without client records.
    """

    state: State
    work: RoundWork
    steps: Any
    empty: int
    faulty: tuple[Faulty, ...] = ()
    capacity: Capacity | None = None
    gamma: jax.Array | None = None
    local_steps: Any = None
    traffic: tuple[Traffic, ...] = ()
    trained: tuple[Trained, ...] = ()


class SeedExecution(Protocol):
    """Computes the rounds of one seed.

    Attributes:
        planned: The calls of the remaining rounds.
        repeated: Rounds with privacy that were released before an interruption and are repeated.
    """

    planned: Planned
    repeated: int

    def run(self, chunk: Chunk, call: Any, now: RunState) -> Computed:
        """Compute the rounds of one call. It may reuse the memory of `now.state`."""

    def evaluate(self, state: State) -> tuple[Measures, tuple[Traffic, ...]]:
        """Measure the evaluated model of a state; also what it cost on a network."""

    def measure_own(self, now: RunState) -> OwnMeasures | None:
        """Measure the clients' own models; None without any."""

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]] | None:
        """Client state for a checkpoint, see `Store.contents`; None without client state."""

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore what `contents` returned."""

    def close(self) -> None:
        """Free the memory."""


class Start(NamedTuple):
    """Where the remaining rounds of a seed begin.

    Attributes:
        seed: The seed.
        params: Its initial parameters w^0.
        round: The first of the remaining rounds.
        capacity: Capacity of the call before this round; None before the first call.
    """

    seed: int
    params: Params
    round: int
    capacity: Capacity | None


class MethodExecution(Protocol):
    """Computes the rounds of all seeds of a method.

    Attributes:
        hparams: The hyperparameters of all sweep points, arrays (points,).
        compile_seconds: Seconds to compile its programs.
        memory: Peak bytes of the rounds' program on one device.
        lane_idle: Share of lane ticks without a client.
    """

    hparams: HParams
    compile_seconds: float
    memory: int
    lane_idle: float

    def begin(self, start: Start) -> SeedExecution:
        """Begin the remaining rounds of a seed."""


Execute = Callable[[Method, Start], AbstractContextManager[MethodExecution]]
"""(method, start of its first seed) -> its execution."""
