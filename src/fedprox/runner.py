"""Running an experiment file from Python."""

from collections.abc import Sequence
from pathlib import Path

from fedprox.errors import require
from fedprox.experiment import parse, read_study, read_table, resolve, run_study_file, train
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Callback, check_callbacks
from fedprox.report.directory import RunDirectory, write_results
from fedprox.results.run import Run
from fedprox.studies.run import Place


def run(
    file: str | Path,
    settings: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> list[Run]:
    """Run an experiment file, as the command `fedprox run` does.

    The file may name functions of your own (`name = "package.module:function"`), which are
    imported: run only files that you trust.

    Args:
        file: The experiment file; `fedprox keys` lists every key.
        settings: Changes to it, such as "solver.epochs=1" or "method.0.mu=[0, 1]".
        out: Run directory, to which everything that the command writes is written. If omitted,
            nothing is written.
        data_dir: Folder with data files, in place of `FEDPROX_DATA` or a download.
        callbacks: Functions that are called before the first round, with each record, and at the
            end; not for a study.
        progress: Whether progress is shown on stderr; see `simulate`.

    Returns:
        One run for each method, seed and sweep point, as from `simulate`. Of a file with a section
        `[study]`, one for each cell and seed, with the chosen hyperparameters; `Study.read(out)`
        has the tables.

    Raises:
        InputError: The file is missing or not an experiment, a setting or the data cannot be used,
            or `out` holds something else.

    Example:
        >>> import tempfile
        >>> text = '''
        ... rounds = 1
        ... data = {name = "synthetic", clients = 4}
        ... cohort = {clients_per_round = 2}
        ... solver = {learning_rate = 0.1, batch_size = 10, epochs = 1}
        ... method = [{name = "fedprox", mu = [0.0, 1.0]}]
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.toml").write_text(text)
        ...     runs = run(f"{folder}/a.toml", ["method.0.mu=1.0"])
        >>> [each.label for each in runs]
        ['fedprox mu=1']
    """
    check_callbacks(callbacks)
    table, data_dir = read_table(Path(file), settings), None if data_dir is None else Path(data_dir)
    if "study" in table:
        require(not callbacks, "callbacks: a study has none; leave them out")
        study, place = read_study(str(file), table), Place(None if out is None else Path(out))
        return run_study_file(study, place, data_dir=data_dir, progress=progress).runs
    experiment = parse(str(file), table)
    resolved = resolve(experiment, data_dir)
    if out is None:
        return train(experiment, resolved, callbacks, progress=progress)
    client_records = resolved.evaluation.client_records
    with RunDirectory(Path(out), resolved.table, client_records=client_records) as directory:
        checkpoints = Checkpoints(directory.checkpoints)
        callbacks = [Callback(on_record=directory.record), *callbacks]
        runs = train(experiment, resolved, callbacks, checkpoints=checkpoints, progress=progress)
        clients = resolved.federation, resolved.model
        write_results(directory, runs, resolved.target, clients)
    return runs
