"""Running methods: rounds, evaluations and their history, for every sweep point and seed."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm, State
from fedprox.algorithms.check import check_algorithm
from fedprox.algorithms.reporting import Evaluated
from fedprox.errors import InputError, require, shown
from fedprox.federation import Federation
from fedprox.model import Model, Params, check_model
from fedprox.simulation.checkpoint import Checkpoints, Comparison, End, Snapshot, arrays_of
from fedprox.simulation.clients import ClientState, open_store
from fedprox.simulation.described import describe_comparison
from fedprox.simulation.faults import Faults
from fedprox.simulation.hardware import use_default_compilation_cache
from fedprox.simulation.history import Progress, Record, Run
from fedprox.simulation.lanes import lane_mesh, replicate, zeros_on
from fedprox.simulation.points import (
    initial_kept,
    initial_state,
    label,
    sweep_points,
)
from fedprox.simulation.programs import (
    Capacity,
    Layout,
    Programs,
    compile_programs,
    evaluated,
    lay_out,
    sample_rounds,
)
from fedprox.simulation.progress import showing
from fedprox.simulation.protocol import Protocol
from fedprox.simulation.rounds import (
    PLANS_AHEAD,
    Planned,
    Planner,
    Ready,
    Standing,
    chunks,
    run_rounds,
)
from fedprox.simulation.rows import (
    Data,
    Held,
    check_measured,
    resident,
    training_rows,
)
from fedprox.simulation.sampling import Cohort
from fedprox.simulation.selection import Selection
from fedprox.simulation.settle import best_loss
from fedprox.simulation.systems import Systems
from fedprox.simulation.target import StopAtTarget, Target
from fedprox.simulation.warn import warn_of
from fedprox.solver import Solver, name_of
from fedprox.user_code import describe


def simulate(
    federation: Federation,
    model: Model,
    methods: Algorithm | Sequence[Algorithm],
    *,
    solver: Solver,
    cohort: Cohort,
    systems: Systems = Systems(),  # noqa: B008 (frozen)
    faults: Faults | None = None,
    rounds: int,
    evaluate_every: int = 1,
    evaluate_rows: int | None = None,
    evaluate_clients: int | None = None,
    evaluate_model: Evaluated = "server",
    measure_gradients: bool = True,
    client_state: ClientState = "auto",
    seed: int | Sequence[int] = 0,
    target: Target | None = None,
    stop_at_target: StopAtTarget = "never",
    selection: Selection = Selection(),  # noqa: B008 (frozen)
    stop: Callable[[Record], bool] | None = None,
    initial: Params | None = None,
    devices: int | None = None,
    checkpoints: Checkpoints | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    progress: bool = True,
) -> list[Run]:
    """Train a method on a federation, or several on the same clients, stragglers and mini-batches.

    Compiled programs are kept on disk, so that the same call compiles nothing again, in this
    process or another one. JAX's own settings are left as they are:
    `jax_enable_compilation_cache = False` turns this off, and `jax_compilation_cache_dir` names
    another folder.

    Args:
        federation: The clients and their data.
        model: The model to train.
        methods: The algorithm, such as `fedprox(mu=1.0)`, or several. A method's numbers and the
            solver's learning rate may each be several: every combination is a point, and all
            points run as one batched axis of the same program over the same plan.
        solver: The local solver.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about updates that are not finite, or far larger than the others'.
            None for nothing: they count, and a run that they ruin is shown as diverged.
        rounds: Rounds T.
        evaluate_every: Rounds between evaluations.
        evaluate_rows: Training rows, test rows and validation rows of each client that evaluations
            read at most: a random choice, the same for all methods, seeds and rounds; in losses and
            accuracies a client still counts by all it has. All where left out.
        evaluate_clients: Clients that evaluations read at most, drawn uniformly without
            replacement: the same for all methods, seeds and rounds. Records then are estimates of
            f(w) and of accuracy, with their standard errors; gradient variance and B(w) are those
            of these clients. All where left out, or where there are no more.
        evaluate_model: Which model they measure: "server", the one sent out; "cohort", the mean of
            the last round's clients; or "clients", the mean of every client's last model.
        measure_gradients: Whether evaluations measure gradient variance, B(w) and gamma. Without,
            they take a third of the time and no client's model is kept after its round.
        client_state: Where that lies which clients keep from round to round: "device", "host", a
            file on "disk", or the first of them where it fits. Results are the same.
        seed: Seed, or several: each a run of its own through the same compiled program.
        target: What `stop_at_target` waits for, such as a test accuracy to reach or a training loss
            to come down to; see `Target`.
        stop_at_target: Whether a run ends at the first evaluation where "all", or "any", of its
            points have reached the target; points that have diverged are not waited for. Until
            there it is the same run, bit for bit.
        selection: Whether a run keeps its last or its best model, and when it ends without
            progress.
        stop: Called with each record but those of the last round; a run ends where it returns True,
            and keeps what it has found. Sweep points run together, until it has returned True of
            all of them. Of several processes it must say the same in each.
        initial: The parameters that every method and seed begins with, a pytree like that of
            `model.init`, such as `load_model` gives; those of `model.init` where left out.
        devices: How many of the devices that JAX sees share a round's clients; all where left out.
            The result differs in the last bits, by the order of sums.
        checkpoints: Where and how often checkpoints are made; none where left out. A run that goes
            on from one is the same as one that was never interrupted, bit for bit; and so is a
            finished run that goes on with more rounds, see `Checkpoints.ends`.
        on_record: Called with each record as soon as it is known, and first with those of a
            checkpoint.
        on_progress: Called with each phase and as rounds end.
        progress: Whether progress is shown on stderr: as bars in a terminal and in a notebook, else
            by a line after ten seconds and another one every minute.

    Returns:
        One run for each method, seed and point, methods outermost and points innermost.

    Raises:
        InputError: A number out of range, a cohort larger than the federation, a stop without a
            target, a target on a measure that records do not have, training rows that stay with
            the host and are too many to be evaluated on unasked, a method that is not as
            `Algorithm` says or whose functions give arrays of wrong shapes, a model with fewer
            outputs than classes, initial parameters that are not the model's or not finite, or a
            faulty update where `faults.policy` is "fail".

    Warns:
        UserWarning: `evaluate_every` is above `rounds`; the training labels are all of one class;
            or test labels are of a class that no client trains on. The last is not looked for
            among labels in files that evaluations do not read.
    """
    use_default_compilation_cache()
    methods = _several(methods)
    require(
        checkpoints is None or isinstance(checkpoints, Checkpoints),
        f"checkpoints = {shown(checkpoints)}; it must be a fedprox.Checkpoints or None",
    )
    require(isinstance(progress, bool), f"progress = {shown(progress)}; it must be True or False")
    protocol = Protocol(
        federation=federation,
        model=model,
        solver=solver,
        cohort=cohort,
        systems=systems,
        faults=faults,
        rounds=rounds,
        evaluate_every=evaluate_every,
        evaluate_rows=evaluate_rows,
        evaluate_clients=evaluate_clients,
        evaluate_model=evaluate_model,
        measure_gradients=measure_gradients,
        client_state=client_state,
        seeds=_seeds(seed),
        target=target,
        stop_at_target=stop_at_target,
        selection=selection,
        stop=stop,
        initial=initial,
    )
    params = model.shapes
    check_model(model, federation)
    for method in methods:
        check_algorithm(method, params)
    methods = [protocol.reported(method) for method in methods]
    for method in methods:
        protocol.check(method, method.solver(solver))
    points = [
        (method, point)
        for method in methods
        for point in sweep_points(method, method.solver(solver))
    ]
    labels = [label(method, method.solver(solver), point) for method, point in points]
    for name, count in Counter(labels).items():
        require(
            count == 1,
            f"methods: {name!r} is given {count} times; once is enough, and numbers must differ in "
            "their first six digits, schedules in their names or first rates",
        )
    last = begin = Snapshot(())
    if checkpoints:
        known = {
            "parameters": describe(params),
            "points": [list(point.values()) for _, point in points],  # labels have six digits
        }
        for method in methods:
            known |= _scheduled(method, method.solver(solver))
        last = begin = checkpoints.begin(
            Comparison(
                tuple(labels), protocol.seeds, protocol.rounds, protocol.settings | known, model
            )
        )
    mesh = lane_mesh(devices)
    if checkpoints:
        legs = [method for method in methods for _ in protocol.seeds]
        begin = _with_ended(checkpoints, begin, legs, protocol, params, mesh)
    if evaluate_clients is None:
        check_measured(mesh, federation, protocol.measured)
    on_record = on_record or _ignore
    if checkpoints:
        on_record = checkpoints.before_first(on_record, last)
    if jax.process_index() == 0:
        warn_of(protocol, stacklevel=2)
    with showing(progress, on_progress) as report:
        session = _Session(
            protocol,
            mesh,
            resident(mesh, federation, protocol.measured, protocol.homes, protocol.measured_homes),
            len(labels) * len(protocol.seeds),
            checkpoints,
            on_record,
            report,
        )
        for record in begin.records:
            session.on_record(record)
        runs = list(begin.finished)
        for number, method in enumerate(methods):
            left = protocol.seeds[max(0, begin.legs - number * len(protocol.seeds)) :]
            if left:
                begin = _run_method(session, method, left, runs, begin)
    experiment = describe_comparison(protocol, methods)
    for run in runs:
        run.experiment = experiment
    return runs


def _with_ended(
    checkpoints: Checkpoints,
    begin: Snapshot,
    legs: Sequence[Algorithm],
    protocol: Protocol,
    params: Params,
    mesh: Mesh,
) -> Snapshot:
    """Where a comparison begins, given a checkpoint and the ends of the legs after it.

    Args:
        checkpoints: The checkpoints.
        begin: The last one.
        legs: The method of each leg.
        protocol: What compared methods share.
        params: Shapes of the parameters.
        mesh: The devices.
    """
    for algorithm in legs[begin.legs :]:
        end = checkpoints.end(begin.legs)
        if end is None or end.rounds < protocol.rounds:
            return _further(begin, end, protocol)
        state = end.snapshot.state(jax.tree.structure(jax.eval_shape(algorithm.init, params)))
        best = end.snapshot.best(jax.tree.structure(params))
        _give_models(protocol, end.snapshot.under_way, algorithm, replicate(mesh, state), best)
        begin = Snapshot((*begin.finished, *end.snapshot.under_way))
    return begin


def _further(begin: Snapshot, end: End | None, protocol: Protocol) -> Snapshot:
    """The same, with the next leg as far as its end says, if there is one and it is further.

    A shorter comparison has evaluated its last model in any case. Where this one does not, that
    record goes.
    """
    if end is None or end.snapshot.round <= begin.round:
        return begin
    for run in end.snapshot.under_way if end.rounds < protocol.rounds else ():
        if run.final.round % protocol.evaluate_every:
            run.history.pop()
            run.client_steps = run.final.total_steps
    return end.snapshot._replace(finished=begin.finished)


def _give_models(
    protocol: Protocol, runs: Sequence[Run], algorithm: Algorithm, state: State, best: Params | None
) -> None:
    """Set the parameters of a leg's runs.

    Args:
        protocol: What compared methods share.
        runs: The points' runs.
        algorithm: The method.
        state: The server's state at the end.
        best: See `Standing.best`.
    """
    last, best = (jax.tree.map(np.asarray, tree) for tree in (evaluated(algorithm, state), best))
    for i, run in enumerate(runs):
        run.model_round = run.final.round if best is None else protocol.best(run.history).round
        chosen = last if run.model_round == run.final.round else best
        run.params = jax.tree.map(lambda a, i=i: a[i], chosen)


def _several(methods: Algorithm | Sequence[Algorithm]) -> list[Algorithm]:
    """The methods of a comparison, of which there may be one."""
    needed = "it must be an algorithm, such as fedprox.fedavg(), or a list of them"
    if isinstance(methods, Algorithm):
        return [methods]
    require(
        isinstance(methods, Sequence) and not isinstance(methods, str | bytes),
        f"methods = {shown(methods)}; {needed}",
    )
    require(len(methods) > 0, f"methods: none given; {needed}")
    for i, method in enumerate(methods):
        require(isinstance(method, Algorithm), f"methods[{i}] = {shown(method)}; {needed}")
    return list(methods)


def _seeds(seed: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds of a comparison, of which there may be one."""
    given: Any = seed.tolist() if isinstance(seed, np.ndarray) else seed
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return tuple(given) if several else (given,)


