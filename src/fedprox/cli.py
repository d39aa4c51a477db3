"""The command line: `fedprox run`, `diagnose`, `report`, `reproduce`, `data` and `examples`."""

import importlib.metadata
import os
import re
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NoReturn, cast

import jax
import typer
from rich.console import Console
from rich.table import Table

from fedprox.algorithms import ALGORITHMS
from fedprox.bar import Bar
from fedprox.datasets import DATASETS
from fedprox.datasets.catalogue import CATALOGUE, literals
from fedprox.datasets.sources import cache_folder, fetch
from fedprox.diagnose import diagnose as find_out
from fedprox.errors import InputError, printable, require
from fedprox.experiment import (
    Experiment,
    Resolved,
    apply_setting,
    choices,
    keys_of,
    load_data,
    read_experiment,
    resolve,
    train,
)
from fedprox.files.whole import write_whole
from fedprox.models import MODELS
from fedprox.output import lasting_streams
from fedprox.papers import ITEMS, select
from fedprox.report.data import catalogue_table, data_figure, statistics_table
from fedprox.report.diagnosis import diagnosis_page
from fedprox.report.directory import CHECKPOINTS, ENDS, RunDirectory, write_figure
from fedprox.report.page import write_report
from fedprox.report.results import write_results
from fedprox.report.table import (
    empty_rounds,
    faulty,
    kept,
    other_models,
    sampled,
    table,
    uneven,
    unsolved,
    validated,
)
from fedprox.reproduce.item import SCALES
from fedprox.reproduce.run import Step, reproduce
from fedprox.reproduce.table import duration
from fedprox.signals import answering, end_now, ended_by
from fedprox.simulation.devices.compilation_cache import use_compilation_cache
from fedprox.simulation.devices.cpu import use_cpu_devices
from fedprox.simulation.devices.processes import everyone, join_processes
from fedprox.simulation.loop.checkpoint import Checkpoints, Stopped, stopping_on_signals

COMMAND_LINE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""ClickException, which has no public name that all versions of typer share: older ones import it
from click, newer ones have a copy of click."""

TOGETHER = 60.0
"""Seconds between checkpoints of several processes, where --checkpoint-every is not given."""

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


def _keys(catalogue: Mapping[str, Callable[..., Any]]) -> str:
    """For the help: the keys of what a section can name, and which words a key may be."""
    names: dict[str, list[str]] = {}
    for name, function in catalogue.items():
        keys = []
        for key, parameter in keys_of(function).items():
            words = " | ".join(f'"{word}"' for word in literals(parameter.annotation))
            keys.append(f"{key} = {words}" if words else key)
        names.setdefault(", ".join(keys) or "no more", []).append(name)
    return "\n".join(
        fill(
            f"{', '.join(named)}: {keys}",
            98,
            initial_indent="  # ",
            subsequent_indent="  #   ",
            break_on_hyphens=False,
        )
        for keys, named in names.items()
    )


RUN_HELP = f"""Run the experiment in a TOML file.

It trains every method on the same clients, stragglers and mini-batches, prints a table, and leaves
a run directory with the metrics, the final models, a figure and an HTML report.

With --checkpoint-every a run that is killed goes on with --resume DIR, and gives the same metrics
and models, bit for bit. Ctrl-C, SIGTERM or SIGHUP ends the rounds under way and leaves a
checkpoint; a second one ends at once, as the first does while no round is under way.

--resume DIR --set rounds=400 extends a finished run: it goes on from its last state, and ends with
the metrics and models of a run that had 400 rounds from the start.

The name of a model, a method or data may be a function of your own, "package.module:function". The
module is imported, which runs its code: run only files that you trust.

\b
An experiment file, with every key:

\b
  rounds = 200
  client_store = "auto"         # where what clients keep lies: "device", "host" or "disk"
  seed = 0                      # or several: [0, 1, 2]
  target_accuracy = 0.8         # the table counts rounds to it; or target_loss = 0.5, or
                                # target_metric = {{name = "test_f1", value = 0.8}}
  stop_at_target = "never"      # or where "all" or "any" of a method's sweep have reached it
  # initial = "runs/a"          # a model file or run directory whose parameters all begin with;
                                # or {{path = "runs/a", label = "fedavg", seed = 0}}
  client_rows = 100             # rows of each client that are used at most; all if left out
  validation_share = 0.1        # of each client's training rows, held out: targets and the best
                                # round are read on them, test rows for the report alone

\b
  [data]
  name = "synthetic"            # or another, with its own keys:
{_keys(DATASETS)}

