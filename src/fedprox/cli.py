"""The command line: `fedprox run`, `deploy`, `node`, `diagnose`, `report` and other commands."""

import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NoReturn, cast

import jax
import typer
from rich.console import Console
from typer.core import TyperCommand

from fedprox import __version__
from fedprox.commands.deployment import deploy, node
from fedprox.commands.federation import certificates, superlink
from fedprox.commands.runs import (
    Changes,
    DataDir,
    DeviceCount,
    ExperimentFile,
    Force,
    Log,
    OptionalFile,
    Out,
    Resume,
    file_and_folder,
    resume_command,
    say,
    set_up_jax,
    standard_console,
    train_into,
)
from fedprox.datasets import CATALOGUE
from fedprox.datasets.sources import at_hand, cache_folder, fetch
from fedprox.devices.processes import allgather, join_processes
from fedprox.diagnostics.diagnosis import diagnose as run_diagnosis
from fedprox.diagnostics.privacy_audit import NOT_AUDITED, at_points, audit_privacy
from fedprox.errors import InputError, choices, printable, require, users_level
from fedprox.experiment import (
    Experiment,
    Resolved,
    StudyFile,
    apply_setting,
    help_sections,
    load_data,
    read_experiment,
    read_study,
    read_table,
    resolve,
    run_study_file,
    train,
)
from fedprox.files.whole import write_whole
from fedprox.logs import loggers_of
from fedprox.loop.checkpoint import Checkpoints, Stopped, stopping_on_signals
from fedprox.parts.part import Part
from fedprox.parts.privacy.setting import check_delta, delta_warnings
from fedprox.protocol.method import checked_methods
from fedprox.protocol.protocol import Protocol
from fedprox.report.data import (
    catalogue_table,
    data_figure,
    population_figure,
    population_words,
    statistics_table,
    work_seconds,
)
from fedprox.report.directory import CHECKPOINTS, RunDirectory, write_figure
from fedprox.report.live import ask_to_stop, status_lines
from fedprox.report.page import diagnosis_page, write_report
from fedprox.report.privacy import privacy_page
from fedprox.studies.run import Place
from fedprox.terminal import Bar, answering, end_now, safe_streams

COMMAND_LINE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""ClickException, which has no public name that all versions of typer share: older ones import it
from click, newer ones have a copy of click."""

NO_COORDINATOR = "--processes and --process: give --coordinator beside them"

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
        print(f"fedprox {__version__}")
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


MORE_ON_RUN = """With a section [study] it trains a study: the methods at every combination of the
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


@app.command(cls=_Command, epilog=MORE_ON_RUN)
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

    It trains every method on the same clients, stragglers and mini-batches, prints a table, and
    writes a run directory with the metrics, the final models, a figure and an HTML report.
    `fedprox keys` lists the keys of the file, `fedprox examples` has files to start from.
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
    console, experiment, resolved = _prepare(file, settings, data_dir, devices, join)
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
        _fail(f"{stopped}; the same command continues from there", 128 + stopped.signal)
    target = file.target(study)
    tables = [study, *([study.table(measure=target)] if target else [])]
    written = f"{printable(place.out)}: study.json, records.csv, tables, figure, report.html"
    console.print("\n\n".join([*map(str, tables), written]), highlight=False, soft_wrap=True)


app.command(cls=_Command)(deploy)
app.command(cls=_Command)(node)
app.command(cls=_Command)(certificates)
app.command(cls=_Command)(superlink)


Directory = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Where the run or the study writes.")
]


@app.command("status", cls=_Command)
def show_status(directory: Directory) -> None:
    """Say how far a run or a study is, of a deployment also what its nodes did.

    The run's process writes the same to `status.json`, and for the textfile collector of
    Prometheus' node_exporter to `metrics.prom`, in its directory. Once a minute a run writes the
    report anew.
    """
    for line in status_lines(directory, time.time()):
        print(printable(line))


@app.command("stop", cls=_Command)
def stop_run(directory: Directory) -> None:
    """Let a run or a study stop after its current rounds, with a checkpoint, as Ctrl-C does.

    A run continues with --resume RUN_DIR, a study with the same command.
    """
    print(f"{printable(directory)}: {ask_to_stop(directory)} stops after its current rounds")


