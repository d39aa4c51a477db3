"""The results of a comparison, written into its run directory."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fedprox.errors import require, shown
from fedprox.federation import Federation
from fedprox.model import Model, check_params
from fedprox.model.check import check_model
from fedprox.report.archive import target_of_runs
from fedprox.report.directory import RunDirectory, write_clients
from fedprox.report.page import write_report
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.results.target import Target


def write_results(
    directory: RunDirectory,
    runs: Sequence[Run],
    target: Target | None,
    federation: Federation | None = None,
    model: Model | None = None,
) -> None:
    """Write all files of a run directory but `experiment.toml` and `metrics.jsonl`."""
    if federation is not None and model is not None:
        most = directory.experiment.get("evaluation", {}).get("clients")
        write_clients(directory.path, federation, model, runs, most)
    directory.finish(runs, target)
    write_report([directory.path], directory.path / "report.html")


def save(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
) -> None:
    """Write the runs of a comparison into a run directory, as `fedprox run` does.

    Its `experiment.toml` describes the arguments of `simulate`: the settings, the methods with
    their hyperparameters, the name of the model's class or function, and the numbers of clients and
    rows. The file of such a comparison cannot be run; that of a comparison from `fedprox.run` can.

    Args:
        runs: What `simulate` or `run` returned, or some of these runs.
        folder: The folder. It must be new, empty, or hold results of the same experiment, which
            are replaced.
        federation: The clients and their data. With `federation` and `model`, the run directory
            gets `clients.json`, the final models' test accuracy on each client, and the report
            shows it. Runs do not hold the federation, so that its memory can be freed.
        model: The model; needed together with `federation`.

    Raises:
        InputError: There are no runs, or they are of several comparisons; only one of `federation`
            and `model` is given, or they do not fit the runs; or the folder holds other files, or
            another process is writing to it.

    Example:
        >>> import tempfile
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> model = fp.models.logistic(federation)
        >>> solver = fp.Solver(learning_rate=0.1, batch_size=10, steps=3)
        >>> runs = fp.simulate(
        ...     federation, model, fp.fedavg(), solver=solver, cohort=fp.Cohort(2), rounds=1
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fp.save(runs, folder, federation=federation, model=model)
        ...     fp.load_model(folder)["dense"]["weight"].shape
        (10, 60)
    """
    are_runs = isinstance(runs, Sequence) and all(isinstance(run, Run) for run in runs)
    require(are_runs and len(runs), f"runs = {shown(runs)}; it must be a list of fedprox.Run")
    experiment = runs[0].experiment
    require(experiment, "runs: made by neither fedprox.simulate nor fedprox.run, so not known how")
    names = [(run.label, run.seed) for run in runs]
    require(
        all(run.experiment == experiment for run in runs) and len(set(names)) == len(names),
        "runs: of several calls of fedprox.simulate; save each call's in a folder of its own",
    )
    require(
        (federation is None) == (model is None),
        "federation and model: one of them is missing; give both, or neither",
    )
    if federation is not None and model is not None:
        check_model(model, federation)
        for run in runs:
            check_params(f"model: not that of {run.label!r}", run.params, model.shapes)
    target = target_of_runs(experiment, runs)
    with RunDirectory(Path(folder), dict(experiment)) as directory:
        for record in _in_order_of_training(runs):
            directory.record(record)
        write_results(directory, runs, target, federation, model)


def _in_order_of_training(runs: Sequence[Run]) -> Iterator[Record]:
    """All records in the order of training, in which the points of a sweep run together."""
    for _, sweep in groupby(runs, key=lambda run: (run.method, run.seed)):
        records = [record for run in sweep for record in run.history]
        yield from sorted(records, key=lambda record: record.round)