\b
  [model]
  name = "logistic"             # or another, with its own keys:
{_keys(MODELS)}
  # frozen = ["dense"]          # with initial: parameters, or parts, that keep their values

\b
  [evaluation]
  every = 1                     # rounds between evaluations
  rows = 200                    # rows of each client that they read at most; all if left out
  clients = 1000                # clients that they read at most, drawn at random; all if left out
  gradients = true              # whether they measure gradient variance, B(w) and gamma
  model = "server"              # the model sent out; or "cohort", the mean of the round's
                                # clients, or "clients", that of every client's last model

\b
  [cohort]
  clients_per_round = 10
  sampling = "uniform"          # or "proportional" (by p_k, plain mean), "bernoulli"

\b
  [systems]
  stragglers = 0.9              # fraction of each cohort that cannot finish; or by the clock:
                                # deadline = 60.0, step_seconds = 0.1 (or one for each client),
                                # spread = 1.0 of their log-normal speeds

\b
  [selection]
  keep = "last"                 # the model after the last round; or "best", by a measure:
  measure = "validation_loss"   # or another of metrics.jsonl
  # patience = 5                # evaluations without a better value after which a run ends

\b
  [faults]                      # left out: updates are not screened
  policy = "drop"               # leave out what is not finite or too large; "fail", "clip"
  norm = 10.0                   # too large: times the round's median norm; inf for no bound

\b
  [solver]
  learning_rate = 0.01          # or several; or a function of the round, which is one of optax's
                                # schedules with its arguments, or "package.module:function":
                                # {{schedule = "cosine_decay_schedule", init_value = 0.1,
                                # decay_steps = 200}}
  batch_size = 10               # or "all"
  epochs = 20                   # or steps = 100
  # gamma = 0.1                 # stop at a gamma-inexact solution; epochs or steps are the limit,
                                # and weight_decay must be 0
  learning_rate_decay = 0.998   # what the rate is multiplied by after every round
  weight_decay = 1e-4
  clip = 10.0                   # the largest norm of a gradient
  optimizer = "sgd"             # or adagrad, adam, adamw, lion, nadam, rmsprop, yogi, as optax
                                # has them; with batch_size = "all" also "lbfgs" and
                                # "line-search-descent"
  optimizer_options = {{momentum = 0.9}}

\b
  [[method]]                    # one or several
  name = "fedprox"
  mu = [0.0, 1.0]               # several: a sweep
  adapt = false                 # true: mu follows the loss
  solver = {{epochs = 10}}        # settings of the solver that are the method's own
                                # A method has these keys of its own; fedopt also
                                # optimizer_options:
{_keys(ALGORITHMS)}

Bad input is named in one line, with exit status 2.
"""


DIAGNOSE_HELP = """Say how heterogeneous the clients of an experiment are, and which mu to try.

With evaluation.clients it is a diagnosis of as many clients, drawn at random.

It measures the clients' sizes, label skew, gradients and curvature, says which mu the theory asks
for, and finds one for practice by a short sweep over {0, 0.001, 0.01, 0.1, 1} with the experiment's
own solver, cohort and stragglers. The methods that the file names are not run.

It leaves diagnosis.json and report.html; with --out naming the experiment's run directory, beside
its results.

Bad input is named in one line, with exit status 2.
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


