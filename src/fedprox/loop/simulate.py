"""The entry point `simulate`, and the checks of its arguments."""

import atexit
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm
from fedprox.devices.compilation_cache import use_default_compilation_cache
from fedprox.devices.mesh import lane_mesh, replicate
from fedprox.engine.storage.training_data import check_measured
from fedprox.errors import naming_arguments, require, shown
from fedprox.federation import Federation
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Callback, Progress, check_callbacks
from fedprox.loop.local import LocalEngine
from fedprox.loop.snapshot import Stage
from fedprox.loop.train import new_runs, training
from fedprox.model import Model, Params, with_base
from fedprox.parts.asynchronous import Asynchronous
from fedprox.parts.attack import Attack
from fedprox.parts.compatible import Case, check_case
from fedprox.parts.compression import Compression
from fedprox.parts.faults import Faults
from fedprox.parts.part import Part
from fedprox.parts.population import Population
from fedprox.parts.privacy import Privacy
from fedprox.parts.robust import Aggregation
from fedprox.parts.systems import Systems
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.method import Method, checked_methods, warn_of
from fedprox.protocol.protocol import Evaluation, Protocol, Storage
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.results.target import Selection, StopAtTarget, Target
from fedprox.solver import Solver


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
    privacy: Privacy | None = None,
    population: Population | None = None,
    asynchronous: Asynchronous | None = None,
    aggregation: Aggregation = Aggregation(),  # noqa: B008 (frozen)
    attack: Attack | None = None,
    compression: Compression | None = None,
    stop: Callable[[Record], bool] | None = None,
    initial: Params | None = None,
    devices: int | None = None,
    checkpoints: Checkpoints | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[Progress], None] | None = None,
    progress: bool = True,
) -> list[Run]:
    """Train one method on a federation, or compare several on identical random draws.

    All methods see the same cohorts, stragglers and mini-batches.

    Compiled programs are cached on disk and reused by later calls, also in other processes. JAX's
    own settings take precedence: `jax_enable_compilation_cache = False` turns the cache off, and
    `jax_compilation_cache_dir` sets its folder.

    Args:
        federation: The clients and their data.
        model: The model to train.
        methods: An algorithm, such as `fedprox(mu=1.0)`, or a list of them. If hyperparameters or
            the solver's learning rate are sequences, each combination of their values is a sweep
            point. All sweep points of a method run together in one program.
        solver: The local solver.
        cohort: How each round's clients are sampled.
        systems: Which of these clients are stragglers, and how much work they do.
        faults: How updates are treated that are not finite or far larger than the others. With
            None they count like any other update, and a run that they ruin is reported as diverged.
        rounds: Number of rounds T.
        evaluation: How often, on which rows and clients, and for which model measures are computed.
        client_store: Where client state is stored between rounds: on the "device", in "host"
            memory or on "disk". "auto" takes the first of these that has room. Results do not
            depend on it.
        seed: A seed, or a sequence of seeds. Each seed is a separate run of the same compiled
            program.
        target: The target for `stop_at_target`, such as a test accuracy or a training loss.
        stop_at_target: When a run ends early: at the first evaluation at which "all" or "any" of
            its sweep points have reached the target, or "never". "all" ignores sweep points that
            have diverged. Up to its end, the run is bit for bit the same.
        selection: Whether a run keeps its last or its best model, and how long it continues without
            progress.
        privacy: Differential privacy of clients or of examples. For clients, messages are clipped
            and noise is added to the sum of each round. For examples, gradients are clipped and
            noise is added in each local step. The seed determines the noise, so a simulation shows
            the cost of privacy and protects nobody. None means no privacy.
        population: The clients' devices: how fast each computes and sends, and when it is on.
            Records then have the time at which their round ended, and `systems.deadline` and
            `cohort.over_selection` can be set. None means no clock.
        asynchronous: How the server steps as soon as some updates are in, without waiting for a
            cohort; a round is then a step of the server. None means rounds with a barrier.
        aggregation: How the server combines a round's messages: by their weighted mean, or by a
            rule that some dishonest clients cannot move far.
        attack: The messages of dishonest clients, to try rules of aggregation. None means that all
            are honest.
        compression: How clients' messages travel in fewer bits. Records then count the bits. None
            sends them in full.
        stop: Called with each record except those of the last round. A run ends when it returns
            True, and keeps its results so far. Sweep points run together until it has returned True
            for each of them. It must return the same in all processes.
        initial: The initial parameters of every method and seed, a pytree like that of
            `model.init`, for example from `load_model`. None means the parameters of `model.init`.
        devices: Number of JAX devices that share a round's clients. None means all devices. The
            order of sums depends on it, so results differ in the last bits.
        checkpoints: Where and how often checkpoints are written. None means no checkpoints. A
            resumed run has the same bits as an uninterrupted one. So has a finished run that is
            extended by more rounds.
        callbacks: Functions that are called before the first round, with each record, and at the
            end.
        on_progress: Called when a phase begins and when rounds end.
        progress: Whether to show progress on stderr: as bars in a terminal or a notebook, otherwise
            as a line after ten seconds and then every minute.

    Returns:
        One run for each method, seed and sweep point, with methods outermost and sweep points
        innermost.

    Raises:
        InputError: If an argument is invalid or does not fit the others. For example, the cohort is
            larger than the federation, `stop_at_target` has no target, or the initial parameters do
            not fit the model. Also if an algorithm's functions return arrays of wrong shapes, or an
            update is faulty and `faults.policy` is "fail". Also if training rows stay on the host
            and evaluations would read too many of them.

    Warns:
        UserWarning: If `evaluation.every` is above `rounds`, all training labels are of one class,
            classes are numbered from 1, or test labels are of a class that no client trains on. The
            last check skips labels in files that evaluations do not read.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> runs = fp.simulate(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=2,
        ... )
        >>> [record.round for record in runs[0].history]
        [0, 1, 2]
    """
    arguments, runs = locals(), list[Run]()
    for _ in _training(runs=runs, **arguments):
        pass
    return runs


