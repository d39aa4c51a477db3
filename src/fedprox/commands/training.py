"""Shared by the commands that train: an experiment's data, and training into a run directory."""

import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import jax
from rich.console import Console

from fedprox.commands.options import Changes, resume_command
from fedprox.datasets.sources import cache_folder
from fedprox.devices.compilation_cache import use_compilation_cache
from fedprox.devices.mesh import use_cpu_devices
from fedprox.errors import InputError, plural, printable, require
from fedprox.experiment import DEPLOYED, Experiment, Resolved, read_experiment, resolve
from fedprox.jax_internals import require_backend
from fedprox.loop.checkpoint import Checkpoints, stopping_on_signals
from fedprox.loop.following import Callback
from fedprox.report.directory import RunDirectory, write_results
from fedprox.report.live import Live, clean_up
from fedprox.report.table import note_on_costs, notes_on, table, warnings_on
from fedprox.results.run import Run
from fedprox.terminal import Bar, answering, end_now, ended_by, standard_console


def set_up_jax(
    clients_per_round: int, devices: int | None, join: Callable[[], None] | None = None
) -> None:
    """Choose the devices for rounds of so many clients, and `join` the other processes."""
    use_cpu_devices(clients_per_round, devices)
    use_compilation_cache(cache_folder() / "xla")
    if join:
        join()
    require_backend()


def prepare(
    file: Path,
    settings: Changes,
    data_dir: Path | None,
    devices: int | None = None,
    join: Callable[[], None] | None = None,
) -> tuple[Console, Experiment, Resolved]:
    """Read an experiment, set up JAX and load its data; `join` connects to the other processes."""
    experiment = read_experiment(file, settings or ())
    console, resolved = load(experiment, data_dir, devices, join)
    return console, experiment, resolved


def load(
    experiment: Experiment,
    data_dir: Path | None,
    devices: int | None = None,
    join: Callable[[], None] | None = None,
) -> tuple[Console, Resolved]:
    """Set up JAX for an experiment and load its data; see `prepare`."""
    set_up_jax(experiment.cohort.clients_per_round, devices, join)
    console = Console(quiet=True) if jax.process_index() else standard_console()
    with Bar("loading the data"):
        resolved = resolve(experiment, data_dir)
    return console, resolved


def file_and_folder(
    file: Path | None,
    out: Path | None,
    resume: Path | None,
    settings: Sequence[str],
    *,
    force: bool,
) -> tuple[Path, Path]:
    """The experiment file and the run directory of `fedprox run` or `fedprox deploy`."""
    if not resume:
        if not file:
            raise InputError("FILE.toml is missing; or give --resume DIR")
        return file, out or Path("runs") / file.stem
    require(
        not (file or out or force),
        f"--resume {resume}: the experiment is there; leave out FILE, --out, --force",
    )
    known = resume / "experiment.toml"
    require(known.is_file(), f"--resume {resume}: no experiment.toml; name a run directory")
    _require_extension(known, settings)
    return known, resume


def train_into(
    console: Console,
    directory: RunDirectory,
    train_methods: Callable[..., list[Run]],
    resolved: Resolved,
    checkpoints: Checkpoints,
    callbacks: Sequence[Callback] = (),
) -> list[Run]:
    """Train, given callbacks, write each record at once and the results at the end, and print."""
    _print_start(console, directory)
    with directory, answering(partial(_interrupted, directory, checkpoints)):
        live = Live(directory, checkpoints)
        ours = [Callback(on_record=directory.record), Callback(on_record=live.record)]
        with stopping_on_signals(checkpoints):
            try:
                runs = train_methods([*ours, *callbacks], on_progress=live.progress)
            finally:
                live.end()
        clean_up(directory.path)
        # no clients.json if other processes, or nodes, have the clients' rows
        here = jax.process_count() == 1 and resolved.table["data"]["name"] != DEPLOYED
        clients = (resolved.federation, resolved.model) if here else None
        write_results(directory, runs, resolved.target, clients)
    console.print(table(runs, resolved.target))
    for line in (*note_on_costs(runs, resolved.target), *notes_on(runs), *warnings_on(runs)):
        console.print(line)
    if checkpoints.made:
        console.print(str(checkpoints))
    console.print(f"\n{printable(directory.path)}: metrics, summary, models, figure, report.html")
    return runs


def _interrupted(
    directory: RunDirectory, checkpoints: Checkpoints, number: signal.Signals
) -> NoReturn:
    """End a run at once, and say what was saved."""
    saved = ""
    if directory.complete:
        saved = f"; {directory.path} is complete" if directory.begun else ""
    elif checkpoints.exist:
        command = resume_command(directory.path, sys.argv[1:])
        saved = f"; continue from the last checkpoint with: {command}"
    elif directory.begun:
        saved = f"; {directory.path / 'metrics.jsonl'} holds the rounds evaluated so far"
    end_now(number, printable(ended_by(number) + saved))


def _require_extension(file: Path, settings: Sequence[str]) -> None:
    """Raise `InputError` if settings change an experiment in more than its rounds.

    Noise for an epsilon is calibrated to all rounds of a run, so these cannot change either.
    """
    before, now = read_experiment(file), read_experiment(file, settings)
    changed = now.model_dump()
    for key, value in before.model_dump().items():
        further = ""
        if key == "seed" and (more := [s for s in now.seeds if s not in before.seeds]):
            further = f"; train the others on their own: {file} --set seed={more} --out FOLDER"
        require(
            key == "rounds" or value == changed[key],
            f"--set {key}: with --resume only rounds can change{further}",
        )
    epsilon = now.privacy and now.privacy.epsilon
    require(
        not epsilon or now.rounds == before.rounds,
        f"--set rounds={now.rounds}: the noise is that of privacy.epsilon = {epsilon} for the "
        f"{plural(before.rounds, 'round')} of {file.parent}, and other rounds would have needed "
        "other noise from the start; run it anew",
    )


def _print_start(console: Console, directory: RunDirectory) -> None:
    """Print which results a run replaces or continues, and changed versions."""
    path = printable(directory.path)
    if directory.replaced:
        line = f"{path}: --force replaces the results {printable(directory.replaced)}"
        console.print(line, soft_wrap=True)
    if not directory.resumes:
        return
    if directory.extended:
        rounds = directory.experiment["rounds"]
        console.print(f"{path}: continues from round {directory.extended} to {rounds}")
    elif not directory.checkpoints.is_dir():
        console.print(f"{path}: no checkpoint; the run starts from the beginning")
    if changed := directory.changed_versions():
        line = f"{path}: begun with {', '.join(changed)}; the last bits may differ"
        console.print(line, soft_wrap=True)
