"""Compiling the programs of one method for the shapes of its layout."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedprox.algorithms.base import Algorithm, ClientState, State
from fedprox.devices.mesh import REPLICATED, accept_host_arrays, zeros_on
from fedprox.devices.programs import Request, compiled_once
from fedprox.engine.compiled.call_inputs import exchanges, held_state, read_cohort
from fedprox.engine.compiled.evaluation import (
    Measures,
    evaluation_program,
    measures_of_sums,
    plan_evaluation,
)
from fedprox.engine.compiled.inexactness import inexactness_program
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.compiled.round import (
    After,
    Inputs,
    Server,
    local_gradient_of,
    rounds_program,
)
from fedprox.engine.planning.batch_plan import BatchPlan, plan_rounds
from fedprox.engine.planning.jobs import no_jobs
from fedprox.engine.planning.round_work import RoundWork
from fedprox.engine.storage.training_data import Data, DeviceRows, rows_spec
from fedprox.jax_internals import peak_bytes
from fedprox.model import Params
from fedprox.protocol.method import Method


class Programs(NamedTuple):
    """The compiled programs of one method for one layout.

    Attributes:
        rounds: (server, inputs) -> After, see `rounds_program`.
        evaluate: (state) -> Measures.
        inexactness: (state, hparams, local models, rows, cohort) -> gamma, see
            `inexactness_program`; None if gradients are not measured.
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
        method: The method.
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
        data: Data,
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

    def _rounds(self, layout: Layout, state: State) -> Request:
        rows = self.like(layout.room.rows)
        specs = self._specs(rows)
        server = Server(state, self._client_state(layout.held))
        x, y = rows
        plan, exchange = self._empty_plan(layout), exchanges([], layout)
        held = None
        if self.method.algorithm.client.state is not None:
            held = held_state(plan, [RoundWork()], layout).at
        inputs = Inputs(self.hparams, x, y, plan, exchange, np.int32(0), held)
        return Request(
            lambda: rounds_program(self.method, layout, self.mesh, specs),
            (self.base, server, inputs),
            ("rounds", *known(self.method, layout, self.mesh)),
        )

    def _evaluation(self, layout: Layout, state: State) -> tuple[Request, Any]:
        """The evaluation program, and its inputs except the models."""
        model, params = self.method.protocol.model, evaluated(self.method.algorithm, state)
        shape, inputs, specs = plan_evaluation(self.method, self.data, layout, self.mesh)
        measures = partial(measures_of_sums, model)
        request = Request(
            lambda: evaluation_program(model, self.mesh, shape, specs, measures),
            (self.base, params, inputs),
            ("evaluation", model, self.mesh, shape),
        )
        return request, inputs

    def _inexactness(self, layout: Layout, state: State) -> Request:
        replicated, slots = NamedSharding(self.mesh, REPLICATED), layout.room.slots

        def of_slots(like: Any) -> jax.ShapeDtypeStruct:
            shape = (slots, len(self.method.points), *like.shape)
            return jax.ShapeDtypeStruct(shape, like.dtype, sharding=replicated)

        local, rows = jax.tree.map(of_slots, self._params), self.like(layout.room.rows)
        client_state = self._client_state(layout.room.places)
        cohort = read_cohort(
            no_jobs(), self._empty_plan(layout), 0, client_state, layout, self.mesh
        )
        return Request(
            lambda: inexactness_program(self.method, layout, self.mesh, self._specs(rows)),
            (self.base, state, self.hparams, local, rows, cohort),
            ("inexactness", *known(self.method, layout, self.mesh)),
        )

    def _client_state(self, places: int) -> ClientState:
        """Zeros with the shapes of the state of clients at `places` places on each device."""
        count = places * self.mesh.devices.size
        return jax.tree.map(
            lambda a: zeros_on(self.mesh, (count, *a.shape), a.dtype),
            self.method.initial_client_state(self._params),
        )

    def _empty_plan(self, layout: Layout) -> BatchPlan:
        return plan_rounds(
            *(layout.shape, layout.room, self.method.solver, 0, []),
            noisy=self.method.protocol.noisy,
            keyed=self.method.keyed,
            columns=self.method.no_columns,
        )

    def _specs(self, rows: DeviceRows) -> tuple[Any, ...]:
        return tuple(rows_spec(a, self.method.protocol.ownership) for a in rows)


def known(method: Method, layout: Layout, mesh: Mesh) -> tuple[Any, ...]:
    """What the programs of rounds depend on, beside the shapes of their arguments."""
    protocol, solver = method.protocol, method.solver
    # of hyperparameters only the names matter, and settings are those of the solver, whose rates
    # and numbers of steps are arguments
    algorithm = method.algorithm._replace(hparams={}, settings={})
    functions = tuple(each for each in algorithm if not isinstance(each, dict))
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
