"""Rounds on this machine's devices, and on those of the other processes of a run."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import State
from fedprox.model import Params
from fedprox.simulation.compiled.compile import Compiler, Programs, read_cohort
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.compiled.layout import lay_out
from fedprox.simulation.compiled.round import After, Inputs, Server
from fedprox.simulation.config.method import Method
from fedprox.simulation.loop.execution import Computed, RunState, Start
from fedprox.simulation.loop.own_models import OwnMeasures, OwnModels
from fedprox.simulation.loop.participation import Trained, trained
from fedprox.simulation.loop.planner import PLANS_AHEAD, Call, Chunk, Planned, Planner, chunks
from fedprox.simulation.loop.records import Faulty, Traffic, faulty_updates
from fedprox.simulation.storage.client_store import Store, open_store
from fedprox.simulation.storage.training_data import Data, training_rows


class Devices(NamedTuple):
    """The devices of a comparison, and the rows on them.

    Attributes:
        mesh: The devices.
        data: The rows on the devices.
        pause: Rounds between pauses, such as checkpoints; None for no pauses.
        compiling: Called with a method before its programs are compiled.
    """

    mesh: Mesh
    data: Data
    pause: int | None
    compiling: Callable[[Method, Start], None]


@contextmanager
def on_devices(devices: Devices, method: Method, start: Start) -> Iterator["LocalMethod"]:
    """The execution of a method on devices.

    Args:
        devices: The devices.
        method: The method.
        start: The start of its first seed, which is planned while the programs are compiled.
    """
    with _cancelling(ThreadPoolExecutor(1)) as pool:
        yield LocalMethod(devices, method, start, pool)


class LocalMethod:
    """A method on this machine's devices, through programs compiled once.

    Args:
        devices: The devices.
        method: The method.
        start: The start of its first seed.
        pool: Plans calls ahead in the background.
    """

    def __init__(
        self, devices: Devices, method: Method, start: Start, pool: ThreadPoolExecutor
    ) -> None:
        self.devices, self.method, self.pool = devices, method, pool
        protocol, mesh = method.protocol, devices.mesh
        self.rows = training_rows(
            mesh, protocol.federation.train, devices.data, protocol.ownership, ahead=PLANS_AHEAD
        )
        self.layout = lay_out(method, self.rows, mesh.devices.size, start.params)
        self._first: tuple[Start, Planned] | None = start, self._plan(start)
        devices.compiling(method, start)
        self.programs = Compiler(method, mesh, devices.data, start.params, self.rows.like)
        first = self.programs(self.layout)
        self.evaluate, self.hparams = first.evaluate, self.programs.hparams
        self.compile_seconds, self.memory = first.compile_seconds, first.memory
        self.lane_idle = self.layout.idle
        self.own: OwnModels | None = None
        if method.has_own_models:
            self.own = OwnModels(method, mesh, devices.data, start.params)

    def _plan(self, start: Start) -> Planned:
        """The calls of a seed's remaining rounds, planned ahead in the background."""
        protocol, layout = self.method.protocol, self.layout
        shapes = layout if start.capacity is None else layout._replace(room=start.capacity)
        calls = chunks(
            start.round,
            rounds=protocol.rounds,
            evaluate_every=protocol.evaluation.every,
            most=layout.shape.rounds,
            pause=self.devices.pause or protocol.rounds,
        )
        return Planner(self.method, self.rows, start.seed, shapes).ahead(self.pool, calls)

    def begin(self, start: Start) -> "LocalSeed":
        """Begin the remaining rounds of a seed."""
        planned = None
        if self._first is not None and self._first[0] is start:
            planned, self._first = self._first[1], None
        store = self._open_store(start.params)
        return LocalSeed(self, planned or self._plan(start), store, start.seed)

    def _open_store(self, params: Params) -> Store | None:
        """Open the store of client state; None for a method without client state."""
        protocol = self.method.protocol
        client_state = self.method.initial_client_state(params)
        if client_state is None:
            return None
        most = protocol.rounds * protocol.cohort.sizes(len(protocol.federation))[-1]
        clients = protocol.ownership.clients
        return open_store(protocol.client_store, client_state, clients, self.devices.mesh, most)


