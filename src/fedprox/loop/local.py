"""Rounds on this machine's devices, and on those of the other processes of a run.

Calls of the round program are planned ahead, in a background thread. Evaluations also measure the
own models of clients: those that they keep, and those after fine-tuning.
"""

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import ClientContext, ClientState, HParams, Own, State, own_or
from fedprox.algorithms.personal import fine_tuning
from fedprox.devices.mesh import accept_host_arrays, replicate, shard
from fedprox.devices.programs import ProgramSpec, compiled, jit_once
from fedprox.engine.compiled.compile import (
    Call,
    Compiler,
    Programs,
    inexactness_arguments,
    known,
    plan_call,
)
from fedprox.engine.compiled.evaluation import TOGETHER, Measures, client_sums
from fedprox.engine.compiled.layout import Layout, bucket, lay_out, needed, stores_messages
from fedprox.engine.compiled.node_part import part_program
from fedprox.engine.compiled.round import After, Server
from fedprox.engine.planning.jobs import jobs_of
from fedprox.engine.planning.round_work import RoundWork, works
from fedprox.engine.storage.client_store import Store, open_store
from fedprox.engine.storage.training_data import (
    DeviceData,
    TrainingRows,
    copy_to_devices,
    rows_spec,
)
from fedprox.epsilon import NOTHING, GivenUp
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.execution import (
    Done,
    Measuring,
    RunState,
    Start,
    by_job,
    faulty_updates,
)
from fedprox.loop.following import Progress, Report
from fedprox.measures import fairness
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.released import released_by_key

PLANS_AHEAD = 3
"""Number of calls that are planned ahead in the background."""