@app.command(help=RUN_HELP)
def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE.toml", help="The experiment.")
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory. [default: runs/NAME-OF-FILE]")
    ] = None,
    data_dir: DataDir = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", help="Devices that share a round. [default: all; CPUs: cores]"),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds between checkpoints.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the run in DIR; in place of FILE.toml."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace another experiment's results in the run directory."),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Share the run with other processes, which meet there; or slurm.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="P", help="How many they are. [default: SLURM_NTASKS]")
    ] = None,
    process: Annotated[
        int | None,
        typer.Option(
            metavar="I", help="Which one this is. [default: SLURM_PROCID or JOB_COMPLETION_INDEX]"
        ),
    ] = None,
) -> None:
    """Run an experiment file, or go on with one."""
    if resume is not None:
        others = file is None and out is None and not force
        require(
            others, f"--resume {resume}: the experiment is there; leave out FILE, --out, --force"
        )
        require(
            (resume / "experiment.toml").is_file(),
            f"--resume {resume}: no experiment.toml; name a run directory",
        )
        file, out = resume / "experiment.toml", resume
        _require_only_rounds(file, settings or ())
    if file is None:
        raise InputError("FILE.toml is missing; or give --resume DIR")
    require(
        coordinator is not None or (processes is None and process is None),
        "--processes and --process: give --coordinator beside them",
    )
    meet = None
    if coordinator is not None:
        meet = partial(join_processes, coordinator, processes, process)
    console, experiment, resolved = _prepare(file, settings, data_dir, devices, meet)
    path = out or Path("runs") / file.stem
    checkpoints = Checkpoints(
        path / CHECKPOINTS,
        every=checkpoint_every,
        interval=TOGETHER if coordinator is not None and checkpoint_every is None else None,
        resume=resume is not None,
        ends=path / ENDS,
    )
    go = partial(train, experiment, resolved, devices=devices, checkpoints=checkpoints)
    if jax.process_index():
        _help(go, checkpoints)
        return
    directory = RunDirectory(path, resolved.table, replace=force, extend=resume is not None)
    done = resume is not None and directory.complete and directory.extended is None
    everyone(done)
    if done:
        console.print(f"{printable(resume)} is complete; nothing to do")
        return
    if resume is not None:
        _say_where(console, directory)
    if directory.replaced:
        line = f"{path}: --force replaces the results {directory.replaced}"
        console.print(printable(line), soft_wrap=True)
    with directory, answering(partial(_interrupted, directory, checkpoints)):
        with stopping_on_signals(checkpoints):
            runs = go(directory.record)
        # the rows of others' clients are not at hand, so there is no clients.json of several
        measured = (resolved.federation, resolved.model) if jax.process_count() == 1 else ()
        write_results(directory, runs, resolved.target, *measured)
        checkpoints.remove()
    console.print(table(runs, resolved.target))
    for lines in (other_models, validated, kept, sampled, uneven, empty_rounds, unsolved, faulty):
        for line in lines(runs):
            console.print(line)
    if checkpoints.made:
        console.print(str(checkpoints))
    console.print(f"\n{printable(directory.path)}: metrics, summary, models, figure, report.html")


def _help(go: Callable[..., Any], checkpoints: Checkpoints) -> None:
    """What the other processes do: work, and leave the results to the first."""
    if everyone(0)[0]:  # it was complete already
        return
    with stopping_on_signals(checkpoints):
        go(progress=False)
    checkpoints.remove()


def _interrupted(
    directory: RunDirectory, checkpoints: Checkpoints, number: signal.Signals
) -> NoReturn:
    """End a run at once, and say what is left of it."""
    left = ""
    if directory.complete:
        left = f"; {directory.path} is complete" if directory.begun else ""
    elif checkpoints.exist:
        left = f"; go on from the last checkpoint with: {_resume(directory.path, sys.argv[1:])}"
    elif directory.begun:
        left = f"; {directory.path / 'metrics.jsonl'} holds the rounds evaluated so far"
    end_now(number, printable(ended_by(number) + left))


def _require_only_rounds(file: Path, settings: Sequence[str]) -> None:
    """Raise `InputError` if settings change more of a run's experiment than its rounds."""
    before, now = read_experiment(file), read_experiment(file, settings)
    for key, value in before.model_dump().items():
        require(
            key == "rounds" or value == now.model_dump()[key],
            f"--set {key}: with --resume only rounds can change",
        )


def _say_where(console: Console, directory: RunDirectory) -> None:
    """What a user should know before a run goes on."""
    path = printable(directory.path)
    if directory.extended is not None:
        rounds = directory.experiment["rounds"]
        console.print(f"{path}: goes on from round {directory.extended} to {rounds}")
    elif not directory.checkpoints.is_dir() and not directory.ends.is_dir():
        console.print(f"{path}: no checkpoint; the run begins anew")
    if changed := directory.changed_versions():
        console.print(
            f"{path}: begun with {', '.join(changed)}; the last bits may differ",
            soft_wrap=True,
        )


REPORT_HELP = """Write the HTML report of run directories.

One page: figures with the runs of all directories, and a section for each directory with its
settings, table, figures to hover, zoom and switch, who is
left behind, and the diagnosis where there is one. It opens offline and needs nothing beside it. A
run that was interrupted is shown as far as it came.
"""