def rounds(
    federation: Federation,
    model: Model,
    method: Algorithm,
    *,
    start: Stage | None = None,
    **settings: Any,
) -> Iterator[Stage]:
    """Train one method in a loop of your own.

    This is the loop of :func:`fedprox.simulate`, with the same results. After each evaluation, also
    that of the initial model, it pauses and yields a :class:`fedprox.Stage`: the record, the
    parameters, the server's state and the clients' steps. Leave the loop at any time, and the run
    ends there. Set `stage.learning_rate` to change the learning rate of the following rounds.

    The next rounds begin only when the evaluation is done, so `simulate` is faster where
    evaluations take long. `Evaluation(every=10)` yields after every tenth round.

    Args:
        federation: The clients and their data.
        model: The model to train.
        method: The algorithm, with one value for each hyperparameter.
        start: A stage of an earlier loop with the same method and seed, from which this one
            continues. Its results have the same bits as those of one loop. For a method with client
            state it must be the last stage of its loop. None begins with the initial model.
        settings: The other arguments of :func:`fedprox.simulate`; `seed` is one seed.

    Returns:
        An iterator over the stages of the run.

    Raises:
        InputError: As in :func:`fedprox.simulate`, if there is more than one method, seed or sweep
            point, or if `start` is a stage of another run.

    Example:
        A learning rate that is halved when the loss grows:

        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> loss = float("inf")
        >>> for stage in fp.rounds(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedprox(mu=0.1),
        ...     solver=fp.Solver(learning_rate=0.1, batch_size=10, epochs=2),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=5,
        ... ):
        ...     if stage.record.train_loss > loss:
        ...         stage.learning_rate /= 2
        ...     loss = stage.record.train_loss
        >>> stage.record.round, len(stage.run.history)
        (5, 6)
    """
    arguments = naming_arguments(_arguments, "rounds")(federation, model, method, **settings)
    require(
        isinstance(method, Algorithm),
        f"rounds: method = {shown(method)}; it must be one algorithm, such as fedprox.fedavg()",
    )
    require(
        start is None or isinstance(start, Stage),
        f"rounds: start = {shown(start)}; it must be a stage that fedprox.rounds yielded, or None",
    )
    found: Any = _training(**arguments, runs=[], owned=True, start=start)
    OPEN.add(found)
    return found