@app.command(cls=_Command)
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Directories that `run` wrote.")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write the HTML report of run directories.

    One HTML page has figures with the runs of all directories, and a section for each directory
    with its settings, results, interactive figures, accuracies by client and, if there is one, its
    diagnosis. The page opens offline and needs no other file. An interrupted run is shown up to its
    last evaluation.
    """
    write_report(directories, out)
    print(printable(out))


@app.command(cls=_Command)
def diagnose(
    file: ExperimentFile,
    settings: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for diagnosis.json. [default: runs/NAME-OF-FILE-diagnosis]"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Measure how heterogeneous the clients of an experiment are, and suggest a mu.

    With evaluation.clients it diagnoses that many clients, drawn at random.

    It measures the clients' sizes, label skew, gradients and curvature, states the mu that theory
    requires, and suggests one from a short sweep over {0, 0.001, 0.01, 0.1, 1} with the
    experiment's solver, cohort and stragglers. The methods of the file are not run.

    It writes diagnosis.json and report.html. If --out names the experiment's run directory, they
    join its results.

    Bad input is reported in one line, with exit status 2.
    """
    console, experiment, resolved = _prepare(file, settings, data_dir)
    require(experiment.seeds, "seed: none given; at least one is needed")
    folder = out or Path("runs") / f"{file.stem}-diagnosis"
    with RunDirectory(folder, resolved.table) as directory:
        diagnosis = run_diagnosis(
            resolved.federation,
            resolved.model,
            solver=resolved.solver,
            cohort=resolved.cohort,
            systems=resolved.systems,
            population=resolved.population,
            rounds=experiment.rounds,
            evaluation=resolved.evaluation,
            seed=experiment.seeds[0],
            initial=resolved.initial,
        )
        directory.diagnosis(diagnosis.document())
        write_report([directory.path], directory.path / "report.html")
    console.print(diagnosis_page(diagnosis))
    console.print(f"\n{printable(directory.path)}: diagnosis.json, report.html")


@app.command("privacy", cls=_Command)
def show_privacy(file: ExperimentFile, settings: Changes = None, data_dir: DataDir = None) -> None:
    """Compute the privacy of an experiment without training.

    It prints what the section [privacy] of the file means for each method: the noise for its
    epsilon, epsilon after each tenth of the rounds with each accountant, what larger cohorts or
    fewer rounds would give, what the limit of the cohort costs, and the whole guarantee with what
    it assumes. For examples it prints the noise, epsilon of the worst client and the guarantee.

    Bad input is reported in one line, with exit status 2.
    """
    console, experiment, resolved = _prepare(file, settings, data_dir)
    if not resolved.privacy:
        raise InputError(f"{file}: the section [privacy] is missing")
    sizes = resolved.federation.train.sizes
    check_delta(resolved.privacy, sizes)
    for line in delta_warnings(resolved.privacy, sizes):
        warnings.warn(line, stacklevel=users_level())
    with Bar("accounting"):
        protocol = Protocol(**resolved.settings, seeds=tuple(experiment.seeds))
        methods = [m for m in resolved.methods if not (protocol.hides_clients and m.pooled)]
        page = privacy_page(resolved.privacy, checked_methods(protocol, methods))
    console.print(page)


