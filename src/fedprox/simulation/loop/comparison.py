"""A comparison: all methods on the same protocol, one after another."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.check import check_algorithm
from fedprox.errors import InputError, require
from fedprox.model import check_model
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.loop.callbacks import Callback, following, pass_on
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.loop.described import describe_comparison
from fedprox.simulation.loop.execution import Execute
from fedprox.simulation.loop.method_run import Session, new_runs, run_method
from fedprox.simulation.loop.progress import Progress, Report, showing
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.solver import name_of
from fedprox.user_code import describe


class Follow(NamedTuple):
    """How a comparison is followed while it runs.

    Attributes:
        checkpoints: Where and how often checkpoints are written; None means no checkpoints.
        callbacks: Functions that are called at the start, with each record, and at the end.
        on_progress: Called when a phase begins and when rounds end; None for nothing.
        progress: Whether to show progress on stderr.
    """

    checkpoints: Checkpoints | None
    callbacks: Sequence[Callback]
    on_progress: Callable[[Progress], None] | None
    progress: bool


def compare(
    protocol: Protocol,
    methods: Sequence[Method],
    mesh: Mesh,
    make_execute: Callable[[Report], Execute],
    follow: Follow,
) -> list[Run]:
    """Run some methods on all seeds, or continue from a checkpoint.

    Args:
        protocol: The protocol.
        methods: The methods, from `checked_methods`.
        mesh: The devices of the server's state.
        make_execute: Makes the executions of methods, given a function to report progress to.
        follow: How the comparison is followed.

    Returns:
        One run for each method, seed and sweep point, with methods outermost and sweep points
        innermost.
    """
    checkpoints = follow.checkpoints
    on_record: Callable[[Record], None] = partial(pass_on, follow.callbacks)
    seed_runs = [(method, seed) for method in methods for seed in protocol.seeds]
    planned = [new_runs(method, seed) for method, seed in seed_runs]
    if checkpoints:
        settings = _fingerprint(protocol, methods)
        checkpoints.begin(settings, [method for method, _ in seed_runs], planned)
        on_record = checkpoints.before_first(on_record)
    experiment = describe_comparison(protocol, [method.algorithm for method in methods])
    announced = [replace(run, experiment=experiment) for group in planned for run in group]
    with following(follow.callbacks, announced) as finished:
        with showing(follow.progress, follow.on_progress) as report:
            execute = make_execute(report)
            session = Session(protocol, mesh, execute, checkpoints, on_record, report)
            runs = [
                run
                for number, method in enumerate(methods)
                for run in run_method(session, method, number * len(protocol.seeds))
            ]
        for run in runs:
            run.experiment = experiment
        finished += runs
    return runs


def checked_methods(protocol: Protocol, algorithms: Sequence[Algorithm]) -> list[Method]:
    """Check the algorithms, and make them the methods of a comparison.

    Raises:
        InputError: If the model does not fit the federation, an algorithm is invalid or cannot
            follow the protocol, or two methods have the same label.
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


def _fingerprint(protocol: Protocol, methods: Sequence[Method]) -> dict[str, Any]:
    """The settings that the checkpoints of a comparison must match, for JSON."""
    settings: dict[str, Any] = {
        "labels": [label for method in methods for label in method.labels],
        "seeds": list(protocol.seeds),
        "processes": jax.process_count(),
        **protocol.settings,
        "parameters": describe(protocol.model.shapes),
        # labels are not enough: they have six digits
        "points": [list(point.values()) for method in methods for point in method.points],
    }
    for method in methods:
        settings |= _schedule(method)
        if method.mechanism is not None:
            name, z = f"{method.labels[0]}: noise multiplier", method.mechanism.noise_multiplier
            settings[name] = float(
                f"{z:.6g}"
            )  # a run with more rounds may need more noise for its epsilon
    return settings


COMPARED_ROUNDS = 0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000
"""Rounds whose learning rates identify a schedule in a checkpoint. They do not depend on T, since a
run may be extended."""


def _schedule(method: Method) -> dict[str, Any]:
    """How a checkpoint identifies a method's learning rate schedule; empty without a schedule."""
    solver = method.solver
    if solver.schedule is None:
        return {}
    factors: list[float | None] = []
    for t in COMPARED_ROUNDS:
        try:
            factors.append(solver.factor(t))
        except InputError:  # a schedule may end with the run
            factors.append(None)
    return {f"{method.labels[0]}: learning rates": [name_of(solver.schedule), *factors]}
