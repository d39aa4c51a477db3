"""The command line: `fedprox run`, `deploy`, `node`, `diagnose`, `report` and other commands."""

import importlib.metadata
import logging
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NamedTuple, NoReturn, cast

import jax
import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from fedprox.bar import Bar
from fedprox.datasets.catalogue import CATALOGUE
from fedprox.datasets.sources import cache_folder, fetch
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import deploy as run_deployment
from fedprox.deployment.flower import NodeConnection, operator_network, serve
from fedprox.deployment.joining import join
from fedprox.deployment.node_file import load_node, read_node_file, read_superlink_file
from fedprox.deployment.run_file import new_run, read_run, write_run
from fedprox.deployment.server import resolve_deployment
from fedprox.deployment.trial import local_nodes
from fedprox.diagnose import diagnose as run_diagnosis
from fedprox.errors import InputError, printable, require
from fedprox.experiment import (
    DEPLOYED,
    Experiment,
    Resolved,
    apply_setting,
    choices,
    example_file,
    load_data,
    read_experiment,
    resolve,
    train,
)
from fedprox.files.lock import locked
from fedprox.files.whole import write_whole
from fedprox.output import safe_streams
from fedprox.papers import ITEMS, select
from fedprox.report.data import catalogue_table, data_figure, statistics_table
from fedprox.report.diagnosis import diagnosis_page
from fedprox.report.directory import CHECKPOINTS, ENDS, NODES, RunDirectory, write_figure
from fedprox.report.network import network_line
from fedprox.report.page import write_report
from fedprox.report.privacy import Plan, privacy_page
from fedprox.report.results import write_results
from fedprox.report.table import (
    best_model_notes,
    early_stop_notes,
    empty_round_notes,
    evaluated_model_notes,
    fault_notes,
    sampling_notes,
    table,
    unsolved_notes,
    validation_notes,
)
from fedprox.reproduce.item import SCALES
from fedprox.reproduce.run import Step, reproduce
from fedprox.reproduce.table import duration
from fedprox.signals import answering, end_now, ended_by
from fedprox.simulation.devices.compilation_cache import use_compilation_cache
from fedprox.simulation.devices.cpu import use_cpu_devices
from fedprox.simulation.devices.processes import allgather, join_processes
from fedprox.simulation.loop.checkpoint import Checkpoints, Stopped, stopping_on_signals
from fedprox.simulation.loop.comparison import Follow
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.results.target import Target

COMMAND_LINE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""ClickException, which has no public name that all versions of typer share: older ones import it
from click, newer ones have a copy of click."""

MANY = 1000
"""Clients that a node may train in a round, from which the number of CPU devices follows."""

SHARED_INTERVAL = 60.0
"""Seconds between checkpoints of a run of several processes without --checkpoint-every."""


class _Command(TyperCommand):
    """A command whose help shows "[required]" where typer 0.20 escapes the bracket for rich."""

    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace("\\[", "[")


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated optimization in heterogeneous networks.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedprox {importlib.metadata.version('fedprox')}")
        raise typer.Exit


@app.callback()
def _before_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


EXAMPLE_FILE = "\n\n".join(f"\b\n{section}" for section in example_file())
"""The example file as paragraphs of the help that click does not wrap (\\b)."""

RUN_HELP = f"""Run the experiment in a TOML file.

It trains every method on the same clients, stragglers and mini-batches, prints a table, and writes
a run directory with the metrics, the final models, a figure and an HTML report.

With --checkpoint-every, a run that was killed continues with --resume DIR and gives the same
metrics and models, bit for bit. Ctrl-C, SIGTERM or SIGHUP stops the run after the current rounds
and leaves a checkpoint; a second signal, or one outside the rounds, stops it at once.

--resume DIR --set rounds=400 extends a finished run: it continues from its last state, and ends
with the metrics and models of a run that had 400 rounds from the start.

The name of a model, a method or data may be a function of your own, "package.module:function". The
module is imported, which runs its code: run only files that you trust.

\b
An experiment file, with every key:

{EXAMPLE_FILE}

Bad input is reported in one line, with exit status 2.
"""


DIAGNOSE_HELP = """Measure how heterogeneous the clients of an experiment are, and suggest a mu.

