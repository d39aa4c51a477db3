"""A method on a node: its parts of rounds and evaluations, by the simulation's programs.

With a deadline, the time of a round is shared out between its requests, passes and clients as the
planned work is, in rows whose gradients are computed. The next pass has the time that a pass
leaves, so a share that is too large costs little.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, ClientState, State
from fedprox.deployment.combine import NodeMeasures, evaluation_shapes
from fedprox.deployment.own_noise import check_noised, clipped
from fedprox.deployment.payload import RoundPart, SentState, at_points, coded_of, sent_state_of
from fedprox.deployment.wire import NodeWork, Setup
from fedprox.devices.mesh import accept_host_arrays, shard
from fedprox.devices.programs import ProgramSpec, compiled, debugs
from fedprox.engine.compiled.compile import known, plan_call
from fedprox.engine.compiled.evaluation import (
    EvaluationSums,
    evaluation_program,
    plan_evaluation,
)
from fedprox.engine.compiled.lanes import Clock, Until
from fedprox.engine.compiled.layout import Layout, bucket, lay_out, needed
from fedprox.engine.compiled.node_part import (
    PartialRound,
    gradients_program,
    part_program,
)
from fedprox.engine.compiled.round import Server
from fedprox.engine.planning.batch_plan import Capacity, PoissonTicks, job_ticks
from fedprox.engine.planning.jobs import Jobs, Segments
from fedprox.engine.planning.reads import Exchange, plan_exchanges
from fedprox.engine.planning.round_work import RoundWork
from fedprox.engine.storage.training_data import DeviceData, TrainingRows, rows_spec
from fedprox.errors import InputError, plural, require
from fedprox.experiment.resolved import BASED, based, method_of, model_of, solver_of
from fedprox.experiment.schema import checked, schema_of
from fedprox.experiment.sections import SolverSection
from fedprox.federation import Federation
from fedprox.model import Model, Params, digest
from fedprox.parts.compatible import Case, check_case
from fedprox.parts.compression import Compression
from fedprox.parts.faults import Faults
from fedprox.parts.privacy.accounting import Mechanism
from fedprox.parts.robust import Aggregation
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Evaluation, Protocol
from fedprox.report.saved import load_model
from fedprox.solver import Solver

READING = 0.25
"""Smallest share of reading gradients before the work. By its rows alone it could be too short even
to call a program, and without these gradients nothing counts."""


def planned_rows(algorithm: Algorithm, solver: Solver, jobs: Jobs) -> NDArray[np.int64]:
    """The rows that jobs compute gradients of in each pass of `Until`, shape (3, jobs)."""
    reads = algorithm.first.reads
    personal = algorithm.personal is not None and algorithm.personal.subproblem is not None
    local = job_ticks(solver, jobs, 1)  # ticks of one row
    if solver.searches_line:
        local = jobs.steps * jobs.size
    return np.stack([reads * jobs.size, personal * local, local])


def passes_until(seconds: float, rows: NDArray[np.int64]) -> Until:
    """When the passes of a request with so many seconds end.

    >>> tuple(map(float, passes_until(8.0, np.array([[10], [40], [20]]))[:3]))
    (2.0, 6.0, 8.0)
    """
    reading, personal, local = rows.sum(axis=1).tolist()
    first = _share_of_reading(reading, personal + local)
    second = first + (1 - first) * personal / max(personal + local, 1)
    return Until(*(np.float32(seconds * part) for part in (first, second, 1.0)))


def due(ends: Segments, slots: int) -> NDArray[np.float32]:
    """The part of all ticks at which the job in each slot of a plan's one round ends.

    A node that is too slow thus shortens all of its clients' work alike.
    """
    parts = np.ones(slots, np.float32)
    at = np.nonzero(ends.end >= 0)
    stops = ends.stop[at[:3]]
    parts[ends.end[at]] = stops / max(stops.max(initial=0), 1)
    return parts


def shares_of_first(
    first: Jobs, rows: NDArray[np.int64], jobs: Jobs, owner: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Each node's share of its round for the gradients of a first cohort."""
    nodes = int(owner.max()) + 1
    reading = np.bincount(owner[first.client], first.size, nodes)
    working = np.bincount(owner[jobs.client], rows.sum(axis=0), nodes)
    return np.array(list(map(_share_of_reading, reading.tolist(), working.tolist())))