@app.command("audit-privacy", cls=_Command)
def audit_privacy_of(
    file: ExperimentFile,
    settings: Changes = None,
    data_dir: DataDir = None,
    devices: DeviceCount = None,
    canaries: Annotated[int, typer.Option(metavar="N", help="Clients, or rows, to add.")] = 1000,
    confidence: Annotated[
        float, typer.Option(metavar="C", help="Confidence of the lower bound.")
    ] = 0.95,
) -> None:
    """Audit the privacy of an experiment by canaries.

    It trains each method and sweep point of the file, with clients or rows that take part or not by
    a coin, guesses the coins from what the run releases, and prints a lower bound of epsilon beside
    the printed one. It runs with the first seed, and leaves out targets, selection and evaluations.
    A lower bound above the printed epsilon refutes the guarantee, and the exit status is then 1. A
    small one proves nothing. It needs the extra jax-privacy.

    Bad input is reported in one line, with exit status 2.
    """
    console, experiment, resolved = _prepare(file, settings, data_dir, devices)
    if not resolved.privacy:
        raise InputError(f"{file}: the section [privacy] is missing")
    require(experiment.seeds, "seed: none given; at least one is needed")
    given = {k: v for k, v in resolved.settings.items() if k not in (*NOT_AUDITED, "evaluation")}
    refuted = False
    for method in resolved.methods:
        if method.pooled and resolved.privacy.of_clients:
            continue  # it has no clients to hide
        for name, chosen in at_points(method, resolved.settings["solver"]):
            audit = audit_privacy(
                method=chosen,
                canaries=canaries,
                confidence=confidence,
                seed=experiment.seeds[0],
                **given,
            )
            console.print(f"{name}\n{audit}\n", highlight=False, soft_wrap=True)
            refuted |= audit.refuted
    if refuted:
        raise typer.Exit(1)


def _prepare(
    file: Path,
    settings: Changes,
    data_dir: Path | None,
    devices: int | None = None,
    join: Callable[[], None] | None = None,
) -> tuple[Console, Experiment, Resolved]:
    """Set up JAX for an experiment and load its data; `join` connects to the other processes."""
    experiment = read_experiment(file, settings or ())
    set_up_jax(experiment.cohort.clients_per_round, devices, join)
    console = Console(quiet=True) if jax.process_index() else standard_console()
    with Bar("loading the data"):
        resolved = resolve(experiment, data_dir)
    return console, experiment, resolved


data = typer.Typer(help="The data sets: list them, fetch their files, describe their clients.")
app.add_typer(data, name="data")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set that `data list` names.")]


@data.command("list", cls=_Command)
def list_data(data_dir: DataDir = None) -> None:
    """List all data sets: content, papers, partitions, and where the files are."""
    standard_console().print(catalogue_table(data_dir))


@data.command("fetch", cls=_Command)
def fetch_data(
    name: Name,
    data_dir: DataDir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also files that only some options need.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Also files without a published checksum.")
    ] = False,
) -> None:
    """Download a data set's files into the cache, and print where they are.

    Checksums are checked. A file that is in the data folder is not downloaded.
    """
    require(name in CATALOGUE, f"{name!r} is not a data set; {choices(name, CATALOGUE)}")
    entry = CATALOGUE[name]
    if not entry.files:
        how = f"read from data.{entry.brought}" if entry.brought else "generated"
        print(f"{name}: nothing to fetch; it is {how}")
    shown = set()
    for file in entry.files:
        path = at_hand(file, data_dir)
        if file.use and not (path or everything):
            print(f"{file.name}: not fetched, for {file.use} alone; --all fetches it too")
            continue
        if not path or path.is_relative_to(cache_folder()):
            path = fetch(file, unverified=unverified)
        if path not in shown:  # one file may replace several others
            print(printable(path))
        shown.add(path)