def chunks(
    begin: int, rounds: int, evaluate_every: int, most: int, pause: int
) -> Iterator[tuple[int, int]]:
    """Divide the remaining rounds into calls, which end at recorded rounds and at pauses.

    >>> list(chunks(1, 7, evaluate_every=5, most=3, pause=2))
    [(1, 2), (2, 4), (4, 5), (5, 6), (6, 7)]
    """
    while begin < rounds:
        following = (begin // each * each + each for each in (evaluate_every, pause))
        last = min(begin + most, rounds, *following)
        yield begin, last
        begin = last


class Planner:
    """Plans the calls of one seed, and enlarges their shapes if a round needs more room.

    Programs with different shapes may differ in the last bits. Therefore the shapes for a round
    depend only on the seed and on the rounds up to it, not on how rounds are grouped into calls.
    """

    def __init__(
        self, method: Method, rows: TrainingRows, seed: int, layout: Layout, first: int
    ) -> None:
        self.method, self.solver = method, method.solver
        self.rows, self.seed, self.layout = rows, seed, layout
        self.works = works(method.protocol, method.algorithm, method.solver, seed, first)

    def plan(self, begin: int, end: int) -> list[Call]:
        """Plan the calls of the next rounds: one, or more if the shapes grow within them."""
        calls, first, work = [], begin, list[RoundWork]()
        for t in range(begin, end):
            current = next(self.works)
            layout = self.layout.fitting(needed(self.layout, self.solver, current))
            if layout is not self.layout and work:
                calls.append(self._call(first, work))
                first, work = t, []
            self.layout = layout
            work.append(current)
        calls.append(self._call(first, work))
        return calls

    def _call(self, first: int, work: Sequence[RoundWork]) -> Call:
        """The call for rounds with this work, beginning with round `first`."""
        room = self.rows.needed(work, self.layout.reading.width)
        self.layout = self.layout.fitting(self.layout.room._replace(rows=room))
        return plan_call(self.method, self.rows, self.layout, self.seed, first, work)

    def ahead(self, pool: ThreadPoolExecutor, waiting: Iterator[tuple[int, int]]) -> Iterator[Call]:
        """The calls of some ranges of rounds, planned ahead in the background."""

        def submit(count: int) -> list[Future[list[Call]]]:
            return [pool.submit(self.plan, *part) for part in itertools.islice(waiting, count)]

        under_way = deque(submit(PLANS_AHEAD))

        def planned() -> Iterator[Call]:
            while under_way:
                calls = under_way.popleft()
                under_way.extend(submit(1))
                yield from calls.result()

        return planned()


BLOCK = 64
"""Clients whose models are measured together."""


class OwnModels:
    """Measures the own models of all clients that an evaluation reads, and that have test rows."""

    def __init__(self, method: Method, mesh: Mesh, data: DeviceData, params: Params) -> None:
        self.method, self.mesh = method, mesh
        protocol = method.protocol
        self.test = protocol.measured.test
        sampled = protocol.evaluation.clients
        count = len(protocol.federation)
        chosen = np.arange(count) if sampled is None else protocol.federation.drawn(sampled)
        self.at = {int(k): i for i, k in enumerate(chosen) if self.test.sizes[i]}
        steps = protocol.evaluation.fine_tune
        self.tuning = None if steps is None else FineTuning(method, mesh, data, params, steps)
        self.receive = jit_once(partial(_at_places, method.algorithm.server.received))

    def measure(
        self, state: Any, hparams: HParams, store: Store, seed: int, done: int
    ) -> dict[str, list[float]]:
        """The measures of clients' own models at each sweep point, by name."""
        model, points = self.method.protocol.model, len(self.method.points)
        params = jax.vmap(self.method.algorithm.server.params)(state)
        shape = len(self.test.sizes), points
        loss, correct = np.full(shape, np.nan), np.zeros(shape)
        trained = np.zeros(shape, bool)
        for block in self._blocks():
            at, own = self._models(block, state, params, hparams, store, seed, done)
            rows = np.array([self.at[k] if k >= 0 else -1 for k in at.tolist()])
            here = rows >= 0
            sums = client_sums(model, own.model, self.test, rows, own=True)
            summed, met = (each[here] for each in sums)
            loss[rows[here]] = summed / self.test.sizes[rows[here], None]
            correct[rows[here]] = met
            trained[rows[here]] = np.asarray(own.trained)[here]
        at_points = zip(loss.T, correct.T, trained.T, strict=True)
        measures = [self._summary(*each) for each in at_points]
        return {name: [each[name] for each in measures] for name in measures[0]}

    def _summary(
        self, loss: NDArray[Any], correct: NDArray[Any], trained: NDArray[np.bool_]
    ) -> dict[str, float]:
        """The measures of a sweep point, from those of clients that have trained or have not."""
        labels = self.method.protocol.test_labels
        values: dict[str, float] = {"personal_clients": int(trained.sum())}
        for name, clients in (("personal", trained), ("newcomer", ~trained)):
            tested = clients & (self.test.sizes > 0)
            rows, count = self.test.sizes[tested], labels[tested].sum()
            values[f"{name}_loss"] = loss[tested] @ rows / rows.sum() if len(rows) else math.nan
            values[f"{name}_accuracy"] = correct[tested].sum() / count if count else math.nan
        with np.errstate(invalid="ignore"):
            shares = np.where(trained, correct / labels, math.nan)
        return {**values, "personal_accuracy_worst": fairness(shares).worst}

    def _blocks(self) -> Iterator[NDArray[np.int64]]:
        """The clients in blocks of similar sizes."""
        clients = np.array(sorted(self.at, key=lambda k: (-self.test.sizes[self.at[k]], k)))
        first = 0
        while first < len(clients):
            most = bucket(int(self.test.sizes[self.at[int(clients[first])]]))
            count = max(1, min(BLOCK, TOGETHER // most))
            yield clients[first : first + count]
            first += count

    def _models(
        self,
        block: NDArray[np.int64],
        state: Any,
        params: Params,
        hparams: HParams,
        store: Store,
        seed: int,
        done: int,
    ) -> tuple[NDArray[np.int64], Own]:
        """The client at each place, -1 for none, and its own model."""
        algorithm, points = self.method.algorithm, len(self.method.points)

        def first(at: NDArray[np.int64]) -> Params:
            """The server's model, or that of the client at each place, (places, points, ...)."""
            if algorithm.first.probe is not None:
                return self._received(at, state)
            return jax.tree.map(lambda a: np.broadcast_to(a, (len(at), *a.shape)), params)

        if self.tuning is None:
            places = bucket(-(-len(block) // self.mesh.devices.size)) * self.mesh.devices.size
            at = np.full(places, -1)
            at[: len(block)] = block
            tuned = params if algorithm.first.probe is None else first(at)
        else:
            at, tuned = self.tuning(block, params, first, hparams, seed, done)
        personal = algorithm.personal
        if personal is None or store is NO_STORE:
            return at, Own(tuned, jax.numpy.ones((len(at), points), bool))
        own = jax.vmap(jax.vmap(personal.own), in_axes=(0, None))(store.read(at), params)
        # after fine-tuning each client has its own parameters, else all have the server's
        others = None if self.tuning is None else 0
        return at, own._replace(model=jax.vmap(jax.vmap(own_or), (0, others))(own, tuned))

    def _received(self, at: NDArray[np.int64], state: Any) -> Params:
        """The model of the client at each place by its losses, leaves (places, points, ...)."""
        algorithm, protocol = self.method.algorithm, self.method.protocol
        assert algorithm.first.probe is not None
        train = protocol.federation.train
        probed = jax.vmap(algorithm.first.probe)(state)  # leaves (points, models, ...)
        flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), probed)
        sums, _ = client_sums(protocol.model, flat, train, at, own=False)
        sizes = np.where(at >= 0, train.sizes[at], 0)
        means = sums / np.maximum(sizes, 1).astype(sums.dtype)[:, None]
        losses = means.reshape(len(at), len(self.method.points), -1)
        size = sizes / train.sizes.mean()
        relative = np.broadcast_to(size[:, None].astype(real_type()), losses.shape[:2])
        context = ClientContext(None, None, relative_size=relative, probed=losses)  # type: ignore[arg-type]
        received: Params = self.receive(state, context)
        return received


def _at_places(received: Any, state: State, context: ClientContext) -> Params:
    """The models that clients received, of states (points, ...) and contexts (places, points, ...).

    Compiled as one program: alone, its operations would take longer to compile than to run.
    """
    return jax.vmap(jax.vmap(received), (None, 0))(state, context)


class FineTuning:
    """Local steps of clients from given models, by the compiled program of rounds."""

    def __init__(
        self, method: Method, mesh: Mesh, data: DeviceData, params: Params, steps: int
    ) -> None:
        protocol = method.protocol
        alone = protocol.plain(min(BLOCK, len(protocol.federation)))
        self.mesh, self.method = mesh, Method(alone, fine_tuning(method.algorithm, steps))
        federation = protocol.federation
        self.rows = TrainingRows(mesh, federation.train, data, protocol.ownership, ahead=1)
        self.layout = lay_out(self.method, self.rows, mesh.devices.size, params).together(1)
        self.programs: dict[Any, Any] = {}

    def __call__(
        self,
        block: NDArray[np.int64],
        params: Params,
        first: Callable[[NDArray[np.int64]], Params],
        hparams: HParams,
        seed: int,
        done: int,
    ) -> tuple[NDArray[np.int64], Params]:
        """The client at each place, -1 for none, and its model, leaves (places, points, ...)."""
        method, train = self.method, self.method.protocol.federation.train
        solver, t = method.solver, max(0, done - 1)
        ones = np.ones(len(block))
        jobs = jobs_of(
            train,
            method.protocol.ownership,
            block,
            steps=solver.steps_for(train.sizes[block]),
            weight=ones,
            gamma=solver.gammas(t, block),
            participation=ones / len(block),
            relative_size=ones,
        )
        work = RoundWork(len(block), jobs=jobs)
        need = needed(self.layout, solver, work)
        room = self.rows.needed([work], self.layout.reading.width)
        self.layout = self.layout.fitting(need._replace(rows=room))
        call = plan_call(method, self.rows, self.layout, seed, t, [work])
        at = call.clients  # which keep their models
        models = jax.tree.map(np.asarray, first(at))
        state = Own(models, jax.numpy.zeros((len(at), len(method.points)), bool))
        inputs = call.inputs._replace(hparams=dict(hparams))
        server = Server(replicate(self.mesh, params), shard(self.mesh, state))
        if call.layout not in self.programs:
            specs = tuple(rows_spec(a, method.protocol.ownership) for a in (inputs.x, inputs.y))
            request = ProgramSpec(
                lambda: part_program(method, call.layout, self.mesh, specs),
                (method.protocol.model.base, server, inputs),
                ("part", *known(method, call.layout, self.mesh)),
            )
            self.programs[call.layout] = accept_host_arrays(compiled(request))
        part = self.programs[call.layout](method.protocol.model.base, server, inputs)
        return at, part.client_state.model


MUCH = 2**30
"""Bytes of stored messages from which on a warning is logged."""


class LocalEngine:
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
        devices: LocalEngine,
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
        self._first = [self._plan(start)]
        report(Progress(method.name, start.seed, start.round, protocol.rounds, phase="compiling"))
        self.programs = Compiler(method, mesh, devices.data, start.params, self.rows.like)
        first = self.programs(self.layout)
        self.evaluate, self.hparams = first.evaluate, self.programs.hparams
        self.compile_seconds, self.memory = first.compile_seconds, first.memory
        self.lane_idle = self.layout.idle
        own = method.has_own_models
        self.own = OwnModels(method, mesh, devices.data, start.params) if own else None

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
        planned = self._first.pop() if self._first else self._plan(start)
        return LocalSeed(self, planned, self._open_store(start.params), start.seed, start.round)

    def _open_store(self, params: Params) -> Store:
        """Open the store of client state."""
        protocol = self.method.protocol
        if not self.method.algorithm.client.state:
            return NO_STORE
        client_state = self.method.initial_client_state(params)
        most = protocol.rounds * protocol.cohort.sizes(len(protocol.federation))[-1]
        clients = protocol.ownership.clients
        return open_store(protocol.client_store, client_state, clients, self.devices.mesh, most)


class _NoStore(Store):
    """It has nothing to store."""

    def read(self, clients: NDArray[np.int64]) -> ClientState:
        del clients

    def write(self, clients: NDArray[np.int64], client_state: ClientState) -> None:
        pass

    def arrays(self) -> list[NDArray[Any]]:
        return []

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        pass

    def close(self) -> None:
        pass


NO_STORE = _NoStore()
"""The store of a method without client state."""


class LocalSeed:
    """The rounds of one seed on this machine's devices."""

    repeated: Sequence[range] = ()  # a round that is repeated has the same noise
    measured_before = 0  # as an evaluation

    def __init__(
        self, local: LocalMethod, planned: Iterator[Call], store: Store, seed: int, done: int
    ) -> None:
        self.local, self.planned, self.store, self.seed = local, planned, store, seed
        self.measured: Measures | None = None
        self.done = done

    def given_up(self, rounds: int) -> GivenUp:
        """Each round is released."""
        del rounds
        return NOTHING

    def next(self, now: RunState) -> RunState:
        """Start the rounds of the next call, which reuses the memory of the state."""
        call, method = next(self.planned), self.local.method
        self.done = call.done
        programs = self.local.programs(call.layout)
        after = self._run_program(programs, call, now)
        self.store.write(call.clients, after.client_state)
        after = after._replace(client_state=None)  # free the memory
        gamma = None
        if programs.inexactness and method.protocol.is_recorded(call.done):
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
        client_state = self.store.read(call.clients)
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
        done = self.done
        self.measured = self.local.evaluate(state)
        begun, method = (self.measured, Done()), self.local.method
        if not method.protocol.clips_measures:
            return lambda: begun
        return cache(lambda: (released_by_key(method, begun[0], self.seed, done), Done()))

    def measure_own(self, now: RunState) -> Mapping[str, Sequence[float]]:
        """Measure the clients' own models, if there are any."""
        if not self.local.own:
            return {}
        return self.local.own.measure(now.state, now.hparams, self.store, self.seed, now.round)

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]] | None:
        """Client state for a checkpoint; None without client state."""
        return None if self.store is NO_STORE else self.store.contents()

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore the client state of a checkpoint."""
        self.store.restore(saved)

    def close(self) -> None:
        """Free the memory of the client state."""
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
