"""The programs of one method for the shapes of its layout, and the inputs of their calls."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, ClientState, HParams, State
from fedprox.devices.mesh import REPLICATED, accept_host_arrays, replicate, zeros_on
from fedprox.devices.programs import ProgramSpec, compiled_once
from fedprox.engine.compiled.evaluation import (
    Measures,
    evaluation_program,
    measures_of_sums,
    plan_evaluation,
)
from fedprox.engine.compiled.gradients import inexactness_program
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.compiled.round import (
    After,
    Inputs,
    Server,
    local_gradient_of,
    rounds_program,
)
from fedprox.engine.planning.batch_plan import BatchPlan, plan_rounds
from fedprox.engine.planning.reads import plan_exchanges, plan_reading
from fedprox.engine.planning.round_work import RoundWork
from fedprox.engine.storage.training_data import DeviceData, DeviceRows, TrainingRows, rows_spec
from fedprox.jax_internals import peak_bytes
from fedprox.model import Params
from fedprox.protocol.method import Method


class Call(NamedTuple):
    """A call of the rounds' program.

    Attributes:
        first: The first of its rounds.
        work: The work of its rounds; `device_row` refers to the rows of `inputs`.
        clients: The client at each place of `Server.client_state`, -1 for none; empty for a method
            without client state.
        inputs: The inputs of the program, without hyperparameters.
        layout: The shapes of these inputs.
    """

    first: int
    work: Sequence[RoundWork]
    clients: NDArray[np.int64]
    inputs: Inputs
    layout: Layout

    @property
    def done(self) -> int:
        """Number of rounds done after it."""
        return self.first + len(self.work)


def plan_call(
    method: Method,
    rows: TrainingRows,
    layout: Layout,
    seed: int,
    first: int,
    work: Sequence[RoundWork],
) -> Call:
    """Plan the call of some rounds."""
    on_devices, placed = rows.of(work, layout.reading.width, layout.room.rows)
    return call_of(method, layout, seed, first, placed, on_devices)


def call_of(
    method: Method,
    layout: Layout,
    seed: int,
    first: int,
    work: Sequence[RoundWork],
    rows: DeviceRows,
) -> Call:
    """The call of rounds whose work knows its rows on the devices."""
    plan = plan_rounds(
        *(layout.shape, layout.room, method.solver, seed),
        [(t, each.jobs) for t, each in enumerate(work, start=first)],
        noisy=method.protocol.noisy,
        keyed=method.keyed,
        columns=method.no_columns,
        process_index=method.protocol.ownership.process_index,
    )
    exchange = plan_exchanges(work, layout.reading, layout.room)
    clients, held = np.zeros(0, np.int64), None
    if method.algorithm.client.state is not None:
        clients, held = held_state(plan, work or [RoundWork()], layout)
    inputs = Inputs({}, *rows, plan, exchange, np.int32(len(work)), held)
    return Call(first, work, clients, inputs, layout)


def held_state(
    plan: BatchPlan, work: Sequence[RoundWork], layout: Layout
) -> tuple[NDArray[np.int64], NDArray[np.int32] | None]:
    """Whose state a call holds: the client at each place, -1 for none, and `Inputs.held`."""
    shape, places = layout.shape, layout.room.places
    cohorts = np.full((len(work), shape.devices * places), -1)
    for cohort, place, each in zip(cohorts, plan.place, work, strict=False):
        cohort[place[: len(each.jobs.client)]] = each.jobs.client
    if shape.rounds == 1:
        return cohorts[0], None
    clients = np.full(shape.devices * layout.held, -1)
    different = np.unique(np.concatenate([each.jobs.client for each in work]))
    clients[: len(different)] = different
    at = np.full((shape.rounds, shape.devices * places), len(clients), np.int32)
    for r, cohort in enumerate(cohorts):
        at[r, cohort >= 0] = np.searchsorted(different, cohort[cohort >= 0])
    return clients, at.reshape(shape.rounds, shape.devices, places)


def inexactness_arguments(
    call: Call, state: State, hparams: HParams, local: Params, before: ClientState, mesh: Mesh
) -> tuple[Any, ...]:
    """The arguments of the inexactness of a call's last round, without `Model.base`."""
    layout, jobs, plan = call.layout, call.work[-1].jobs, call.inputs.plan
    last = len(call.work) - 1
    first, room = jobs.device_row, layout.room
    ranges = first, first + jobs.size, jobs.owner
    reading = plan_reading(*ranges, layout.reading, room.cohort_ticks, room.slots)
    of_round = plan.rate[last], plan.participation[last]
    rows, of_jobs = (call.inputs.x, call.inputs.y), jax.tree.map(lambda a: a[last], plan.jobs)
    states = plan.place[last], replicate(mesh, before)
    return state, hparams, of_round, local, rows, reading, of_jobs, *states


