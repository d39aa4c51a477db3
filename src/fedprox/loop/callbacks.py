"""Callbacks: the user's functions that follow a comparison while it runs."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedprox.errors import require, shown
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.solver import name_of
from fedprox.user_code import call


def _ignore(_: Any) -> None:
    pass


@dataclass(frozen=True)
class Callback:
    """Functions that follow a comparison while it runs.

    An exception in one of them ends the comparison. In a comparison of several processes, each
    process calls its own callbacks.

    Attributes:
        on_start: Called once before anything is trained, with all runs of the comparison. They have
            their label, method, hyperparameters, seed and `experiment`, and no records yet.
        on_record: Called with each record as soon as it is known. A comparison that resumes from a
            checkpoint first passes on the records of the checkpoint, so that a callback always
            receives all records from round 0 on.
        on_end: Called once at the end, with the finished runs, or with None if the comparison was
            stopped or failed.

    Raises:
        InputError: If one of them is not a function.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> losses = []
        >>> runs = fp.simulate(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=2,
        ...     callbacks=[fp.Callback(on_record=lambda record: losses.append(record.train_loss))],
        ... )
        >>> len(losses)
        3
    """

    on_start: Callable[[Sequence[Run]], None] = _ignore
    on_record: Callable[[Record], None] = _ignore
    on_end: Callable[[Sequence[Run] | None], None] = _ignore

    def __post_init__(self) -> None:
        for name in ("on_start", "on_record", "on_end"):
            function = getattr(self, name)
            require(callable(function), f"{name} = {shown(function)}; it must be a function")


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raise `InputError` unless `callbacks` is a sequence of callbacks."""
    require(
        isinstance(callbacks, Sequence) and not isinstance(callbacks, str | bytes),
        f"callbacks = {shown(callbacks)}; it must be a list of fedprox.Callback",
    )
    for i, callback in enumerate(callbacks):
        require(
            isinstance(callback, Callback),
            f"callbacks[{i}] = {shown(callback)}; it must be a fedprox.Callback",
        )


def pass_on(callbacks: Sequence[Callback], record: Record) -> None:
    """Call each callback with a record."""
    for callback in callbacks:
        _call("on_record", callback, record)


@contextmanager
def following(callbacks: Sequence[Callback], runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Call `on_start` when the context begins and `on_end` when it ends."""
    finished: list[Run] = []
    started: list[Callback] = []
    try:
        for callback in callbacks:
            started.append(callback)
            _call("on_start", callback, runs)
        yield finished
        while started:
            _call("on_end", started.pop(0), finished)
    except BaseException:
        for callback in started:
            try:
                _call("on_end", callback, None)
            except Exception as error:  # the first error is the one that is raised
                logging.getLogger(__name__).warning("%s", error)
        raise


def _call(name: str, callback: Callback, given: Any) -> None:
    function = getattr(callback, name)
    call(f"callbacks: {name} = {name_of(function)}", function, given)
