"""Training methods on a federation: the public entry point and the checks of its arguments."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.check import check_algorithm
from fedprox.errors import InputError, require, shown
from fedprox.federation import Federation
from fedprox.model import Model, Params, check_model
from fedprox.simulation.config.cohort import Cohort
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol, Storage
from fedprox.simulation.config.systems import Systems
from fedprox.simulation.config.warn import warn_of
from fedprox.simulation.devices.compilation_cache import use_default_compilation_cache
from fedprox.simulation.devices.mesh import lane_mesh
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.loop.described import describe_comparison
from fedprox.simulation.loop.method_run import Session, after_finished, run_method
from fedprox.simulation.loop.progress import Progress, showing
from fedprox.simulation.loop.snapshot import Fingerprint, Snapshot
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.results.selection import Selection
from fedprox.simulation.results.target import StopAtTarget, Target
from fedprox.simulation.storage.training_data import check_measured, resident
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
    evaluation: Evaluation = Evaluation(),  # noqa: B008 (frozen)
    client_store: Storage = "auto",
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
        evaluation: How often, on which rows and clients, and of which model records are measured.
        client_store: Where that lies which clients keep from round to round: "device", "host", a
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
        UserWarning: `evaluation.every` is above `rounds`; the training labels are all of one class;
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
        evaluation=evaluation,
        client_store=client_store,
        seeds=_seeds(seed),
        target=target,
        stop_at_target=stop_at_target,
        selection=selection,
        stop=stop,
        initial=initial,
    )
    compared = _checked(protocol, methods)
    begin = Snapshot(())
    mesh = lane_mesh(devices)
    on_record = on_record or _ignore
    if checkpoints:
        begin = checkpoints.begin(_fingerprint(protocol, compared))
        on_record = checkpoints.before_first(on_record, begin)
        seed_runs = [method for method in compared for _ in protocol.seeds]
        begin = after_finished(checkpoints, begin, seed_runs, mesh)
    if protocol.evaluation.clients is None:
        check_measured(mesh, federation, protocol.measured)
    if jax.process_index() == 0:
        warn_of(protocol, stacklevel=2)
    with showing(progress, on_progress) as report:
        count = len(protocol.seeds) * sum(len(method.points) for method in compared)
        data = resident(
            mesh, federation, protocol.measured, protocol.ownership, protocol.measured_ownership
        )
        session = Session(protocol, mesh, data, count, checkpoints, on_record, report)
        runs = _run_all(session, compared, begin)
    experiment = describe_comparison(protocol, [method.algorithm for method in compared])
    for run in runs:
        run.experiment = experiment
    return runs


def _checked(protocol: Protocol, algorithms: Sequence[Algorithm]) -> list[Method]:
    """The methods of a comparison.

    Raises:
        InputError: The model does not fit the federation, an algorithm is not as `Algorithm` says
            or cannot follow the protocol, or two methods have the same label.
    """
    check_model(protocol.model, protocol.federation)
    for algorithm in algorithms:
        check_algorithm(algorithm, protocol.model.shapes)
    methods = [Method(protocol, protocol.reported(algorithm)) for algorithm in algorithms]
    for method in methods:
        protocol.check(method.algorithm, method.solver)
    for label, count in Counter(label for method in methods for label in method.labels).items():
        require(
            count == 1,
            f"methods: {label!r} is given {count} times; once is enough, and hyperparameters must "
            "differ in their first six digits, schedules in their names or first rates",
        )
    return methods


def _fingerprint(protocol: Protocol, methods: Sequence[Method]) -> Fingerprint:
    """What a comparison's checkpoints are told from those of others by."""
    known = {
        "parameters": describe(protocol.model.shapes),
        # labels have six digits
        "points": [list(point.values()) for method in methods for point in method.points],
    }
    for method in methods:
        known |= _scheduled(method)
    return Fingerprint(
        tuple(label for method in methods for label in method.labels),
        protocol.seeds,
        protocol.rounds,
        protocol.settings | known,
        protocol.model,
    )


def _run_all(session: Session, methods: Sequence[Method], begin: Snapshot) -> list[Run]:
    """Run all methods that are left, and return the runs of all."""
    for record in begin.records:
        session.on_record(record)
    runs, seeds = list(begin.finished), session.protocol.seeds
    for number, method in enumerate(methods):
        left = seeds[max(0, begin.seed_runs - number * len(seeds)) :]
        if left:
            begin = run_method(session, method, left, runs, begin)
    return runs


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


def _scheduled(method: Method) -> dict[str, Any]:
    """A method's schedule of learning rates as checkpoints know it; nothing without one."""
    solver = method.solver
    if solver.schedule is None:
        return {}
    factors: list[float | None] = []
    for t in COMPARED_ROUNDS:
        try:
            factors.append(solver.factor(t))
        except InputError:  # beyond the run it may have none
            factors.append(None)
    return {f"{method.labels[0]}: learning rates": [name_of(solver.schedule), *factors]}


def _ignore(_: Any) -> None:
    pass