With evaluation.clients it diagnoses that many clients, drawn at random.

It measures the clients' sizes, label skew, gradients and curvature, states the mu that theory
requires, and suggests one from a short sweep over {0, 0.001, 0.01, 0.1, 1} with the experiment's
solver, cohort and stragglers. The methods of the file are not run.

It writes diagnosis.json and report.html. If --out names the experiment's run directory, they join
its results.

Bad input is reported in one line, with exit status 2.
"""

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key, such as solver.epochs=1 or method.0.mu=[0,1]. Repeatable.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with data files, in place of FEDPROX_DATA or a download."),
]
OptionalFile = Annotated[Path | None, typer.Argument(metavar="FILE.toml", help="The experiment.")]
Out = Annotated[Path | None, typer.Option(help="Run directory. [default: runs/NAME-OF-FILE]")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Continue the run in DIR; in place of FILE.toml."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace another experiment's results in the run directory."),
]


@app.command(cls=_Command, help=RUN_HELP)
def run(
    file: OptionalFile = None,
    settings: Settings = None,
    out: Out = None,
    data_dir: DataDir = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", help="Devices that share a round. [default: all; CPUs: cores]"),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds between checkpoints.")
    ] = None,
    resume: Resume = None,
    force: Force = False,
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
    """Run an experiment file, or resume a run."""
    file, folder = _file_and_folder(file, out, resume, settings or (), force=force)
    join = _join_function(coordinator, processes, process)
    console, experiment, resolved = _prepare(Source(file, settings or (), data_dir), devices, join)
    checkpoints = Checkpoints(
        folder / CHECKPOINTS,
        every=checkpoint_every,
        interval=SHARED_INTERVAL if join is not None and checkpoint_every is None else None,
        resume=resume is not None,
        ends=folder / ENDS,
    )
    train_methods = partial(train, experiment, resolved, devices=devices, checkpoints=checkpoints)
    if jax.process_index():
        _train_without_results(train_methods, checkpoints)
        return
    directory = RunDirectory(folder, resolved.table, replace=force, extend=resume is not None)
    done = resume is not None and directory.complete and directory.extended is None
    allgather(done)
    if done:
        console.print(f"{printable(folder)} is complete; nothing to do")
        return
    _print_start(console, directory, resumed=resume is not None)
    runs = _train_into(directory, train_methods, resolved, checkpoints)
    _show_results(console, runs, resolved.target)
    if checkpoints.made:
        console.print(str(checkpoints))
    console.print(f"\n{printable(directory.path)}: metrics, summary, models, figure, report.html")


class Source(NamedTuple):
    """An experiment as named on the command line: the file, changes to it, and the data folder."""

    file: Path
    settings: Sequence[str]
    data_dir: Path | None


class Prepared(NamedTuple):
    """An experiment whose data are loaded, and the console of its process."""

    console: Console
    experiment: Experiment
    resolved: Resolved


def _file_and_folder(
    file: Path | None,
    out: Path | None,
    resume: Path | None,
    settings: Sequence[str],
    *,
    force: bool,
) -> tuple[Path, Path]:
    """The experiment file and the run directory of `fedprox run`."""
    if resume is None:
        if file is None:
            raise InputError("FILE.toml is missing; or give --resume DIR")
        return file, out or Path("runs") / file.stem
    require(
        file is None and out is None and not force,
        f"--resume {resume}: the experiment is there; leave out FILE, --out, --force",
    )
    known = resume / "experiment.toml"
    require(known.is_file(), f"--resume {resume}: no experiment.toml; name a run directory")
    _require_only_rounds(known, settings)
    return known, resume


def _join_function(
    coordinator: str | None, processes: int | None, process: int | None
) -> Callable[[], None] | None:
    """A function that joins the other processes of a run; None for a single process."""
    if coordinator is not None:
        return partial(join_processes, coordinator, processes, process)
    require(
        processes is None and process is None,
        "--processes and --process: give --coordinator beside them",
    )
    return None


def _train_into(
    directory: RunDirectory,
    train_methods: Callable[..., list[Run]],
    resolved: Resolved,
    checkpoints: Checkpoints,
) -> list[Run]:
    """Train, and write each record at once and the results at the end."""
    with directory, answering(partial(_interrupted, directory, checkpoints)):
        with stopping_on_signals(checkpoints):
            runs = train_methods(directory.record)
        # no clients.json if other processes, or nodes, have the clients' rows
        here = jax.process_count() == 1 and resolved.table["data"]["name"] != DEPLOYED
        measured = (resolved.federation, resolved.model) if here else ()
        write_results(directory, runs, resolved.target, *measured)
        checkpoints.remove()
    return runs


def _show_results(console: Console, runs: Sequence[Run], target: Target | None) -> None:
    """Print the table of results and the notes on it."""
    console.print(table(runs, target))
    for notes in (
        evaluated_model_notes,
        validation_notes,
        best_model_notes,
        sampling_notes,
        early_stop_notes,
        empty_round_notes,
        unsolved_notes,
        fault_notes,
    ):
        for line in notes(runs):
            console.print(line)


def _train_without_results(train_methods: Callable[..., Any], checkpoints: Checkpoints) -> None:
    """Train in a process other than the first, which alone writes the results."""
    if allgather(0)[0]:  # the run is already complete
        return
    with stopping_on_signals(checkpoints):
        train_methods(progress=False)
    checkpoints.remove()


def _interrupted(
    directory: RunDirectory, checkpoints: Checkpoints, number: signal.Signals
) -> NoReturn:
    """End a run at once, and say what was saved."""
    saved = ""
    if directory.complete:
        saved = f"; {directory.path} is complete" if directory.begun else ""
    elif checkpoints.exist:
        command = _resume_command(directory.path, sys.argv[1:])
        saved = f"; continue from the last checkpoint with: {command}"
    elif directory.begun:
        saved = f"; {directory.path / 'metrics.jsonl'} holds the rounds evaluated so far"
    end_now(number, printable(ended_by(number) + saved))


def _require_only_rounds(file: Path, settings: Sequence[str]) -> None:
    """Raise `InputError` if settings change anything but the rounds of an experiment."""
    before, now = read_experiment(file), read_experiment(file, settings)
    for key, value in before.model_dump().items():
        require(
            key == "rounds" or value == now.model_dump()[key],
            f"--set {key}: with --resume only rounds can change",
        )


def _print_start(console: Console, directory: RunDirectory, *, resumed: bool) -> None:
    """Print which results a run replaces or continues, and changed versions."""
    path = printable(directory.path)
    if directory.replaced:
        line = f"{path}: --force replaces the results {printable(directory.replaced)}"
        console.print(line, soft_wrap=True)
    if not resumed:
        return
    if directory.extended is not None:
        rounds = directory.experiment["rounds"]
        console.print(f"{path}: continues from round {directory.extended} to {rounds}")
    elif not directory.checkpoints.is_dir() and not directory.ends.is_dir():
        console.print(f"{path}: no checkpoint; the run starts from the beginning")
    if changed := directory.changed_versions():
        console.print(
            f"{path}: begun with {', '.join(changed)}; the last bits may differ",
            soft_wrap=True,
        )


DEPLOY_HELP = """Run an experiment on nodes that keep their own data, over a network.