OPEN = weakref.WeakSet[Iterator[Stage]]()
"""Loops of users that have not ended."""


@atexit.register
def _close_loops() -> None:
    """Leave loops before Python removes the modules that they need."""
    for loop in list(OPEN):
        loop.close()  # type: ignore[attr-defined]


@functools.wraps(simulate)
def _arguments(*given: Any, **settings: Any) -> dict[str, Any]:
    """The arguments of `simulate`, with its defaults."""
    bound = inspect.signature(simulate).bind(*given, **settings)
    bound.apply_defaults()
    return bound.arguments


def _training(
    methods: Algorithm | Sequence[Algorithm],
    runs: list[Run],
    *,
    checkpoints: Checkpoints | None,
    callbacks: Sequence[Callback],
    on_progress: Callable[[Progress], None] | None,
    progress: bool,
    owned: bool = False,
    start: Stage | None = None,
    **settings: Any,
) -> Iterator[Stage | None]:
    """The loop of a comparison whose arguments are checked."""
    use_default_compilation_cache()
    require(
        checkpoints is None or isinstance(checkpoints, Checkpoints),
        f"checkpoints = {shown(checkpoints)}; it must be a fedprox.Checkpoints or None",
    )
    check_callbacks(callbacks)
    require(isinstance(progress, bool), f"progress = {shown(progress)}; it must be True or False")
    mesh, compared = prepare(methods, **settings)
    protocol = compared[0].protocol
    for what, several in (("seeds", protocol.seeds), ("sweep points", compared[0].points)):
        require(
            not owned or len(several) == 1, f"rounds: {len(several)} {what}; a loop has one run"
        )
    if jax.process_index() == 0:
        warn_of(protocol)
    begun = None if start is None else start.snapshot()
    if begun is not None:
        begun.require_of(new_runs(compared[0], protocol.seeds[0]), compared[0])
    return training(
        compared,
        LocalEngine(mesh, protocol, checkpoints),
        runs,
        checkpoints=checkpoints,
        callbacks=callbacks,
        on_progress=on_progress,
        progress=progress,
        owned=owned,
        start=begun,
    )


def prepare(
    methods: Algorithm | Sequence[Algorithm],
    *,
    seed: int | Sequence[int],
    devices: int | None = None,
    **settings: Any,
) -> tuple[Mesh, list[Method]]:
    """Check the arguments of `simulate` that results depend on; nothing is trained."""
    methods, mesh = _as_list(methods), lane_mesh(devices)
    if isinstance(model := settings["model"], Model):  # else refused below
        settings["model"] = with_base(model, replicate(mesh, model.base))
    for part in settings.values():
        if isinstance(part, Part):
            settings["federation"] = part.data(settings["federation"])
    protocol = Protocol(**settings, seeds=_seeds(seed))
    compared = checked_methods(protocol, methods)
    check_case(Case(protocol, place="simulation"))
    if protocol.evaluation.clients is None:
        check_measured(mesh, protocol.federation, protocol.measured)
    return mesh, compared


def _as_list(methods: Algorithm | Sequence[Algorithm]) -> list[Algorithm]:
    """The methods as a list, also if there is only one."""
    allowed = "it must be an algorithm, such as fedprox.fedavg(), or a list of them"
    if isinstance(methods, Algorithm):
        return [methods]
    require(
        isinstance(methods, Sequence) and not isinstance(methods, str | bytes),
        f"methods = {shown(methods)}; {allowed}",
    )
    require(len(methods) > 0, f"methods: none given; {allowed}")
    for i, method in enumerate(methods):
        require(isinstance(method, Algorithm), f"methods[{i}] = {shown(method)}; {allowed}")
    return list(methods)


def _seeds(seed: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds as a tuple, also if there is only one."""
    seeds: Any = seed.tolist() if isinstance(seed, np.ndarray) else seed
    is_sequence = isinstance(seeds, Sequence) and not isinstance(seeds, str | bytes)
    return tuple(seeds) if is_sequence else (seeds,)
