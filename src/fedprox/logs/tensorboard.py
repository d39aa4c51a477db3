"""TensorBoard: event files, written by tensorboardX."""

from pathlib import Path
from typing import Any

import tomli_w

from fedprox.logs.each_run import OpenRun, hparams_of, load, log_each_run
from fedprox.loop.following import Callback
from fedprox.report.directory import file_name
from fedprox.results.run import Run

COMPARED = ("train_loss", "test_loss", "test_accuracy")
"""Numbers beside the hyperparameters in TensorBoard's table of runs."""


def tensorboard(folder: str | Path, *, resume: bool = False) -> Callback:
    """A callback that writes event files for TensorBoard to `FOLDER/tensorboard`.

    Each run has a folder of its own. It holds a scalar for each number of `metrics.jsonl`, in
    single precision, at the round as step; the hyperparameters; and the experiment as text.

    The event files of a run replace those of an earlier run of the same label and seed.

    Args:
        folder: A folder, such as the run directory.
        resume: Whether the runs may be resumed ones; here it makes no difference.

    Returns:
        A callback for :func:`fedprox.simulate`.

    Raises:
        InputError: If tensorboardX is not installed.
    """
    library = load("tensorboard", "tensorboardX")
    path = Path(folder) / "tensorboard"

    def open_run(run: Run, _: str) -> OpenRun:
        own = path / file_name(run.label, run.seed)
        for old in own.glob("events.out.tfevents.*"):
            old.unlink()
        return _write(library, own, run)

    return log_each_run("tensorboard", path, resume, open_run)


def _write(library: Any, folder: Path, run: Run) -> OpenRun:
    writer = library.SummaryWriter(logdir=str(folder))
    experiment, begin, end = library.summary.hparams(hparams_of(run), dict.fromkeys(COMPARED))
    for summary in (experiment, begin):
        writer.file_writer.add_summary(summary)
    text = "\n".join(f"    {line}" for line in tomli_w.dumps(dict(run.experiment)).splitlines())
    writer.add_text("experiment", text, 0)

    def log(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def close(finished: bool) -> None:
        if finished:
            writer.file_writer.add_summary(end)
        writer.close()

    return log, close
