"""Weights & Biases: runs in offline folders, or on its server."""

import os
import shutil
from pathlib import Path

from fedprox.logs.each_run import OpenRun, load, log_each_run, parameters_of, title
from fedprox.loop.following import Callback
from fedprox.results.run import Run


def wandb(folder: str | Path, *, resume: bool = False) -> Callback:
    """A callback that writes runs for Weights & Biases.

    They are written to `FOLDER/wandb` without a connection; `wandb sync FOLDER/wandb/offline-run-*`
    uploads them. The tool's own variables take precedence: `WANDB_MODE=online` uploads at once, and
    `WANDB_DIR`, `WANDB_PROJECT` and `WANDB_RUN_GROUP` replace the folder, the project "fedprox" and
    the group, which has the folder's name. Each run has the hyperparameters and the experiment's
    settings as its config, and the numbers of `metrics.jsonl` at the round as step.

    Args:
        folder: A folder, such as the run directory.
        resume: Whether to continue the runs that were begun from this folder: offline their folders
            are written anew, online the server continues them.

    Returns:
        A callback for :func:`fedprox.simulate`.

    Raises:
        InputError: If wandb is not installed.
    """
    library = load("wandb", "wandb")
    above = Path(folder).absolute()
    place = Path(os.environ.get("WANDB_DIR") or above)
    mode = os.environ.get("WANDB_MODE") or "offline"

    def open_run(run: Run, identity: str) -> OpenRun:
        if mode == "offline":
            for old in (place / "wandb").glob(f"offline-run-*-{identity}"):
                shutil.rmtree(old)
        written = library.init(
            project=os.environ.get("WANDB_PROJECT") or "fedprox",
            group=os.environ.get("WANDB_RUN_GROUP") or above.name,
            name=title(run),
            id=identity,
            config=parameters_of(run),
            dir=str(place),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # sweep points run together
            settings=library.Settings(console="off", silent=mode == "offline"),
        )

        def log(numbers: dict[str, float], step: int) -> None:
            written.log(numbers, step=step, commit=True)

        def close(finished: bool) -> None:
            written.finish(exit_code=0 if finished else 1)

        return log, close

    return log_each_run("wandb", above / "wandb", resume, open_run)