With --local N it is a trial on this machine: a SuperLink and N nodes start as processes on the
loopback, with certificates and keys made for the occasion, and the experiment's clients are dealt
out to them. With --superlink FILE it is a real federation: each node runs `fedprox node`, and FILE
says how to reach the SuperLink.

It trains every method as `fedprox run` does, on all nodes that have joined, and writes the same run
directory. [deployment] says how many nodes to wait for, and for how long. A checkpoint is written
after every round, or as --checkpoint-every says; --resume DIR continues a run that was stopped or
killed, also with more rounds.

Bad input is reported in one line, with exit status 2.
"""


@app.command(cls=_Command, help=DEPLOY_HELP)
def deploy(
    file: OptionalFile = None,
    local: Annotated[
        int | None, typer.Option(metavar="N", help="Try it on this machine, with N nodes.")
    ] = None,
    superlink: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="How to reach the SuperLink of the nodes."),
    ] = None,
    settings: Settings = None,
    out: Out = None,
    data_dir: DataDir = None,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", help="Rounds between checkpoints.")
    ] = 1,
    resume: Resume = None,
    force: Force = False,
) -> None:
    """Run an experiment file on nodes."""
    require(
        (local is None) != (superlink is None),
        "give one of --local N, for a trial on this machine, and --superlink FILE.toml",
    )
    file, folder = _file_and_folder(file, out, resume, settings or (), force=force)
    elsewhere = {} if superlink is None else {"data": {"name": DEPLOYED}}
    experiment, console = read_experiment(file, settings or (), elsewhere), _console()
    logging.basicConfig(format="fedprox: %(message)s", level=logging.WARNING)
    use_compilation_cache(cache_folder() / "xla")
    checkpoints = Checkpoints(
        folder / CHECKPOINTS, every=checkpoint_every, resume=resume is not None, ends=folder / ENDS
    )
    with ExitStack() as stack:
        if superlink is not None:
            known = read_superlink_file(superlink)
            network = stack.enter_context(
                operator_network(known.address, Path(known.ca_certificate), Path(known.secret))
            )
        else:
            options = () if data_dir is None else ("--data-dir", str(data_dir.absolute()))
            assert local is not None
            network = stack.enter_context(local_nodes(experiment, local, folder / NODES, options))
        conversation = Conversation(network, patience=experiment.deployment.patience)
        wanted = local or experiment.deployment.nodes
        joined = join(conversation, wanted, partial(_show_joined, console, wanted))
        run = new_run() if resume is None else read_run(folder)
        deployment = resolve_deployment(experiment, joined, run)
        _require_same_nodes(resume, experiment.data, deployment.resolved.table["data"])
        directory = RunDirectory(
            folder, deployment.resolved.table, replace=force, extend=resume is not None
        )
        if resume is not None and directory.complete and directory.extended is None:
            console.print(f"{printable(folder)} is complete; nothing to do")
            return
        _print_start(console, directory, resumed=resume is not None)

        def train_methods(record: Callable[[Record], None]) -> list[Run]:
            def show(each: Record) -> None:
                if not directory.begun and resume is None:
                    write_run(folder, run)
                record(each)
                console.print(printable(network_line(each)), highlight=False, soft_wrap=True)

            return run_deployment(
                conversation, deployment, Follow(checkpoints, show, None, progress=False)
            )

        runs = _train_into(directory, train_methods, deployment.resolved, checkpoints)
    _show_results(console, runs, deployment.resolved.target)
    console.print(str(checkpoints))
    console.print(f"\n{printable(directory.path)}: metrics, summary, models, figure, report.html")


def _show_joined(console: Console, wanted: int, names: Sequence[str]) -> None:
    """Print which nodes have joined."""
    count = f"{len(names)} of {max(wanted, len(names))} nodes have joined"
    listed = printable(", ".join(sorted(names))) or "none"
    console.print(f"{count}: {listed}", soft_wrap=True, highlight=False)


def _require_same_nodes(
    resume: Path | None, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise `InputError` if a run is resumed on other nodes or clients."""
    kinds = "nodes", "clients", "training_rows"
    had, have = (
        ", ".join(f"{table.get(kind)} {kind.replace('_', ' ')}" for kind in kinds)
        for table in (before, now)
    )
    require(
        resume is None or before == now,
        f"--resume {resume}: the run had {had}; joined have {have}: the same nodes must be there",
    )