COMPARED_ROUNDS = 0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000
"""Rounds by whose learning rates checkpoints tell schedules apart, also of an extended run."""


def _scheduled(method: Algorithm, solver: Solver) -> dict[str, Any]:
    """A method's schedule of learning rates as checkpoints know it; nothing without one."""
    if solver.schedule is None:
        return {}
    found: list[float | None] = []
    for t in COMPARED_ROUNDS:
        try:
            found.append(solver.factor(t))
        except InputError:  # beyond the run it may have none
            found.append(None)
    name = label(method, solver, sweep_points(method, solver)[0])
    return {f"{name}: learning rates": [name_of(solver.schedule), *found]}


def _ignore(_: Any) -> None:
    pass


class _Session(NamedTuple):
    """What all methods of a comparison are run with."""

    protocol: Protocol
    mesh: Mesh
    data: Data
    runs: int
    checkpoints: Checkpoints | None
    on_record: Callable[[Record], None]
    on_progress: Callable[[Progress], None]


def _run_method(
    session: _Session,
    algorithm: Algorithm,
    seeds: Sequence[int],
    runs: list[Run],
    begin: Snapshot,
) -> Snapshot:
    """Some seeds and all sweep points of one method, through programs compiled once.

    Args:
        session: What all methods are run with.
        algorithm: The method.
        seeds: Its seeds that are left to do.
        runs: Finished runs of the comparison, to which these are added.
        begin: Where the first of the seeds stands.

    Returns:
        Where the leg after these stands.
    """
    protocol = session.protocol
    solver = algorithm.solver(protocol.solver)
    points = sweep_points(algorithm, solver)
    name = label(algorithm, solver, points[0])
    if len(points) > 1:
        name = f"{algorithm.name} ({len(points)} points together)"
    now = Progress(name, seeds[0], begin.round, protocol.rounds, phase="planning")
    session.on_progress(now)
    began = time.perf_counter()
    params = protocol.first_params(seeds[0])
    compile_seconds = time.perf_counter() - began
    train = protocol.federation.train
    rows = training_rows(session.mesh, train, session.data, protocol.homes, ahead=PLANS_AHEAD)
    layout = lay_out(
        protocol.measured,
        algorithm,
        solver,
        sample_rounds(protocol, algorithm, solver),
        rows,
        largest=len(train) if algorithm.pooled else int(train.sizes.max()),
        devices=session.mesh.devices.size,
        homes=protocol.homes.processes,
        parameters=sum(a.size for a in jax.tree.leaves(params)),
        points=len(points),
        # not fewer where the run is shorter: it may be extended
        together=1 if algorithm.adapt else protocol.evaluate_every,
        faults=protocol.screening(algorithm),
        gradients=protocol.measure_gradients,
        by_client=protocol.by_client,
    )
    pause = (session.checkpoints and session.checkpoints.every) or protocol.rounds
    calls = partial(
        chunks,
        rounds=protocol.rounds,
        evaluate_every=protocol.evaluate_every,
        most=layout.rounds.rounds,
        pause=pause,
    )
    with _cancelling(ThreadPoolExecutor(1)) as pool:

        def plan(seed: int, first: int, capacity: Capacity | None) -> Planned:
            shapes = layout if capacity is None else layout.holding(capacity)
            planner = Planner(protocol, algorithm, solver, rows, seed, shapes)
            return planner.ahead(pool, calls(first))

        # the first seed's planning goes on while the programs are being compiled
        planned = plan(seeds[0], begin.round, begin.capacity)
        session.on_progress(now._replace(phase="compiling"))
        programs = _Compiler(session, algorithm, solver, points, params, rows.like)
        first = programs(layout)
        ready = Ready(
            algorithm,
            solver,
            session.mesh,
            first.evaluate,
            _copying(algorithm) if protocol.selection.keep == "best" else _ignore,
            programs,
            programs.numbers,
        )
        compile_seconds += first.compile_seconds
        for seed in seeds:
            if seed != seeds[0]:
                params = protocol.first_params(seed)
                planned = plan(seed, begin.round, begin.capacity)
            batch = begin.under_way or [
                Run(
                    algorithm.name,
                    numbers={k: v for k, v in point.items() if k != "learning_rate"},
                    learning_rate=point["learning_rate"] * solver.factor(0),
                    seed=seed,
                    label=label(algorithm, solver, point),
                    sweep_points=len(points),
                    lane_idle=layout.idle,
                    memory=first.memory,
                    evaluated="server" if algorithm.pooled else protocol.evaluate_model,
                )
                for point in points
            ]
            for run in batch:
                run.compile_seconds += compile_seconds
            leg = _Leg(name, seed, batch)
            _run_leg(session, ready, leg, params, planned, runs, begin)
            runs += batch
            begin = Snapshot(tuple(runs))
            if session.checkpoints and len(runs) < session.runs:
                session.checkpoints.offer(partial(Snapshot, begin.finished), str(leg))
                begin = _further(begin, session.checkpoints.end(begin.legs), protocol)
                for record in begin._replace(finished=()).records:
                    session.on_record(record)
    return begin