@app.command(help=REPORT_HELP)
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="What `fedprox run` left.")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write the report of some run directories."""
    write_report(directories, out)
    print(printable(out))


@app.command(help=DIAGNOSE_HELP)
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
    console, experiment, resolved = _prepare(file, settings, data_dir)
    seeds = experiment.seed if isinstance(experiment.seed, list) else [experiment.seed]
    require(seeds, "seed: none given; at least one is needed")
    folder = out or Path("runs") / f"{file.stem}-diagnosis"
    with RunDirectory(folder, resolved.table) as directory:
        found = find_out(
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
        directory.diagnosis(found.document())
        write_report([directory.path], directory.path / "report.html")
    console.print(diagnosis_page(found))
    console.print(f"\n{printable(directory.path)}: diagnosis.json, report.html")


def _prepare(
    file: Path,
    settings: list[str] | None,
    data_dir: Path | None,
    devices: int | None = None,
    meet: Callable[[], None] | None = None,
) -> tuple[Console, Experiment, Resolved]:
    """Read an experiment file and load its data, with JAX set up for it.

    Args:
        file: The file.
        settings: Changes to it.
        data_dir: Folder with data files.
        devices: Devices that share a round.
        meet: Joins other processes.
    """
    experiment = read_experiment(file, settings or ())
    use_cpu_devices(experiment.cohort.clients_per_round, devices)
    use_compilation_cache(cache_folder() / "xla")
    if meet is not None:
        meet()
    console = Console(quiet=True) if jax.process_index() else _console()
    with Bar("loading the data"):
        resolved = resolve(experiment, data_dir)
    return console, experiment, resolved


REPRODUCE_HELP = """Reproduce a figure or table of a paper, its numbers beside ours.

Without a name it lists what there is. ITEM is a name, all of a paper ("fedprox/"), or "all". DIR
gets a folder for each item with a table, its data, a report and, where it has curves, a figure;
the experiments lie in DIR/runs, where those that are complete are not run again.
"""


@app.command("reproduce", help=REPRODUCE_HELP)
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
    """Run the items that a name stands for."""
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


@data.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """List all data sets: what they are, who used them, and where they are or come from."""
    _console().print(catalogue_table(data_dir))


@data.command("fetch")
def fetch_data(
    name: Name,
    data_dir: DataDir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also files that only some options need.")
    ] = False,
) -> None:
    """Download a data set's files into the cache, or say where they are already.

    Each is checked against its checksum where one is known. A file that is in the data folder is
    not downloaded.
    """
    require(name in CATALOGUE, f"{name!r} is not a data set; {choices(name, CATALOGUE)}")
    entry = CATALOGUE[name]
    if not entry.files:
        how = "read from data.path" if entry.brought else "generated"
        print(f"{name}: nothing to fetch; it is {how}")
    shown = set()
    for file in sorted(entry.files, key=lambda file: not file.source.folders):
        found = file.at_hand(data_dir)
        if found is None and file.use and not everything:
            print(f"{file.source.name}: not fetched, for {file.use} alone; --all fetches it too")
            continue
        kept = found is not None and found.is_relative_to(cache_folder())
        if found is None or (kept and file.source.folders):
            found = fetch(file.source, file.folder)
        if found not in shown:  # a file may serve in place of several
            print(printable(found))
        shown.add(found)


@data.command("describe")
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
    """Set a data set's statistics beside the paper's, and draw its clients' sizes and labels."""
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


@app.command("examples")
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


SURROUNDINGS = ("--data-dir", "--devices", "--coordinator", "--processes", "--process")
"""Options that say where a run runs, and not what it is."""

SUM_FAILED = "gloo|nccl|coordination"
"""What an error names where a sum over processes has failed."""

LOST = (
    "process {}: another process has ended, or cannot be reached, and so the run ends ({}); go on "
    "from its last checkpoint with --resume"
)


def main() -> None:
    """Entry point: bad input and files that cannot be written end in one line, status 2."""
    with lasting_streams(), answering(end_now):
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
        again = "the same command goes on from there"
        if "run" in sys.argv[1:2]:
            again = f"go on with: {_resume(stopped.folder.parent, sys.argv[1:])}"
        _fail(f"{stopped}; {again}", 128 + stopped.signal)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # a lost process raises either, by where its sum is waited for
        if jax.distributed.is_initialized() and re.search(SUM_FAILED, str(error), re.I):
            _fail(LOST.format(jax.process_index(), str(error).partition("\n")[0]), 1)
        _out_of_memory(error)
    except MemoryError as error:
        _out_of_memory(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    raise SystemExit(status or 0)


def _resume(directory: Path, arguments: list[str]) -> str:
    """The command that goes on with a run, in the same surroundings.

    >>> _resume(Path("runs/a"), ["run", "a.toml", "--devices=2", "--out", "b", "--data-dir", "c d"])
    "fedprox run --resume runs/a --devices=2 --data-dir 'c d'"
    """
    kept = ["fedprox", "run", "--resume", str(directory)]
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, given = option.partition("=")
        if name in SURROUNDINGS:
            kept += [option] if given else [option, value]
    return shlex.join(kept)


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
        os._exit(status)  # to leave in order would be to wait for the others, who wait for this one
    raise SystemExit(status)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    _say(str(message))


def _say(message: str) -> None:
    print(f"fedprox: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