NODE_HELP = """Hold clients for deployments: answer the requests of `fedprox deploy`.

NODE.toml says which data the node holds, where its state lies, which policy it follows, and how to
reach the SuperLink. The node runs the methods, models and solvers of its own library: no code
travels to it. It keeps a SuperNode of Flower running beside it.

Bad input is reported in one line, with exit status 2.
"""


@app.command(cls=_Command, help=NODE_HELP)
def node(
    file: Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's file.")],
    data_dir: DataDir = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", help="Devices that share a round. [default: all; CPUs: cores]"),
    ] = None,
) -> None:
    """Answer the requests of deployments."""
    known = read_node_file(file)
    use_cpu_devices(clients_per_round=MANY, devices=devices)
    use_compilation_cache(cache_folder() / "xla")
    logging.basicConfig(format="fedprox: %(message)s", level=logging.WARNING)
    logging.getLogger("fedprox").setLevel(logging.INFO)
    with Bar("loading the data"):
        held = load_node(known, data_dir)
    _say(f"node {known.name}: {held.federation}")
    connection = NodeConnection(
        known.superlink, Path(known.ca_certificate), Path(known.key), Path(known.folder)
    )
    stop = threading.Event()

    def end(number: signal.Signals) -> str | None:
        if stop.is_set():
            return None
        stop.set()
        return f"{number.name}: the node ends after its current answer; once more to end at once"

    # client state is a model or a gradient of one client's data
    Path(known.folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(Path(known.folder)), answering(end):
        serve(held.answer, connection, stop)


REPORT_HELP = """Write the HTML report of run directories.

One HTML page has figures with the runs of all directories, and a section for each directory with
its settings, results, interactive figures, accuracies by client and, if there is one, its
diagnosis. The page opens offline and needs no other file. An interrupted run is shown up to its
last evaluation.
"""


@app.command(cls=_Command, help=REPORT_HELP)
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Directories that `run` wrote.")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write the report of some run directories."""
    write_report(directories, out)
    print(printable(out))


@app.command(cls=_Command, help=DIAGNOSE_HELP)
def diagnose(
    file: File,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for diagnosis.json. [default: runs/NAME-OF-FILE-diagnosis]"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Diagnose an experiment's federation."""
    console, experiment, resolved = _prepare(Source(file, settings or (), data_dir))
    seeds = experiment.seed if isinstance(experiment.seed, list) else [experiment.seed]
    require(seeds, "seed: none given; at least one is needed")
    folder = out or Path("runs") / f"{file.stem}-diagnosis"
    with RunDirectory(folder, resolved.table) as directory:
        diagnosis = run_diagnosis(
            resolved.federation,
            resolved.model,
            solver=resolved.solver,
            cohort=resolved.cohort,
            systems=resolved.systems,
            rounds=experiment.rounds,
            evaluation=resolved.evaluation,
            seed=seeds[0],
            initial=resolved.initial,
        )
        directory.diagnosis(diagnosis.document())
        write_report([directory.path], directory.path / "report.html")
    console.print(diagnosis_page(diagnosis))
    console.print(f"\n{printable(directory.path)}: diagnosis.json, report.html")


PRIVACY_HELP = """Compute the privacy of an experiment without training.

It prints what the section [privacy] of the file means for each method: the noise for its epsilon,
epsilon after each tenth of the rounds with each accountant, what larger cohorts or fewer rounds
would give, what the limit of the cohort costs, and the whole guarantee with what it assumes.

Bad input is reported in one line, with exit status 2.
"""


@app.command("privacy", cls=_Command, help=PRIVACY_HELP)
def show_privacy(file: File, settings: Settings = None, data_dir: DataDir = None) -> None:
    """Print the guarantee of an experiment's privacy."""
    console, experiment, resolved = _prepare(Source(file, settings or (), data_dir))
    if resolved.privacy is None:
        raise InputError(f"{file}: the section [privacy] is missing")
    clients = len(resolved.federation)
    plan = Plan(resolved.privacy, resolved.cohort, clients, experiment.rounds)
    with Bar("accounting"):
        page = privacy_page(plan, resolved.methods)
    console.print(page)


def _prepare(
    source: Source, devices: int | None = None, join: Callable[[], None] | None = None
) -> Prepared:
    """Set up JAX for an experiment and load its data; `join` connects to the other processes."""
    experiment = read_experiment(source.file, source.settings)
    use_cpu_devices(experiment.cohort.clients_per_round, devices)
    use_compilation_cache(cache_folder() / "xla")
    if join is not None:
        join()
    console = Console(quiet=True) if jax.process_index() else _console()
    with Bar("loading the data"):
        resolved = resolve(experiment, source.data_dir)
    return Prepared(console, experiment, resolved)


REPRODUCE_HELP = """Reproduce a figure or table of a paper, and compare it with the paper's numbers.

Without ITEM it lists all items. ITEM is a name, all items of a paper ("fedprox/"), or "all". DIR
gets a folder for each item with a table, its data, a report and, if it has curves, a figure. The
run directories are in DIR/runs; complete ones are not run again.
"""


@app.command("reproduce", cls=_Command, help=REPRODUCE_HELP)
def reproduce_items(
    name: Annotated[str | None, typer.Argument(metavar="[ITEM]", help="What to run.")] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="short (a fifth of the rounds or less, at most two seeds) or paper (at most five)."
        ),
    ] = "short",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="[default: runs/reproduce-SCALE]")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the items that a name selects."""
    console = _console()
    if name is None:
        console.print(_listing())
        return
    require(scale in SCALES, f"--scale {scale}; it must be {' or '.join(SCALES)}")
    items = select(name)
    folder = out or Path("runs") / f"reproduce-{scale}"
    use_cpu_devices(clients_per_round=10)
    use_compilation_cache(cache_folder() / "xla")
    for key, item in items.items():
        console.print(f"{key}: {item.title}; about {duration(item.seconds[scale])} on two cores")
        text = reproduce(key, item, SCALES[scale], folder, data_dir, _show_step)
        console.print(f"\n{text}", soft_wrap=True, highlight=False)
        console.print(f"{printable(folder / key)}: table.md and what it is made from\n")


def _show_step(step: Step) -> None:
    print(f"{step.number} of {step.of}: {step.name}", file=sys.stderr)


data = typer.Typer(help="The data sets: list them, fetch their files, describe their clients.")
app.add_typer(data, name="data")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set that `data list` names.")]


@data.command("list", cls=_Command)
def list_data(data_dir: DataDir = None) -> None:
    """List all data sets: content, papers, partitions, and where the files are."""
    _console().print(catalogue_table(data_dir))


@data.command("fetch", cls=_Command)
def fetch_data(
    name: Name,
    data_dir: DataDir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also files that only some options need.")
    ] = False,
) -> None:
    """Download a data set's files into the cache, and print where they are.

    Checksums are checked if they are known. A file that is in the data folder is not downloaded.
    """
    require(name in CATALOGUE, f"{name!r} is not a data set; {choices(name, CATALOGUE)}")
    entry = CATALOGUE[name]
    if not entry.files:
        how = "read from data.path" if entry.brought else "generated"
        print(f"{name}: nothing to fetch; it is {how}")
    shown = set()
    for file in sorted(entry.files, key=lambda file: not file.source.folders):
        path = file.at_hand(data_dir)
        if path is None and file.use and not everything:
            print(f"{file.source.name}: not fetched, for {file.use} alone; --all fetches it too")
            continue
        cached = path is not None and path.is_relative_to(cache_folder())
        if path is None or (cached and file.source.folders):
            path = fetch(file.source, file.folder)
        if path not in shown:  # one file may replace several others
            print(printable(path))
        shown.add(path)


@data.command("describe", cls=_Command)
def describe_data(
    name: Name,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option, as in [data] of an experiment file: partition=iid. Repeatable.",
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figure. [default: runs/NAME-data]")
    ] = None,
) -> None:
    """Compare a data set's statistics with the paper's, and plot its clients' sizes and labels."""
    console = _console()
    table: dict[str, Any] = {}
    for setting in settings or ():
        apply_setting(table, setting)
    require("name" not in table, f"--set name={table.get('name')}: the name is {name!r} already")
    with Bar("loading the data"):
        federation, table = load_data({"name": name, **table}, data_dir)
        options = ", ".join(f"{k} = {v}" for k, v in table.items() if k != "name")
        drawn = data_figure(federation, f"{name}: {options}")
    folder = out or Path("runs") / f"{name}-data"
    folder.mkdir(parents=True, exist_ok=True)
    write_figure(folder, drawn, "data")
    console.print(f"{name}: {printable(options)}\n", highlight=False)
    console.print(statistics_table(federation, name, table.get("partition", "")))
    console.print(f"\n{printable(folder)}: data.png, data.svg", highlight=False, soft_wrap=True)