class Programs(NamedTuple):
    """The compiled programs of one method for one layout.

    Attributes:
        rounds: (server, inputs) -> After, see `rounds_program`.
        evaluate: (state) -> Measures.
        inexactness: As `gamma` calls it, see `inexactness_program`; None if gradients are not
            measured.
        compile_seconds: Seconds to compile them.
        memory: Peak bytes of the rounds' program on one device, data included.
    """

    rounds: Callable[..., After]
    evaluate: Callable[[State], Measures]
    inexactness: Callable[..., jax.Array] | None
    compile_seconds: float
    memory: int


class Compiler:
    """Compiles the programs of one method, once for each layout.

    All layouts share one evaluation program, since they differ only in the size of a round.

    Args:
        method: The method that is compiled.
        mesh: The devices.
        data: The rows that evaluations read, on the devices.
        params: Initial parameters of one sweep point.
        like: (room for gathered rows) -> training rows of a call, or their shapes.

    Attributes:
        hparams: The hyperparameters of all sweep points, arrays (points,) on each device.
    """

    def __init__(
        self,
        method: Method,
        mesh: Mesh,
        data: DeviceData,
        params: Params,
        like: Callable[[int], DeviceRows],
    ) -> None:
        self.method, self.mesh, self.data, self.like = method, mesh, data, like
        self.hparams, self.base = method.hparams(mesh), method.protocol.model.base
        self._params = params
        self._evaluate: Callable[[State], Measures] | None = None
        self._compiled: dict[Layout, Programs] = {}

    def __call__(self, layout: Layout) -> Programs:
        """The programs for a layout, compiled on first use."""
        if layout not in self._compiled:
            self._compiled[layout] = self._compile(layout)
        return self._compiled[layout]

    def _compile(self, layout: Layout) -> Programs:
        """Compile the programs of a layout in parallel."""
        begin = time.perf_counter()
        starts = [self._params] * self.method.algorithm.server.starts
        state = self.method.initial_state(starts, self.mesh)
        requests = {"rounds": self._rounds(layout, state)}
        inputs: Any = None
        # measure in full precision, even if an accelerator trains in a lower one
        with jax.default_matmul_precision("highest"):
            if self._evaluate is None:
                requests["evaluation"], inputs = self._evaluation(layout, state)
            protocol = self.method.protocol
            # gamma is relative to one model, from which not all of these clients started
            one_model = not self.method.several_starts
            # and to F_k, which not all methods solve
            algorithm = self.method.algorithm
            solves = algorithm.client.objective is None and not algorithm.own_parts
            one_model = one_model and algorithm.first.probe is None
            if protocol.evaluation.gradients and one_model and solves:
                requests["inexactness"] = self._inexactness(layout, state)
            traced = {name: request.trace() for name, request in requests.items()}
        programs = compiled_once(requests, traced)
        ready = {
            name: partial(accept_host_arrays(program), self.base)
            for name, program in programs.items()
        }
        if self._evaluate is None:
            evaluation, algorithm = ready["evaluation"], self.method.algorithm
            self._evaluate = lambda state: evaluation(evaluated(algorithm, state), inputs)
        return Programs(
            rounds=ready["rounds"],
            evaluate=self._evaluate,
            inexactness=ready.get("inexactness"),
            compile_seconds=time.perf_counter() - begin,
            memory=peak_bytes(programs["rounds"]),
        )

    def _rounds(self, layout: Layout, state: State) -> ProgramSpec:
        rows = self.like(layout.room.rows)
        server = Server(state, self._client_state(layout.held))
        call = call_of(self.method, layout, 0, 0, [], rows)
        specs = self._specs(rows)
        return ProgramSpec(
            lambda: rounds_program(self.method, layout, self.mesh, specs),
            (self.base, server, call.inputs._replace(hparams=self.hparams)),
            ("rounds", *known(self.method, layout, self.mesh)),
        )

    def _evaluation(self, layout: Layout, state: State) -> tuple[ProgramSpec, Any]:
        """The evaluation program, and its inputs except the models."""
        model = self.method.protocol.measured_model
        params = evaluated(self.method.algorithm, state)
        shape, inputs, specs = plan_evaluation(self.method, self.data, layout, self.mesh)
        measures = partial(measures_of_sums, model)
        spec = ProgramSpec(
            lambda: evaluation_program(model, self.mesh, shape, specs, measures),
            (self.base, params, inputs),
            ("evaluation", model, self.mesh, shape),
        )
        return spec, inputs

    def _inexactness(self, layout: Layout, state: State) -> ProgramSpec:
        replicated, slots = NamedSharding(self.mesh, REPLICATED), layout.room.slots

        def of_slots(like: Any) -> jax.ShapeDtypeStruct:
            shape = (slots, len(self.method.points), *like.shape)
            return jax.ShapeDtypeStruct(shape, like.dtype, sharding=replicated)

        local, rows = jax.tree.map(of_slots, self._params), self.like(layout.room.rows)
        before = self._client_state(layout.room.places)
        call = call_of(self.method, layout, 0, 0, [RoundWork()], rows)
        arguments = inexactness_arguments(call, state, self.hparams, local, before, self.mesh)
        return ProgramSpec(
            lambda: inexactness_program(self.method, layout, self.mesh, self._specs(rows)),
            (self.base, *arguments),
            ("inexactness", *known(self.method, layout, self.mesh)),
        )

    def _client_state(self, places: int) -> ClientState:
        """Zeros with the shapes of the state of clients at `places` places on each device."""
        count = places * self.mesh.devices.size
        return jax.tree.map(
            lambda a: zeros_on(self.mesh, (count, *a.shape), a.dtype),
            self.method.initial_client_state(self._params),
        )

    def _specs(self, rows: DeviceRows) -> tuple[Any, ...]:
        return tuple(rows_spec(a, self.method.protocol.ownership) for a in rows)


def known(method: Method, layout: Layout, mesh: Mesh) -> tuple[Any, ...]:
    """The values on which rounds' programs depend, beside the shapes of their arguments."""
    protocol, solver = method.protocol, method.solver
    # of hyperparameters only the names matter, and settings are those of the solver, whose rates
    # and numbers of steps are arguments
    functions = tuple(each for each in method.algorithm.functions if not isinstance(each, dict))
    return (
        *(functions, tuple(method.points[0]), protocol.model, solver.optimizer, solver.batch_size),
        *(solver.clip, solver.weight_decay, solver.gamma is None),
        *(protocol.federation.augment, local_gradient_of(method)),
        tuple(part.program_key for part in method.parts),
        *(protocol.evaluation.gradients, layout._replace(idle=0.0), mesh),
    )


def evaluated(algorithm: Algorithm, state: State) -> Params:
    """The algorithm's evaluated model at all sweep points, from the server's state at all."""
    return jax.vmap(algorithm.server.evaluated or algorithm.server.params)(state)