class LocalSeed:
    """The rounds of one seed on this machine's devices.

    Args:
        local: The method.
        planned: The calls of the remaining rounds.
        repeated: 0, since a round that is repeated has the same noise.
        store: Store of the client state; None for a method without client state.
        seed: The seed.
    """

    def __init__(
        self, local: LocalMethod, planned: Planned, store: Store | None, seed: int
    ) -> None:
        self.local, self.planned, self.store, self.seed = local, planned, store, seed
        self.repeated = 0

    def run(self, chunk: Chunk, call: Call, now: RunState) -> Computed:
        """Start the rounds of one call, which reuses the memory of the state."""
        programs = self.local.programs(call.layout)
        after = self._run_program(programs, chunk, call, now)
        if self.store is not None and call.held is not None:
            self.store.write(call.held.clients, after.client_state)
            after = after._replace(client_state=None)  # free the memory
        gamma = self._gamma(programs, call, after, now) if chunk.recorded else None
        planned_steps = sum(int(w.jobs.steps.sum()) for w in call.work)
        return Computed(
            after.state,
            call.work[-1],
            planned_steps if after.steps is None else after.steps,
            sum(not len(w.jobs.client) for w in call.work),
            _faulty(chunk, call, after),
            call.layout.room,
            gamma,
            after.local.steps,
            trained=self._trained(call, after),
        )

    def _trained(self, call: Call, after: After) -> tuple[Trained, ...]:
        """The jobs of a call as one item; no item without client records."""
        method = self.local.method
        if not method.protocol.evaluation.client_records or method.algorithm.pooled:
            return ()
        return (trained(call.work, after.local.steps),)

    def _run_program(self, programs: Programs, chunk: Chunk, call: Call, now: RunState) -> After:
        """Call the program, which reuses the memory of the server's and the clients' state."""
        client_state, at = None, None
        if self.store is not None and call.held is not None:
            client_state, at = self.store.read(call.held.clients), call.held.at
        count = np.int32(chunk.last - chunk.first)
        x, y = call.rows
        inputs = Inputs(now.hparams, x, y, call.plan, call.exchange, count, at)
        return programs.rounds(Server(now.state, client_state), inputs)

    def _gamma(
        self, programs: Programs, call: Call, after: After, now: RunState
    ) -> jax.Array | None:
        """gamma_k of a call's last round; None if not measured.

        Args:
            programs: The programs of the call.
            call: The call.
            after: Its results.
            now: The state before the call.
        """
        if programs.inexactness is None:
            return None
        jobs, last = call.work[-1].jobs, len(call.work) - 1
        mesh = self.local.devices.mesh
        cohort = read_cohort(jobs, call.plan, last, after.before, call.layout, mesh)
        local = after.local.params
        return programs.inexactness(after.problem_state, now.hparams, local, call.rows, cohort)

    def evaluate(self, state: State) -> tuple[Measures, tuple[Traffic, ...]]:
        """Start an evaluation of a state."""
        return self.local.evaluate(state), ()

    def measure_own(self, now: RunState) -> OwnMeasures | None:
        """Measure the clients' own models; None without any."""
        if self.local.own is None:
            return None
        return self.local.own.measure(now.state, now.hparams, self.store, self.seed, now.round)

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]] | None:
        """Client state for a checkpoint; None without client state."""
        return self.store.contents() if self.store else None

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore the client state of a checkpoint."""
        if self.store is not None:
            self.store.restore(saved)

    def close(self) -> None:
        """Free the memory of the client state."""
        if self.store is not None:
            self.store.close()


def _faulty(chunk: Chunk, call: Call, after: After) -> tuple[Faulty, ...]:
    """The faulty updates of a call as one item; no item without screening."""
    if after.faulty is None:
        return ()
    slots = call.layout.room.slots
    return (partial(faulty_updates, chunk.first, call.work, slots, after.faulty),)


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A context that cancels the pool's waiting tasks at its end, as after an early end."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