@app.command("examples", cls=_Command)
def show_examples(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The example to print.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write it to a new file instead.")
    ] = None,
) -> None:
    """List the example experiment files, or print one, to start from."""
    folder = Path(__file__).parent / "examples"
    if not folder.is_dir():  # a source checkout, where the package does not hold a copy
        folder = Path(__file__).parents[2] / "examples"
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name is None:
        require(out is None, "--out: name an example")
        for stem, path in known.items():
            lines = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
            about = " ".join(line.removeprefix("# ") for line in lines)
            print(fill(f"{stem:<14}{about}", 100, subsequent_indent=" " * 14))
        return
    require(name in known, f"{name!r} is not an example; {choices(name, known)}")
    content = known[name].read_text(encoding="utf-8")
    if out is None:
        print(content, end="")
        return
    require(not out.exists(), f"--out: {out} exists already; name a new file")
    write_whole(out, content.encode())
    print(out)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120, markup=False)


def _listing() -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("item", "what", "data", *SCALES):
        shown.add_column(header, no_wrap=header == "item")
    for key, item in ITEMS.items():
        times = (duration(item.seconds[scale]) for scale in SCALES)
        left_out = f" (without {', '.join(item.missing)})" if item.missing else ""
        shown.add_row(key, item.title, ", ".join(item.data) + left_out, *times)
    return shown