def _share_of_reading(reading: float, working: float) -> float:
    """The share of reading so many rows before working on others."""
    return max(READING, reading / (reading + working)) if reading else 0.0


class NodeMethod:
    """A method on a node.

    Shapes are a function of the request alone, rounded up to powers of two. So a node that was
    restarted computes the same bits, and few programs are compiled.
    """

    def __init__(
        self,
        setup: Setup,
        federation: Federation,
        model: Model,
        mesh: Mesh,
        data: DeviceData,
        measured_rows: int | None,
        own_clip: float | None = None,
    ) -> None:
        self.setup, self.mesh, self.federation = setup, mesh, federation
        self.given, self.method, self.measuring = methods_on_node(
            setup, federation, model, measured_rows, own_clip
        )
        self.algorithm, self.solver = self.method.algorithm, self.method.solver
        self.model = self.method.protocol.model
        self.index = {name: k for k, name in enumerate(federation.names)}
        ownership = self.method.protocol.ownership
        self.rows = TrainingRows(mesh, federation.train, data, ownership, ahead=1)
        self.data = data
        layout = lay_out(self.method, self.rows, mesh.devices.size, self.model.shapes)
        self.reading, self.base = layout, layout.together(1)
        if measured_rows is not None:
            self.reading = lay_out(self.measuring, self.rows, mesh.devices.size, self.model.shapes)
        self.points = len(self.method.points)
        kept, shapes = self.algorithm.client.state, self.model.shapes
        self.client_state = (
            None if kept is None else at_points(jax.eval_shape(kept, shapes), self.points)
        )
        self.coded = coded_of(self.method.protocol, self.algorithm, self.points)
        self.began = 0.0
        self._programs: dict[tuple[str, Layout], Any] = {}
        self._evaluation: tuple[Any, Any] | None = None
        require(
            setup.deadline is None or self.points == 1,
            f"systems.deadline: the method has {self.points} sweep points, and by a real clock "
            "they would share the time; give one value for each hyperparameter",
        )

    @cached_property
    def shapes(self) -> NodeMeasures:
        """The shapes of the node's answer to an evaluation."""
        return evaluation_shapes(self.model, self.setup.data, self.points)

    @cached_property
    def sent(self) -> SentState:
        """The part of the method's state that the node is sent."""
        return sent_state_of(self.measuring.algorithm, self.model.shapes)

    def jobs(self, work: NodeWork, participation: float) -> Jobs:
        """The jobs of a request."""
        for name, rows in zip(work.names, work.rows, strict=True):
            require(name in self.index, f"client {name!r} is not on this node")
            k = self.index[name]
            have = int(self.federation.train.sizes[k])
            require(
                have == rows,
                f"client {name!r} has {plural(have, 'training row')}, and had {rows} when the "
                "run began",
            )
        own = np.array([self.index[name] for name in work.names], np.int64)
        offsets = self.federation.train.offsets
        first, size = offsets[own], offsets[own + 1] - offsets[own]
        for name, steps, most in zip(
            work.names, work.steps, self.solver.steps_for(size).tolist(), strict=True
        ):
            require(0 <= steps <= most, f"client {name!r}: {steps} steps; the solver takes {most}")
        count = max(len(own), 1)
        client = np.array(work.client, np.int64)
        return Jobs(
            client,
            first_row=first,
            size=size,
            steps=np.array(work.steps, np.int64),
            weight=np.array(work.weight, np.float64),
            gamma=np.array(work.gamma, np.float64),
            participation=np.full(len(own), participation / count),
            relative_size=np.array(work.relative_size, np.float64),
            owner=np.zeros(len(own), np.int64),
            device_row=first,
            columns=self.method.protocol.columns(client),
        )

    def releases(self, steps: Mapping[str, int]) -> dict[str, tuple[Mechanism, int]]:
        """The releases of clients' private local steps; empty if steps hide no rows."""
        hiding = self.setup.private_steps
        if hiding is None:
            return {}
        setting, released = hiding.setting, {}
        for name, count in steps.items():
            rows = int(self.federation.train.sizes[self.index[name]])
            what = setting.of_steps(rows, self.solver.batch_of(rows), hiding.noise_multiplier)
            released[name] = what, count
        return released

    def train(
        self,
        jobs: Jobs,
        seed: int,
        round_: int,
        state: State,
        hparams: Mapping[str, NDArray[np.float32]],
        client_states: Sequence[ClientState],
        seconds: float | None = None,
    ) -> tuple[RoundPart, ClientState]:
        """Train clients for a round: their part of it, and their states, by job and sweep point.

        Private local steps have rows and noise of the system's entropy, other ones each time.
        """
        self._check_seconds(seconds)
        given: dict[str, NDArray[Any]] = dict(hparams)
        if self.method.protocol.hides_examples:
            seed, words = own_entropy(self.points)
            ticks = PoissonTicks(self.solver, self.base.shape.width, seed)
            jobs = jobs.with_columns(ticks=ticks.count(jobs, round_))
            given["noise_words"] = words
        work = RoundWork(len(jobs.client), jobs=jobs)
        layout = self._layout(work)
        call = plan_call(self.method, self.rows, layout, seed, round_, [work])
        inputs = call.inputs._replace(hparams=given)
        place = inputs.plan.place[0, : len(jobs.client)]
        stacked = None
        if self.client_state is not None:
            stacked = shard(self.mesh, _scattered(client_states, place, len(call.clients)))
        if seconds is not None:
            until = passes_until(seconds, planned_rows(self.algorithm, self.solver, jobs))
            until = until._replace(due=due(inputs.plan.ends, layout.room.slots))
            inputs = inputs._replace(until=_with_due(until, inputs.exchange))
        arguments = (self.model.base, Server(state, stacked), inputs)
        program = self._compiled(part_program, layout, arguments, (inputs.x, inputs.y))
        part: PartialRound = self._timed(program, *arguments)
        trained = self._round_part(part, jobs)
        return trained, jax.tree.map(lambda a: np.asarray(a)[place], part.client_state)

    def _round_part(self, part: PartialRound, jobs: Jobs) -> RoundPart:
        """The results of a program, without the rows for unused places."""
        count = len(jobs.client)
        shape = (count, self.points)
        steps = np.broadcast_to(jobs.steps[:, None], shape)
        if part.local.steps is not None:
            steps = np.asarray(part.local.steps, np.int64)[:count]
        faulty = np.zeros(shape, bool)
        if part.flagged is not None:
            faulty = np.asarray(part.flagged).T[:count]
        late = np.zeros(shape, bool)
        if self.setup.deadline is not None:
            fewest = jobs.steps[:, None] if self.algorithm.stragglers == "drop" else 1
            late = steps < fewest
        message = part.message if self.coded is None else self.coded.packed(part.message, count)
        message = jax.tree.map(np.asarray, message)
        return RoundPart(message, np.asarray(part.counted), steps, ~faulty & ~late, faulty)

    def gradients(self, jobs: Jobs, params: Params, seconds: float | None = None) -> RoundPart:
        """Compute grad F_k(w^t) of a first cohort's clients; the gradients are the messages."""
        self._check_seconds(seconds)
        work = RoundWork(len(jobs.client), exchange=jobs)
        layout = self._layout(work)
        (x, y), (placed,) = self.rows.of([work], layout.reading.width, layout.room.rows)
        exchange, until = plan_exchanges([placed], layout.reading, layout.room), None
        if seconds is not None:
            until = _with_due(Until(*(np.float32(seconds),) * 3), exchange)
        arguments = (self.model.base, params, x, y, exchange, until)
        program = self._compiled(gradients_program, layout, arguments, (x, y))
        part = jax.tree.map(np.asarray, self._timed(program, *arguments))
        message, counted, *flags = part
        counts, faulty = (each[: len(jobs.client)] for each in flags)
        return RoundPart(message, counted, np.zeros(counts.shape, np.int64), counts, faulty)

    def evaluate(self, params: Params) -> EvaluationSums:
        """Measure models on the rows of the node's clients, always the same."""
        with jax.default_matmul_precision("highest"):
            if self._evaluation is None:
                planned = plan_evaluation(self.measuring, self.data, self.reading, self.mesh)
                shape, inputs, specs = planned
                model = self.measuring.protocol.measured_model
                request = ProgramSpec(
                    lambda: evaluation_program(model, self.mesh, shape, specs),
                    (self.model.base, params, inputs),
                    ("sums", model, self.mesh, shape),
                )
                self._evaluation = accept_host_arrays(compiled(request)), inputs
            program, inputs = self._evaluation
            sums: EvaluationSums = jax.tree.map(
                np.asarray, program(self.model.base, params, inputs)
            )
        return sums

    def _check_seconds(self, seconds: float | None) -> None:
        """Raise `InputError` unless a request has so many seconds as the deadline allows."""
        deadline = self.setup.deadline
        if deadline is None:
            require(seconds is None, f"seconds = {seconds}; the method has no deadline")
        else:
            require(
                seconds is not None and 0 <= seconds <= deadline,
                f"seconds = {seconds}; they must be from 0 to the deadline, {deadline}",
            )

    def _layout(self, work: RoundWork) -> Layout:
        """The shapes for a round."""
        need = needed(self.base, self.solver, work)
        room = self.rows.needed([work], self.base.reading.width)
        buckets = (bucket(n) for n in need._replace(rows=room))
        return self.base._replace(room=Capacity(*buckets))

    def _compiled(
        self, program: Callable[..., Any], layout: Layout, arguments: Any, rows: Any
    ) -> Any:
        """A program for a layout, compiled on first use, so that no clock runs meanwhile.

        With a deadline a first tick of each pass is run too: what happens once in a program costs
        no client its time.
        """
        name = program.__name__, layout
        if name not in self._programs:
            specs = tuple(rows_spec(a, self.method.protocol.ownership) for a in rows)

            def make() -> Any:
                return program(self.method, layout, self.mesh, specs, self._clock)

            if self._clock is None:
                depends = (program.__name__, *known(self.method, layout, self.mesh))
                own = compiled(ProgramSpec(make, arguments, depends))
                self._programs[name] = accept_host_arrays(own)
            else:  # the program calls this object's clock
                own = make() if debugs() else make().trace(*arguments).lower().compile()
                self._programs[name] = accept_host_arrays(own)
                self._timed(self._programs[name], *_first_ticks(arguments))
        return self._programs[name]

    def _timed(self, program: Any, *arguments: Any) -> Any:
        """The results of a program whose clock begins now."""
        self.began = time.perf_counter()
        return jax.block_until_ready(program(*arguments))

    @property
    def _clock(self) -> Clock | None:
        """The clock of the programs; None without a deadline."""
        return None if self.setup.deadline is None else self._seconds

    def _seconds(self) -> float:
        """Seconds since the current round began."""
        return time.perf_counter() - self.began


