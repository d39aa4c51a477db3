"""Rounds on this machine's devices, and on those of the other processes of a run."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import State
from fedprox.engine.compiled.compile import Call, Compiler, Programs, inexactness_arguments
from fedprox.engine.compiled.evaluation import Measures
from fedprox.engine.compiled.layout import lay_out, stores_messages
from fedprox.engine.compiled.round import After, Server
from fedprox.engine.storage.client_store import Store, open_store
from fedprox.engine.storage.training_data import DeviceData, TrainingRows, copy_to_devices
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.execution import (
    Done,
    Measuring,
    RunState,
    Start,
    by_job,
    faulty_updates,
)
from fedprox.loop.own_models import OwnMeasures, OwnModels
from fedprox.loop.planner import PLANS_AHEAD, Planner, chunks
from fedprox.loop.progress import Progress, Report
from fedprox.model import Params
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol

MUCH = 2**30
"""Bytes of stored messages from which on a warning is logged."""


class Devices:
    """The devices of a comparison, and the rows on them, which are copied when they are needed."""

    def __init__(self, mesh: Mesh, protocol: Protocol, checkpoints: Checkpoints | None) -> None:
        self.mesh, self.protocol, self.checkpoints = mesh, protocol, checkpoints

    @cached_property
    def data(self) -> DeviceData:
        """The rows on the devices."""
        protocol = self.protocol
        return copy_to_devices(
            *(self.mesh, protocol.federation, protocol.measured),
            *(protocol.ownership, protocol.measured_ownership),
        )

    @contextmanager
    def execution(self, method: Method, start: Start, report: Report) -> Iterator["LocalMethod"]:
        """The execution of a method, whose first seed is planned while its programs compile."""
        pool = ThreadPoolExecutor(1)
        try:
            yield LocalMethod(self, method, start, report, pool)
        finally:  # also after an early end
            pool.shutdown(cancel_futures=True)


class LocalMethod:
    """A method on this machine's devices, through programs compiled once."""

    def __init__(
        self,
        devices: Devices,
        method: Method,
        start: Start,
        report: Report,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.devices, self.method, self.pool = devices, method, pool
        protocol, mesh = method.protocol, devices.mesh
        self.rows = TrainingRows(
            mesh, protocol.federation.train, devices.data, protocol.ownership, ahead=PLANS_AHEAD
        )
        self.layout = lay_out(method, self.rows, mesh.devices.size, start.params)
        if stores_messages(method):
            _say_stored(method, self.layout.room.slots, start.params)
        self._first: tuple[Start, Iterator[Call]] | None = start, self._plan(start)
        report(Progress(method.name, start.seed, start.round, protocol.rounds, phase="compiling"))
        self.programs = Compiler(method, mesh, devices.data, start.params, self.rows.like)
        first = self.programs(self.layout)
        self.evaluate, self.hparams = first.evaluate, self.programs.hparams
        self.compile_seconds, self.memory = first.compile_seconds, first.memory
        self.lane_idle = self.layout.idle
        self.own: OwnModels | None = None
        if method.has_own_models:
            self.own = OwnModels(method, mesh, devices.data, start.params)

    def _plan(self, start: Start) -> Iterator[Call]:
        """The calls of a seed's remaining rounds, planned ahead in the background."""
        protocol, layout, checkpoints = self.method.protocol, self.layout, self.devices.checkpoints
        shapes = layout if start.capacity is None else layout._replace(room=start.capacity)
        calls = chunks(
            start.round,
            rounds=protocol.rounds,
            evaluate_every=protocol.evaluation.every,
            most=layout.shape.rounds,
            pause=(checkpoints and checkpoints.every) or protocol.rounds,
        )
        planner = Planner(self.method, self.rows, start.seed, shapes, start.round)
        return planner.ahead(self.pool, calls)

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
    """The rounds of one seed on this machine's devices."""

    repeated: Sequence[range] = ()  # a round that is repeated has the same noise

    def __init__(
        self, local: LocalMethod, planned: Iterator[Call], store: Store | None, seed: int
    ) -> None:
        self.local, self.planned, self.store, self.seed = local, planned, store, seed
        self.measured: Measures | None = None

    def next(self, now: RunState) -> RunState:
        """Start the rounds of the next call, which reuses the memory of the state."""
        call, method = next(self.planned), self.local.method
        programs = self.local.programs(call.layout)
        after = self._run_program(programs, call, now)
        if self.store is not None:
            self.store.write(call.clients, after.client_state)
            after = after._replace(client_state=None)  # free the memory
        gamma = None
        if programs.inexactness is not None and method.protocol.is_recorded(call.done):
            gamma = self._gamma(programs.inexactness, call, after, now)
        counts = [len(each.jobs.client) for each in call.work]
        planned: Any = sum(int(each.jobs.steps.sum()) for each in call.work)
        done = Done(
            *(len(counts), counts.count(0), sum(counts)),
            (planned if after.steps is None else after.steps,),
            work=call.work[-1],
            gamma=gamma,
            taken=after.local.steps,
        )
        if after.flagged is not None:
            slots = call.layout.room.slots
            wait = partial(faulty_updates, call.first, call.work, slots, after.flagged)
            done = replace(done, faulty=(wait,))
        if method.protocol.evaluation.client_records and not method.algorithm.pooled:
            done = replace(done, clients=(by_job(call.work, after.local.steps),))
        return now._replace(
            round=call.done,
            state=after.state,
            since=now.since + done,
            capacity=call.layout.room,
        )

    def _run_program(self, programs: Programs, call: Call, now: RunState) -> After:
        """Call the program, which reuses the memory of the server's and the clients' state."""
        client_state = None if self.store is None else self.store.read(call.clients)
        inputs = call.inputs._replace(hparams=now.hparams)
        return programs.rounds(Server(now.state, client_state), inputs)

    def _gamma(
        self, inexactness: Callable[..., jax.Array], call: Call, after: After, now: RunState
    ) -> jax.Array:
        """gamma_k of a call's last round."""
        known = call, after.problem_state, now.hparams, after.local.params, after.before
        return inexactness(*inexactness_arguments(*known, self.local.devices.mesh))

    def evaluate(self, state: State) -> Measuring:
        """Begin to measure a state."""
        self.measured = self.local.evaluate(state)
        begun = self.measured, Done()
        return lambda: begun

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


def _say_stored(method: Method, slots: int, params: Params) -> None:
    """Log about how much a round's messages are, before they are needed; much is a warning."""
    count = slots * len(method.points)
    one = sum(a.nbytes for a in jax.tree.leaves(params)) * method.algorithm.communication
    size = count * one
    logging.getLogger(__name__).log(
        logging.WARNING if size >= MUCH else logging.INFO,
        "%s: each device stores up to %d messages until a round ends, about %.2f GiB",
        *(method.name, count, size / 2**30),
    )
