"""`fedprox run`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import typer

from fedprox.commands.options import (
    Changes,
    DataDir,
    DeviceCount,
    Force,
    Log,
    OptionalFile,
    Out,
    Resume,
)
from fedprox.commands.training import file_and_folder, prepare, set_up_jax, train_into
from fedprox.devices.processes import allgather, join_processes
from fedprox.errors import printable, require
from fedprox.experiment import StudyFile, read_study, read_table, run_study_file, train
from fedprox.logs import loggers_of
from fedprox.loop.checkpoint import Checkpoints, stopping_on_signals
from fedprox.report.directory import CHECKPOINTS, RunDirectory
from fedprox.studies.run import Place
from fedprox.terminal import Stopped, say, standard_console

NO_COORDINATOR = "--processes and --process: give --coordinator beside them"

SHARED_INTERVAL = 60.0
"""Seconds between checkpoints of a run of several processes without --checkpoint-every."""

MORE = """With a section [study] it trains a study: the methods at every combination of the
levels, tuned, for one table, figure and report. The same command continues a study that was
interrupted.

With --checkpoint-every, a run that was killed continues with --resume DIR and gives the same
metrics and models, bit for bit. Ctrl-C, SIGTERM or SIGHUP stops the run after the current rounds
and leaves a checkpoint; a second signal, or one outside the rounds, stops it at once.

--resume DIR --set rounds=400 extends a finished run: it continues from its last checkpoint, and
ends with the metrics and models of a run that had 400 rounds from the start.

The name of a model, a method or data may be a function of your own, "package.module:function". The
module is imported, which runs its code: run only files that you trust.

Bad input is reported in one line, with exit status 2."""


def run(
    file: OptionalFile = None,
    settings: Changes = None,
    out: Out = None,
    data_dir: DataDir = None,
    devices: DeviceCount = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds between checkpoints.")
    ] = None,
    resume: Resume = None,
    force: Force = False,
    log: Log = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Share the run with other processes, which connect to HOST:PORT; or slurm.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="P", help="Number of processes. [default: SLURM_NTASKS]")
    ] = None,
    process: Annotated[
        int | None,
        typer.Option(
            metavar="I",
            help="Index of this process. [default: SLURM_PROCID or JOB_COMPLETION_INDEX]",
        ),
    ] = None,
) -> None:
    """Run the experiment in a TOML file.

    It trains every method on the same clients, stragglers and mini-batches, and prints a table. It
    writes a run directory with the metrics, the final models, a figure and an HTML report. `fedprox
    keys` lists the keys of the file, `fedprox examples` has files to start from.
    """
    file, folder = file_and_folder(file, out, resume, settings or (), force=force)
    of_processes = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    if "study" in (table := read_table(file, settings or ())):
        for option, value in {"--log": log, **of_processes}.items():
            require(value is None, f"{option}: not with a section [study]")
        place = Place(folder, force, checkpoint_every, stopping_on_signals)
        _run_study(read_study(str(file), table), place, data_dir, devices)
        return
    resumed = bool(resume)
    loggers = loggers_of(log or (), folder, resume=resumed)
    join = None
    if coordinator is not None:
        join = partial(join_processes, coordinator, processes, process)
    require(join or (processes, process) == (None, None), NO_COORDINATOR)
    console, experiment, resolved = prepare(file, settings, data_dir, devices, join)
    interval = SHARED_INTERVAL if join and not checkpoint_every else None
    checkpoints = Checkpoints(
        folder / CHECKPOINTS, every=checkpoint_every, interval=interval, resume=resumed
    )
    train_methods = partial(train, experiment, resolved, devices=devices, checkpoints=checkpoints)
    if jax.process_index():  # the first process alone writes the results
        if not allgather(0)[0]:  # the run is not complete yet
            with stopping_on_signals(checkpoints):
                train_methods(progress=False)
        return
    directory = RunDirectory(
        folder,
        resolved.table,
        replace=force,
        extend=resumed,
        client_records=resolved.evaluation.client_records,
    )
    allgather(directory.done)
    if directory.done:
        console.print(f"{printable(folder)} is complete; nothing to do")
        return
    train_into(console, directory, train_methods, resolved, checkpoints, loggers)


def _run_study(file: StudyFile, place: Place, data_dir: Path | None, devices: int | None) -> None:
    """Run a study, and print its table and conclusions."""
    set_up_jax(file.clients_per_round, devices)
    console = standard_console()
    try:
        study = run_study_file(file, place, data_dir=data_dir, devices=devices)
    except Stopped as stopped:
        say(f"{stopped}; the same command continues from there")
        raise typer.Exit(128 + stopped.signal) from None
    target = file.target(study)
    tables = [study, *([study.table(measure=target)] if target else [])]
    written = f"{printable(place.out)}: study.json, records.csv, tables, figure, report.html"
    console.print("\n\n".join([*map(str, tables), written]), highlight=False, soft_wrap=True)
