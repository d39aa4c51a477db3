"""The loggers: a tool's run for each run of the comparison, written by one walk through records."""

import hashlib
import importlib
import json
import logging
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedprox.errors import InputError, installing, reason
from fedprox.files.whole import write_whole
from fedprox.loop.following import Callback
from fedprox.report.directory import LOG_ID
from fedprox.report.records import metrics_line
from fedprox.report.saved import file_name
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.user_code import call

OpenRun = tuple[Callable[[dict[str, float], int], None], Callable[[bool], None]]
"""Two functions of a run of a tool that is being written: one writes numbers by name at a step, one
closes it, given whether it has finished."""

COMPARED_HPARAMS = ("train_loss", "test_loss", "test_accuracy")
"""Numbers beside the hyperparameters in TensorBoard's table of runs."""

TAG = "fedprox.id"
"""The tag by which a resumed run finds its run in MLflow."""

MOST_PARAMETERS = 100
"""Most parameters that MLflow takes at once."""


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
        writer = library.SummaryWriter(logdir=str(own))
        numbers = dict.fromkeys(COMPARED_HPARAMS)
        experiment, begin, end = library.summary.hparams(hparams_of(run), numbers)
        for summary in (experiment, begin):
            writer.file_writer.add_summary(summary)
        lines = tomli_w.dumps(dict(run.experiment)).splitlines()
        writer.add_text("experiment", "\n".join(f"    {line}" for line in lines), 0)

        def log(numbers: dict[str, float], step: int) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        def close(finished: bool) -> None:
            if finished:
                writer.file_writer.add_summary(end)
            writer.close()

        return log, close

    return log_each_run("tensorboard", path, resume, open_run)


def mlflow(folder: str | Path, *, resume: bool = False) -> Callback:
    """A callback that writes runs to MLflow.

    They are written to the database `FOLDER/mlflow/mlflow.db`, or to the server that MLflow's own
    variable `MLFLOW_TRACKING_URI` names. The experiment has the folder's name, or that of
    `MLFLOW_EXPERIMENT_NAME`. Each run has the hyperparameters and the experiment's settings as
    parameters, and a metric for each number of `metrics.jsonl` at the round as step.

    Args:
        folder: A folder, such as the run directory.
        resume: Whether to continue the runs that were begun from this folder. Records that they
            have are not written twice.

    Returns:
        A callback for :func:`fedprox.simulate`.

    Raises:
        InputError: If MLflow is not installed.
    """
    server = os.environ.get("MLFLOW_TRACKING_URI")
    library = load("mlflow", "mlflow", *([] if server else ["sqlalchemy", "alembic"]))
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    path = Path(folder).absolute() / "mlflow"

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or path.parent.name

    def open_run(run: Run, identity: str) -> OpenRun:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries under MLflow
            client = library.MlflowClient(server or f"sqlite:///{path / 'mlflow.db'}")
        if known := client.get_experiment_by_name(name):
            experiment = str(known.experiment_id)
        else:
            artifacts = None if server else (path / "artifacts").as_uri()
            experiment = str(client.create_experiment(name, artifact_location=artifacts))
        if found := client.search_runs([experiment], f"tags.`{TAG}` = '{identity}'", max_results=1):
            number = found[0].info.run_id
            client.update_run(number, status="RUNNING")
        else:
            created = client.create_run(experiment, tags={TAG: identity}, run_name=title(run))
            number = created.info.run_id
        history = client.get_metric_history(number, "total_steps")  # which is in every record
        last = max((metric.step for metric in history), default=-1)
        # rounds is a tag, since parameters cannot change when a run is extended
        client.set_tag(number, "rounds", str(run.experiment.get("rounds")))
        settings = {key: str(v) for key, v in parameters_of(run).items() if key != "rounds"}
        parameters = [library.entities.Param(key, value) for key, value in settings.items()]
        for begin in range(0, len(parameters), MOST_PARAMETERS):
            client.log_batch(number, params=parameters[begin : begin + MOST_PARAMETERS])

        def log(numbers: dict[str, float], step: int) -> None:
            if step > last:
                now, metric = int(1000 * time.time()), library.entities.Metric
                metrics = [metric(name, value, now, step) for name, value in numbers.items()]
                client.log_batch(number, metrics=metrics)

        def close(finished: bool) -> None:
            client.set_terminated(number, "FINISHED" if finished else "FAILED")

        return log, close

    return log_each_run("mlflow", path, resume, open_run)


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

        return (
            lambda numbers, step: written.log(numbers, step=step, commit=True),
            lambda finished: written.finish(exit_code=0 if finished else 1),
        )

    return log_each_run("wandb", above / "wandb", resume, open_run)