def own_entropy(points: int) -> tuple[int, NDArray[np.uint32]]:
    """A seed for the streams of local steps, and the words of the noise at each sweep point."""
    words = np.frombuffer(os.urandom(8 * points), np.uint32)
    return secrets.randbits(63), words.reshape(points, 2)


def model_on_node(setup: Setup, like: Federation, base: str | None) -> Model:
    """The model of a run, over the node's base."""
    model = model_of(setup.model, like)
    if any(key in setup.model for key in BASED):
        if base is None:
            raise InputError("model: the run freezes values; the node's policy names no base")
        model = based(setup.model, model, load_model(base, model=model))
        here = digest(model.base)
        require(
            here == setup.base,
            f"policy.base: its frozen values have the digest {here}, the coordinator's "
            f"{setup.base}; both need the same file",
        )
    have = parameters_in_words(model.shapes)
    require(
        have == setup.parameters,
        f"model {setup.model.get('name')!r} has the parameters {have} here, and "
        f"{setup.parameters} at the coordinator; install the same version on both sides",
    )
    return model


def methods_on_node(
    setup: Setup,
    federation: Federation,
    model: Model,
    measured_rows: int | None,
    own_clip: float | None = None,
) -> tuple[Algorithm, Method, Method]:
    """A method as the library has it, that which trains on a node, and that evaluated there.

    With noise of its own a node clips what clients send to a norm.
    """
    section = checked(SolverSection, setup.solver, "solver")
    solver, _ = solver_of(section)
    algorithm, _ = method_of(setup.method, section, solver, "method")
    compression = privacy = None
    if setup.privacy is not None:
        privacy = setup.privacy.clipping
    elif setup.private_steps is not None:
        privacy = setup.private_steps.setting
    if setup.measures is not None:
        if privacy is None:
            raise InputError("measures: noise without privacy of clients or rows")
        privacy = replace(privacy, measures=setup.measures.setting)
    if setup.compression is not None:
        checked(schema_of(Compression), setup.compression, "compression")
        compression = Compression(**setup.compression)
    share = setup.clients_per_round * len(federation) / setup.clients
    protocol = Protocol(
        federation=federation,
        model=model,
        solver=solver,
        cohort=Cohort(min(len(federation), max(1, round(share)))),
        faults=Faults("drop", math.inf),
        rounds=setup.rounds,
        evaluation=Evaluation(model=setup.evaluated, gradients=setup.gradients),
        client_store="host",
        seeds=(0,),  # shapes depend on it, and a restarted node must have the same
        privacy=privacy,
        compression=compression,
        aggregation=Aggregation("product" if setup.products else "mean"),
    )
    fitted = protocol.fitted(algorithm)
    check_case(Case(protocol, fitted, algorithm.solver(solver), "deployment"))
    if own_clip is not None:
        check_noised(setup, Case(protocol, fitted, algorithm.solver(solver), "deployment"))
    evaluation = replace(protocol.evaluation, rows=measured_rows)  # which the node decides
    protocol = replace(protocol, evaluation=evaluation)
    of_all = {"clients": setup.clients, "per_round": setup.clients_per_round}
    trained, measured = (
        on_nodes(protocol.reported(algorithm, sent=sent, **of_all)) for sent in ("code", "message")
    )
    if own_clip is not None:
        trained = clipped(trained, own_clip)
    training = replace(protocol, evaluation=Evaluation(gradients=False))
    return algorithm, Method(training, trained), Method(protocol, measured)


