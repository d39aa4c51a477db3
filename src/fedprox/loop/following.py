"""Following a comparison while it runs: the user's callbacks, and progress on stderr.

Progress is shown as bars in a terminal and in a notebook, and as lines in a log.
"""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from fedprox.errors import printable, require, shown
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.solver import name_of
from fedprox.terminal import safe_stream
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


Phase = Literal["planning", "compiling", "waiting", "training"]
"""The phase of a method; while "waiting", the nodes of a deployment have not joined yet."""


class Progress(NamedTuple):
    """The progress of a running method.

    Attributes:
        label: The method's label; for a sweep, its name and the number of sweep points.
        seed: Seed of the run.
        round: Number of rounds done.
        rounds: Number of all rounds.
        loss: Lowest training loss over the sweep points at the last evaluation. None before the
            first evaluation; NaN if all points have diverged.
        phase: The current phase.
    """

    label: str
    seed: int
    round: int
    rounds: int
    loss: float | None = None
    phase: Phase = "training"


FIRST_LINE, NEXT_LINE = 10.0, 60.0
"""Seconds until the first line of a log, so that short runs have none, and between lines."""


NARROW = 80
"""Columns of a terminal below which progress has no bar and no times."""


REFRESH = 0.25
"""Seconds between two updates of the bars in a notebook."""


Report = Callable[[Progress], None]


@contextmanager
def showing(progress: bool, on_progress: Report | None = None) -> Iterator[Report]:
    """Show progress on stderr while the context is active.

    Errors of stderr, such as a closed stream, do not reach the caller.
    """
    with ExitStack() as shown:
        reports = [] if on_progress is None else [on_progress]
        if progress:
            stream = safe_stream(sys.stderr)
            console = Console(file=stream)
            if console.is_jupyter:
                kind: Any = _bars_in_notebook(console)
            elif stream.isatty() and not console.is_dumb_terminal:
                kind = _bars_in_terminal(console)
            else:
                kind = _lines(stream)
            reports.append(shown.enter_context(kind))

        def report(now: Progress) -> None:
            for each in reports:
                each(now)

        yield report


@contextmanager
def _bars_in_terminal(console: Console) -> Iterator[Report]:
    bars = _bars(console, redirect_stdout=sys.stdout is not None and sys.stdout.isatty())
    with bars:
        yield _report_to(bars)


@contextmanager
def _bars_in_notebook(console: Console) -> Iterator[Report]:
    """Bars in one output that is updated; rich's own live display would need ipywidgets."""
    from IPython.display import display  # installed with every notebook

    bars = _bars(console)
    report, drawn = _report_to(bars), -math.inf
    output = display(bars.make_tasks_table(bars.tasks), display_id=True)

    def report_and_draw(now: Progress) -> None:
        nonlocal drawn
        report(now)
        if time.monotonic() - drawn >= REFRESH or now.round == now.rounds:
            output.update(bars.make_tasks_table(bars.tasks))
            drawn = time.monotonic()

    yield report_and_draw


class _RoundsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} rounds/s" if task.speed else "", style="cyan")


def _bars(console: Console, **options: Any) -> Bars:
    """Bars that fit the console; one line for each method and seed."""
    name = TextColumn("{task.description}", markup=False)
    state = TextColumn("{task.fields[status]}", markup=False)
    if console.width < NARROW:
        return Bars(name, MofNCompleteColumn(), state, console=console, **options)
    columns = MofNCompleteColumn(), _RoundsPerSecond(), TimeRemainingColumn(), state
    return Bars(name, BarColumn(bar_width=24), *columns, console=console, **options)


def _report_to(bars: Bars) -> Report:
    tasks: dict[tuple[str, int], TaskID] = {}

    def report(now: Progress) -> None:
        key = (now.label, now.seed)
        if key not in tasks:
            tasks[key] = bars.add_task(_name(now), total=now.rounds, status="")
        bars.update(tasks[key], completed=now.round, total=now.rounds, status=status(now))

    return report


@contextmanager
def _lines(stream: TextIO) -> Iterator[Report]:
    """Lines of a log from a separate thread, since a compilation or a call may take minutes."""
    phase: list[tuple[float, Progress]] = []  # its beginning and its last progress
    over = threading.Event()

    def report(now: Progress) -> None:
        at = time.monotonic(), now
        if phase and phase[0][1]._replace(round=0, loss=None) == now._replace(round=0, loss=None):
            phase[1:] = [at]
        else:
            phase[:] = [at]

    def write() -> None:
        wait = FIRST_LINE
        while not over.wait(wait):
            wait = NEXT_LINE
            with suppress(OSError, ValueError):  # ValueError: the stream was closed
                if phase:
                    print(line(list(phase), time.monotonic()), file=stream, flush=True)

    writing = threading.Thread(target=write, name="progress", daemon=True)
    writing.start()
    try:
        yield report
    finally:
        over.set()
        writing.join()


def line(phase: list[tuple[float, Progress]], at: float) -> str:
    """A line of a log.

    >>> now = Progress("fedprox mu=1", 0, 1000, 10_000)
    >>> line([(0.0, now), (60.0, now._replace(round=1200, loss=0.37311))], 60.0)
    'fedprox mu=1, seed 0: round 1200 of 10000, loss 0.3731, 44 min left'
    >>> line([(0.0, now._replace(round=0, phase="compiling"))], 60.0)
    'fedprox mu=1, seed 0: compiling'
    """
    (began, first), (last, now) = phase[0], phase[-1]
    parts = [f"round {now.round} of {now.rounds}"] if now.phase == "training" else []
    if text := status(now):
        parts.append(text)
    done = now.round - first.round
    if done:
        remaining = (last - began) / done * (now.rounds - now.round) - (at - last)
        parts.append(f"{_duration(max(remaining, 0.0))} left")
    return f"{_name(now)}: {', '.join(parts)}"


def status(now: Progress) -> str:
    """The phase before the first round, then the loss, if it is known.

    >>> now = Progress("fedavg", 0, 5, 10)
    >>> status(now), status(now._replace(loss=0.5)), status(now._replace(loss=math.nan))
    ('', 'loss 0.5000', 'diverged')
    """
    if now.phase != "training":
        return now.phase
    if now.loss is None:
        return ""
    return f"loss {now.loss:.4f}" if math.isfinite(now.loss) else "diverged"


def _name(now: Progress) -> str:
    return f"{printable(now.label)}, seed {now.seed}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