def log_each_run(
    name: str, folder: Path, resume: bool, open_run: Callable[[Run, str], OpenRun]
) -> Callback:
    """A callback that writes each run's records to a run of a tool, which has a folder.

    `open_run` opens the tool's run at the first record, given a run without records and an
    identifier. The identifier is the same if the run is resumed or extended.
    """
    planned: dict[tuple[str, int], Run] = {}
    opened: dict[tuple[str, int], OpenRun] = {}
    mark = ""

    def close(finished: bool) -> None:
        while opened:
            _, (_, close_run) = opened.popitem()
            call(name, close_run, finished)

    def start(runs: Sequence[Run]) -> None:
        nonlocal mark
        mark = ""
        planned.clear()
        planned.update({(run.label, run.seed): run for run in runs})

    def log(record: Record) -> None:
        nonlocal mark
        mark = mark or _mark(folder, resume)
        this = record.method, record.seed
        if any((planned[key].method, planned[key].seed) != this for key in opened):
            close(True)  # only sweep points run together
        key = record.label, record.seed
        if key not in opened:
            opened[key] = call(name, open_run, planned[key], _identifier(mark, planned[key]))
        log_numbers, _ = opened[key]
        call(name, log_numbers, numbers_of(record), record.round)

    return Callback(start, log, lambda runs: close(runs is not None))


def load(name: str, *modules: str) -> Any:
    """Import the modules that a logger needs and return the first, or name the extra to install."""
    try:
        first, *_ = [importlib.import_module(module) for module in modules]
    except ImportError as error:
        raise InputError(f"{name}: {reason(error)}: {installing(name)}") from None
    return first


def numbers_of(record: Record) -> dict[str, float]:
    """The finite numbers of a record's line in `metrics.jsonl`, without its seed and its round."""
    return {
        key: value
        for key, value in metrics_line(record).items()
        if isinstance(value, int | float) and key not in ("seed", "round")
    }


def title(run: Run) -> str:
    """The name of a run in a tool."""
    return f"{run.label}, seed {run.seed}"


def hparams_of(run: Run) -> dict[str, Any]:
    """The method, the hyperparameters, the learning rate and the seed of a run."""
    own = {"learning_rate": run.learning_rate, "seed": run.seed}
    return {"method": run.method, **run.hparams, **own}


def parameters_of(run: Run) -> dict[str, Any]:
    """The experiment's settings by their keys, such as "solver.epochs", and the hyperparameters."""
    return flattened(run.experiment) | hparams_of(run)


def flattened(settings: Any, prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their keys.

    >>> flattened({"seed": [0, 1], "method": [{"name": "fedprox", "mu": 0.1}]})
    {'seed': [0, 1], 'method.0.name': 'fedprox', 'method.0.mu': 0.1}
    """
    if isinstance(settings, Sequence) and any(isinstance(each, Mapping) for each in settings):
        settings = {str(i): each for i, each in enumerate(settings)}
    if not isinstance(settings, Mapping):
        return {prefix: settings}
    below = (flattened(value, f"{prefix}.{key}".strip(".")) for key, value in settings.items())
    return {key: value for table in below for key, value in table.items()}


def _mark(folder: Path, resume: bool) -> str:
    """Mark the folder as a logger's by a file with random text, which a resumed run reads again."""
    file = folder / LOG_ID
    if resume and file.is_file():
        return file.read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    text = secrets.token_hex(16)
    write_whole(file, text.encode())
    return text


def _identifier(mark: str, run: Run) -> str:
    """An identifier of a run: no other run has it, in this experiment or in another."""
    settings = {key: value for key, value in run.experiment.items() if key != "rounds"}
    what = [mark, run.label, run.seed, settings]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]