def on_nodes(algorithm: Algorithm) -> Algorithm:
    """A method without what the coordinator does."""
    return algorithm._replace(adapt=None, first=algorithm.first._replace(exchange=None))


def parameters_in_words(shapes: Params) -> str:
    """The types and shapes of a model's parameters, to be compared.

    >>> parameters_in_words({"dense": {"bias": np.zeros(3), "weight": np.zeros((2, 3), "f4")}})
    "['dense']['bias'] float64[3], ['dense']['weight'] float32[2, 3]"
    """
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    return ", ".join(
        f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves
    )


def _scattered(states: Sequence[ClientState], place: NDArray[Any], places: int) -> ClientState:
    """The states of some clients, each at its place, leaves (places, points, ...)."""

    def leaf(*each: Any) -> NDArray[Any]:
        array = np.zeros((places, *np.shape(each[0])), np.asarray(each[0]).dtype)
        array[place] = np.stack(each)
        return array

    return jax.tree.map(leaf, *states)


def _with_due(until: Until, exchange: Exchange | None) -> Until:
    """When passes end, also for the jobs of reading gradients."""
    if exchange is None:
        return until
    return until._replace(reading_due=due(exchange.reading.ends, exchange.jobs.weight.shape[1]))


def _first_ticks(arguments: Any) -> Any:
    """The inputs of a program without all ticks but each pass's first."""

    def first(part: Any) -> Any:
        is_plan = isinstance(part, Segments)
        return part._replace(stop=np.minimum(part.stop, 1)) if is_plan else part

    return jax.tree.map(first, arguments, is_leaf=lambda part: isinstance(part, Segments))