def _copying(algorithm: Algorithm) -> Callable[[State], Params]:
    """The server's state -> a copy of the model that is evaluated.

    A call of rounds takes the memory of the state that it is given.
    """

    @jax.jit
    def copy(state: State) -> Params:
        return jax.tree.map(jnp.copy, evaluated(algorithm, state))

    return copy


class _Compiler:
    """Compiles a method's programs for each layout, once.

    Args:
        session: What all methods are run with.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        points: The numbers of each point of the sweep.
        params: Initial parameters of one point.
        like: The room for gathered rows -> training rows, or their shapes.
    """

    def __init__(
        self,
        session: _Session,
        algorithm: Algorithm,
        solver: Solver,
        points: Sequence[Mapping[str, float]],
        params: Params,
        like: Callable[[int], Held],
    ) -> None:
        self.session, self.algorithm, self.solver = session, algorithm, solver
        self.numbers = replicate(
            session.mesh, {key: np.array([p[key] for p in points], np.float32) for key in points[0]}
        )
        self.params, self.points, self.like = params, len(points), like
        self._known: dict[Layout, Programs] = {}

    def __call__(self, layout: Layout) -> Programs:
        """The programs of some shapes."""
        if layout in self._known:
            return self._known[layout]
        session, algorithm = self.session, self.algorithm
        protocol, mesh = session.protocol, session.mesh
        places = layout.rounds.places * mesh.devices.size
        programs = compile_programs(
            protocol.model,
            algorithm,
            self.solver,
            protocol.sampled,
            protocol.measured,
            session.data,
            self.like(layout.rows),
            initial_state(algorithm, self.params, self.points, mesh),
            self.numbers,
            jax.tree.map(
                lambda a: zeros_on(mesh, (places, *a.shape), a.dtype),
                initial_kept(algorithm, self.params, self.points),
            ),
            layout,
            protocol.measured_homes,
            mesh,
            gradients=protocol.measure_gradients,
            faults=protocol.screening(algorithm),
            by_client=protocol.by_client,
            before=next(iter(self._known.values()), None),
        )
        self._known[layout] = programs
        return programs