@data.command("describe", cls=_Command)
def describe_data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.toml", help="A data set that `data list` names, or an experiment."
        ),
    ],
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
    """Compare a data set's statistics with the paper's, and plot its clients' sizes and labels.

    An experiment file has its [data] described, and the devices of its [population].
    """
    file = Path(name)
    if described := file.suffix == ".toml":
        console, experiment, resolved = _prepare(file, settings, data_dir)
        federation, table, title = resolved.federation, resolved.table["data"], "data"
    else:
        console, table = standard_console(), {}
        for setting in settings or ():
            apply_setting(table, setting)
        already = f"the name is {name!r} already"
        require("name" not in table, f"--set name={table.get('name')}: {already}")
        with Bar("loading the data"):
            federation, table = load_data({"name": name, **table}, data_dir)
        title = ", ".join(f"{k} = {v}" for k, v in table.items() if k != "name")
        console.print(f"{name}: {printable(title)}\n", highlight=False)
    drawn = {"data": data_figure(federation, f"{name}: {title}")}
    of_paper = str(table.get("name", "")), table.get("partition", "")
    console.print(statistics_table(federation, *of_paper))
    if described and resolved.population:  # for the first method and seed
        parts = [each for each in resolved.settings.values() if isinstance(each, Part)]
        seconds, hours = work_seconds(
            *(resolved.population, federation, resolved.model, resolved.methods[0]),
            *(resolved.solver, experiment.seeds[0], parts),
        )
        title = f"{file}: {resolved.methods[0].name}, devices"
        drawn["population"] = population_figure(seconds, hours, title)
        words = population_words(seconds, hours, resolved.population.dropout)
        console.print(f"\n{words}", highlight=False)
    folder = out or Path("runs") / f"{file.stem if described else name}-data"
    folder.mkdir(parents=True, exist_ok=True)
    for each, figure in drawn.items():
        write_figure(folder, figure, each)
    files = ", ".join(f"{each}.{kind}" for each in drawn for kind in ("png", "svg"))
    console.print(f"\n{printable(folder)}: {files}", highlight=False, soft_wrap=True)


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
        require(not out, "--out: name an example")
        for stem, path in known.items():
            lines = takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
            about = " ".join(line.removeprefix("# ") for line in lines)
            print(fill(f"{stem:<14}{about}", 100, subsequent_indent=" " * 14))
        return
    require(name in known, f"{name!r} is not an example; {choices(name, known)}")
    content = known[name].read_text(encoding="utf-8")
    if not out:
        print(content, end="")
        return
    require(not out.exists(), f"--out: {out} exists already; name a new file")
    write_whole(out, content.encode())
    print(out)


@app.command("keys", cls=_Command)
def show_keys(
    section: Annotated[
        str | None, typer.Argument(metavar="[SECTION]", help="A section, such as solver.")
    ] = None,
) -> None:
    """List the keys of experiment files: types, defaults and meanings.

    A list where a number is allowed sweeps over its values.
    """
    texts = help_sections()
    if section is not None:
        texts.pop("")
        require(section in texts, f"{section!r} is not a section; {choices(section, texts)}")
        texts = {section: texts[section]}
    print("\n\n".join(texts.values()))


SUM_FAILED = "gloo|nccl|coordination"
"""Pattern in the error of a failed sum over processes."""

LOST = (
    "process {}: another process has ended, or cannot be reached, and so the run ends ({}); "
    "continue from its last checkpoint with --resume"
)


def main(command: typer.Typer = app) -> None:
    """Entry point: bad input and files that cannot be written end in one line, status 2."""
    with safe_streams(), answering(end_now):
        try:
            _main(command)
        except Exception:
            if not jax.distributed.is_initialized():
                raise
            traceback.print_exc()
            _leave(1)


def _main(command: typer.Typer) -> None:
    arguments = sys.argv[1:] or (["--help"] if command is app else [])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = command(arguments, standalone_mode=False)
    except COMMAND_LINE_ERROR as error:
        # typer and click each add the hint "Did you mean 'run'?"
        _fail(re.sub(r"( Did you mean [^?]+\?)\1", r"\1", error.format_message()))
    except InputError as error:
        _fail(str(error))
    except Stopped as stopped:
        advice = "the same command continues from there"
        if sys.argv[1:2] in (["run"], ["deploy"]):
            advice = f"continue with: {resume_command(stopped.folder.parent, sys.argv[1:])}"
        _fail(f"{stopped}; {advice}", 128 + stopped.signal)
    except (jax.errors.JaxRuntimeError, ValueError, MemoryError) as error:
        # a lost process raises either of the first two, depending on where its sum is awaited
        if jax.distributed.is_initialized() and re.search(SUM_FAILED, str(error), re.I):
            _fail(LOST.format(jax.process_index(), str(error).partition("\n")[0]), 1)
        if not isinstance(error, MemoryError) and "EXHAUSTED" not in str(error):
            raise
        _fail("out of memory: the data, the model or the cohort is too large for this machine")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    raise SystemExit(status or 0)


def _fail(message: str, status: int = 2) -> NoReturn:
    say(message)
    _leave(status)


def _leave(status: int) -> NoReturn:
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # an orderly exit waits for the other processes, which wait for this one
    raise SystemExit(status)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    say(str(message))


if __name__ == "__main__":
    main()
