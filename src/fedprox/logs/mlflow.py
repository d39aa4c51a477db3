"""MLflow: runs in a tracking store, which is a local database by default."""

import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

from fedprox.logs.each_run import OpenRun, load, log_each_run, parameters_of, title
from fedprox.loop.following import Callback
from fedprox.results.run import Run

TAG = "fedprox.id"
"""The tag by which a resumed run finds its run in MLflow."""

MOST = 100
"""Most parameters that MLflow takes at once."""


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

    def open_run(run: Run, identity: str) -> OpenRun:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries under MLflow
            client = library.MlflowClient(server or f"sqlite:///{path / 'mlflow.db'}")
        artifacts = None if server else (path / "artifacts").as_uri()
        experiment = _experiment(client, path.parent.name, artifacts)
        return _write(library, client, experiment, run, identity)

    return log_each_run("mlflow", path, resume, open_run)


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    """The identifier of the experiment, which is created if there is none of its name."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
    known = client.get_experiment_by_name(name)
    if known is not None:
        return str(known.experiment_id)
    return str(client.create_experiment(name, artifact_location=artifacts))


def _write(library: Any, client: Any, experiment: str, run: Run, identity: str) -> OpenRun:
    found = client.search_runs([experiment], f"tags.`{TAG}` = '{identity}'", max_results=1)
    entities = library.entities
    if found:
        number = found[0].info.run_id
        client.update_run(number, status="RUNNING")
    else:
        number = client.create_run(
            experiment, tags={TAG: identity}, run_name=title(run)
        ).info.run_id
    history = client.get_metric_history(number, "total_steps")  # which is in every record
    last = max((metric.step for metric in history), default=-1)
    # rounds is a tag, since parameters cannot change when a run is extended
    client.set_tag(number, "rounds", str(run.experiment.get("rounds")))
    settings = {key: str(v) for key, v in parameters_of(run).items() if key != "rounds"}
    parameters = [entities.Param(key, value) for key, value in settings.items()]
    for begin in range(0, len(parameters), MOST):
        client.log_batch(number, params=parameters[begin : begin + MOST])

    def log(numbers: dict[str, float], step: int) -> None:
        if step > last:
            now = int(1000 * time.time())
            metrics = [entities.Metric(name, v, now, step) for name, v in numbers.items()]
            client.log_batch(number, metrics=metrics)

    def close(finished: bool) -> None:
        client.set_terminated(number, "FINISHED" if finished else "FAILED")

    return log, close
