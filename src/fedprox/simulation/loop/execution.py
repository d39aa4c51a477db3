"""What the loop and its two engines tell each other.

`local.py` computes rounds on this machine's devices, `fedprox.deployment` on those of a network's
nodes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import HParams, State
from fedprox.model import Params
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.config.method import Method
from fedprox.simulation.loop.own_models import OwnMeasures
from fedprox.simulation.loop.progress import Report
from fedprox.simulation.loop.tally import Tally
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.planning.round_work import RoundWork


class LastRound(NamedTuple):
    """The last round of a call.

    Attributes:
        work: Its work, as it was done.
        gamma: gamma_k of its jobs (slots, points); None if not measured.
        steps: Steps of its jobs (slots, points); None if clients take the planned steps.
    """

    work: RoundWork
    gamma: jax.Array | None = None
    steps: Any = None


class Computed(NamedTuple):
    """The results of one call of rounds.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        last: The last round.
        tally: What the rounds did.
        capacity: Capacity of the call; None if shapes are not fixed.
    """

    round: int
    state: State
    last: LastRound
    tally: Tally
    capacity: Capacity | None = None


class RunState(NamedTuple):
    """The state of a seed run, without client state and records.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        hparams: The current hyperparameters of all sweep points, which a method may adapt.
        memory: State of the method's adaptation of hyperparameters; None without one.
        since: What rounds did since the last record.
        capacity: Capacity of the last call; None before the first call.
        best: The best models so far, leaves (points, ...); None if only the last model is kept. An
            evaluation counts only if its round is a multiple of `Evaluation.every`, since a longer
            run has no other.
    """

    round: int
    state: State
    hparams: Mapping[str, Any]
    memory: Any = None
    since: Tally = Tally()
    capacity: Capacity | None = None
    best: Params | None = None


class SeedExecution(Protocol):
    """Computes the rounds of one seed.

    Attributes:
        repeated: Rounds with privacy that were released before an interruption and are repeated.
    """

    repeated: int

    def next(self, now: RunState) -> Computed:
        """Compute the next rounds in one call. It may reuse the memory of `now.state`."""

    def evaluate(self, state: State) -> tuple[Measures, Tally]:
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


class Engine(Protocol):
    """What computes rounds: this machine's devices, or the nodes of a network.

    Attributes:
        mesh: The devices of the server's state.
    """

    mesh: Mesh

    def execution(
        self, method: Method, start: Start, report: Report
    ) -> AbstractContextManager[MethodExecution]:
        """The execution of a method, whose first seed begins at `start`."""