class _Leg(NamedTuple):
    """All points of a method with one seed.

    Attributes:
        name: What the method is called in progress.
        seed: The seed.
        runs: The points' runs.
    """

    name: str
    seed: int
    runs: Sequence[Run]

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


def _run_leg(
    session: _Session,
    ready: Ready,
    leg: _Leg,
    params: Params,
    planned: Planned,
    finished: Sequence[Run],
    begin: Snapshot,
) -> None:
    """All rounds of a leg that are left.

    Args:
        session: What all methods are run with.
        ready: The method.
        leg: The leg, whose runs are filled.
        params: w^0.
        planned: The rounds that are left.
        finished: Finished runs of the comparison.
        begin: Where the leg stands.
    """
    batch, rounds = leg.runs, session.protocol.rounds
    began, spent = time.perf_counter(), batch[0].run_seconds
    algorithm, checkpoints = ready.algorithm, session.checkpoints
    state = initial_state(algorithm, params, len(batch), session.mesh)
    standing = Standing(0, state, ready.numbers, best=ready.model(state))
    store = None
    if algorithm.kept is not None:
        protocol = session.protocol
        kept = initial_kept(algorithm, params, len(batch))
        most = rounds * protocol.cohort.sizes(len(protocol.federation))[-1]
        clients = protocol.homes.clients
        store = open_store(protocol.client_state, kept, clients, session.mesh, most)

    def count_seconds() -> None:
        for run in batch:
            run.run_seconds = spent + time.perf_counter() - began

    def snapshot(stand: Callable[[], Standing]) -> Snapshot:
        now = stand()
        count_seconds()
        kept = store.held() if store else None
        return Snapshot(finished, batch, now.round, arrays_of(now, len(batch)), kept)

    def after_call(done: int, stand: Callable[[], Standing]) -> None:
        if checkpoints is not None:
            checkpoints.offer(lambda: snapshot(stand), str(leg), done)

    def report(done: int, loss: float | None) -> None:
        session.on_progress(Progress(leg.name, leg.seed, done, rounds, loss))

    report(begin.round, best_loss(batch) if begin.round else None)
    try:
        if begin.round:
            standing = begin.standing(standing, session.mesh)
            if store is not None:
                store.put_back(begin.kept or ())
        standing = run_rounds(
            session.protocol,
            ready,
            planned if checkpoints is None else _noting(planned, checkpoints),
            standing,
            store,
            batch,
            session.on_record,
            report,
            after_call,
        )
        if checkpoints is not None:
            leg_number = Snapshot(finished).legs
            checkpoints.keep_end(leg_number, lambda: snapshot(lambda: standing))
    finally:
        if store is not None:
            store.close()
    done = batch[0].final.round
    session.on_progress(Progress(leg.name, leg.seed, done, done, best_loss(batch)))
    _give_models(session.protocol, batch, algorithm, standing.state, standing.best)
    count_seconds()


def _noting(planned: Planned, checkpoints: Checkpoints) -> Planned:
    """The planned calls; checkpoints are told of each before it begins."""
    for call in planned:
        checkpoints.begin_call()
        yield call


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A pool whose waiting tasks are given up on leaving, by an early stop or an error."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