MACHINE_OPTIONS = (
    "--data-dir",
    "--devices",
    "--coordinator",
    "--processes",
    "--process",
    "--local",
    "--superlink",
)
"""Options that describe the machine, not the experiment."""

SUM_FAILED = "gloo|nccl|coordination"
"""Pattern in the error of a failed sum over processes."""

LOST = (
    "process {}: another process has ended, or cannot be reached, and so the run ends ({}); "
    "continue from its last checkpoint with --resume"
)


def main() -> None:
    """Entry point: bad input and files that cannot be written end in one line, status 2."""
    with safe_streams(), answering(end_now):
        try:
            _main()
        except Exception:
            if not jax.distributed.is_initialized():
                raise
            traceback.print_exc()
            _leave(1)


def _main() -> None:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except COMMAND_LINE_ERROR as error:
        _fail(error.format_message())
    except InputError as error:
        _fail(str(error))
    except Stopped as stopped:
        advice = "the same command continues from there"
        if sys.argv[1:2] in (["run"], ["deploy"]):
            advice = f"continue with: {_resume_command(stopped.folder.parent, sys.argv[1:])}"
        _fail(f"{stopped}; {advice}", 128 + stopped.signal)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # a lost process raises either, depending on where its sum is awaited
        if jax.distributed.is_initialized() and re.search(SUM_FAILED, str(error), re.I):
            _fail(LOST.format(jax.process_index(), str(error).partition("\n")[0]), 1)
        _out_of_memory(error)
    except MemoryError as error:
        _out_of_memory(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    raise SystemExit(status or 0)


def _resume_command(directory: Path, arguments: list[str]) -> str:
    """The command that resumes a run with the same machine options.

    >>> arguments = ["run", "a.toml", "--devices=2", "--out", "b", "--data-dir", "c d"]
    >>> _resume_command(Path("runs/a"), arguments)
    "fedprox run --resume runs/a --devices=2 --data-dir 'c d'"
    """
    command = ["fedprox", "run", "--resume", str(directory)]
    if arguments[:1] == ["deploy"]:
        command[1] = "deploy"
    for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, value = option.partition("=")
        if name in MACHINE_OPTIONS:
            command += [option] if value else [option, following]
    return shlex.join(command)


def _out_of_memory(error: Exception) -> NoReturn:
    if not isinstance(error, MemoryError) and "EXHAUSTED" not in str(error):
        raise error
    _fail("out of memory: the data, the model or the cohort is too large for this machine")


def _fail(message: str, status: int = 2) -> NoReturn:
    _say(message)
    _leave(status)


def _leave(status: int) -> NoReturn:
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # an orderly exit waits for the other processes, which wait for this one
    raise SystemExit(status)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    _say(str(message))


def _say(message: str) -> None:
    print(f"fedprox: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
