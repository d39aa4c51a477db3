"""The commands of deployments: `fedprox deploy` and `fedprox node`."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

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
from fedprox.commands.training import file_and_folder, set_up_jax, train_into
from fedprox.datasets.sources import cache_folder
from fedprox.deployment.audit import TornError, checked_lines
from fedprox.deployment.audit import in_words as line_in_words
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import (
    Coordinator,
    Ledger,
    check_deployable,
    own_noise_in_words,
    read_ledger,
    require_same_clients,
)
from fedprox.deployment.describing import in_words, runs_asked
from fedprox.deployment.flower_node import NodeConnection, serve
from fedprox.deployment.flower_operator import operator_network
from fedprox.deployment.joining import declared_in_words, join, labels_in_words
from fedprox.deployment.network import Network
from fedprox.deployment.node_file import load_node, read_node_file, read_superlink_file
from fedprox.deployment.remote import run_deployment, without_updates
from fedprox.deployment.trial import check_allowed, local_nodes
from fedprox.devices.compilation_cache import use_compilation_cache
from fedprox.errors import InputError, plural, printable, require
from fedprox.experiment import DEPLOYED, Experiment, read_experiment
from fedprox.files.whole import locked
from fedprox.jax_internals import require_backend
from fedprox.logs import loggers_of
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.following import Callback, Progress
from fedprox.parts.privacy.accounting import rounded_up
from fedprox.report.directory import CHECKPOINTS, NODES, RunDirectory
from fedprox.report.privacy import guarantee
from fedprox.report.records import has, number_of
from fedprox.results.record import Record, figures
from fedprox.results.run import Run
from fedprox.terminal import Bar, answering, say, setting_once, standard_console

MOST_CLIENTS = 1000
"""Clients that a node may train in a round, from which the number of CPU devices follows."""


def deploy(
    file: OptionalFile = None,
    local: Annotated[
        int | None, typer.Option(metavar="N", help="Try it on this machine, with N nodes.")
    ] = None,
    superlink: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="How to reach the SuperLink of the nodes."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A method or model of your own, package.module:function, that the nodes of the "
            "trial allow, as a node's policy does. Repeatable.",
        ),
    ] = None,
    describe: Annotated[
        bool,
        typer.Option("--describe", help="Print what each run asks of a site, and its digest."),
    ] = False,
    settings: Changes = None,
    out: Out = None,
    data_dir: DataDir = None,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", help="Rounds between checkpoints.")
    ] = 1,
    resume: Resume = None,
    force: Force = False,
    log: Log = None,
) -> None:
    """Run an experiment on nodes that keep their own data, over a network.

    With --local N it is a trial on this machine. A SuperLink and N nodes start as processes on the
    loopback, with new certificates and keys, and the experiment's clients are dealt out to them.
    With --superlink FILE it is a real federation: each node runs `fedprox node`, and FILE says how
    to reach the SuperLink.

    It trains every method as `fedprox run` does, on all nodes that have joined, and writes the same
    run directory. [deployment] says which nodes to wait for, and for how long. A checkpoint is
    written after every round, or as --checkpoint-every says; --resume DIR continues a run that was
    stopped or killed, also with more rounds.

    With --describe it needs no nodes, starts nothing and writes nothing. It prints in plain words
    what each run, a method with a seed, asks of a site, and the run's digest. A site that lists
    digests as `runs` in [policy] of its node's file answers these runs alone.

    Bad input is reported in one line, with exit status 2. If no update was used in any round of a
    run, a line says why, with exit status 1.
    """
    if describe:
        _describe(file, resume, settings or (), beside=(local, superlink, allow, out, log))
        return
    require(
        (local is None) != (superlink is None),
        "give one of --local N, for a trial on this machine, and --superlink FILE.toml",
    )
    require(
        not allow or local is not None,
        "--allow: only with --local; the nodes of a federation have policies of their own",
    )
    file, folder = file_and_folder(file, out, resume, settings or (), force=force)
    resumed = resume is not None
    loggers = loggers_of(log or (), folder, resume=resumed)
    defaults = {} if superlink is None else {"data": {"name": DEPLOYED}}
    experiment, console = read_experiment(file, settings or (), defaults), standard_console()
    require_backend()
    if local is not None:
        check_allowed(experiment, allow or ())
    check_deployable(experiment)
    logging.basicConfig(format="fedprox: %(message)s", level=logging.WARNING)
    use_compilation_cache(cache_folder() / "xla")
    checkpoints = Checkpoints(folder / CHECKPOINTS, checkpoint_every, resume=resumed)
    with ExitStack() as opened:
        # before the ledger is read, which another process may still write
        opened.enter_context(locked(folder))
        ledger = read_ledger(folder) if resumed else Ledger(folder)
        names = list(ledger.clients) or (experiment.deployment.names if local is None else [])
        wanted = len(names) or local or experiment.deployment.nodes
        network = opened.enter_context(
            _network(experiment, local, superlink, folder / NODES, data_dir, allow or ())
        )
        conversation = Conversation(network, patience=experiment.deployment.patience)
        joined = join(conversation, wanted, partial(_show_joined, console, wanted), names=names)
        if resumed:
            require_same_clients(f"--resume {resume}", ledger.clients, joined.clients)
        ledger.clients = joined.clients
        server = Coordinator(conversation, experiment, joined, ledger)
        directory = RunDirectory(
            *(folder, server.resolved.table),
            replace=force,
            extend=resumed,
            lock=False,
        )
        if directory.done:
            console.print(f"{printable(folder)} is complete; nothing to do")
            return
        declared = [printable(declared_in_words(each)) for each in joined.descriptions]
        own = map(printable, own_noise_in_words(joined, server.methods))
        for line in (*declared, *own, *_guarantee(server)):
            console.print(line, highlight=False, soft_wrap=True, markup=False)

        def write_ledger(_: Record) -> None:
            if not directory.begun and not resumed:
                ledger.write()

        shown = _Shown(console, resumed=resumed)

        def train_methods(
            callbacks: Sequence[Callback], on_progress: Callable[[Progress], None]
        ) -> list[Run]:
            before, after = Callback(on_record=write_ledger), Callback(on_record=shown.record)

            def follow(now: Progress) -> None:
                shown.begin()
                on_progress(now)

            return run_deployment(
                server,
                checkpoints=checkpoints,
                callbacks=[before, *callbacks, after],
                on_progress=follow,
            )

        resolved = server.resolved
        runs = train_into(console, directory, train_methods, resolved, checkpoints, loggers)
    if lines := without_updates(runs, server):
        for line in lines:
            say(line)
        raise typer.Exit(1)


def _describe(
    file: Path | None, resume: Path | None, settings: Sequence[str], beside: Sequence[object]
) -> None:
    """Print what the runs of an experiment ask of a site."""
    require(
        file is not None and resume is None and not any(beside),
        "--describe: give FILE, and of the options --set alone",
    )
    assert file is not None
    experiment = read_experiment(file, settings, {"data": {"name": DEPLOYED}})
    pages = [
        "\n".join(printable(f"{about:<12} {line}") for about, line in in_words(run))
        for run in runs_asked(experiment)
    ]
    print("\n\n".join(pages))


def _network(
    experiment: Experiment,
    local: int | None,
    superlink: Path | None,
    folder: Path,
    data_dir: Path | None,
    allow: Sequence[str],
) -> AbstractContextManager[Network]:
    """Start a trial with nodes on this machine, or connect to the SuperLink in a file."""
    if local is not None:
        options = () if data_dir is None else ("--data-dir", str(data_dir.absolute()))
        return local_nodes(experiment, local, folder, options, allow)
    assert superlink is not None
    known = read_superlink_file(superlink)
    keys = {name: Path(file) for name, file in known.keys.items()}
    return operator_network(known.address, Path(known.ca_certificate), Path(known.secret), keys)


def _guarantee(server: Coordinator) -> list[str]:
    """The statement of the run's privacy; empty without privacy."""
    return [] if server.resolved.privacy is None else guarantee(*server.methods)


class _Shown:
    """A line for each record; of those that a resumed run has already, one for the last."""

    def __init__(self, console: Console, *, resumed: bool) -> None:
        self._console, self._earlier, self._last = console, resumed, ""

    def record(self, record: Record) -> None:
        """Print a record, or note it if it is an earlier one."""
        self._last = _network_line(record)
        if not self._earlier:
            self._print(self._last)

    def begin(self) -> None:
        """Note that the records that follow are new: the run makes progress."""
        if self._earlier and self._last:
            self._print(f"goes on after {self._last}")
        self._earlier = False

    def _print(self, line: str) -> None:
        self._console.print(printable(line), highlight=False, soft_wrap=True)


def _network_line(record: Record) -> str:
    """A record of a deployment in one line; with privacy it has epsilon in place of the clients.

    >>> measures = {"train_loss": 0.5, "test_accuracy": 0.9}
    >>> measures |= {"seconds": 1.25, "bytes_down": 5200, "bytes_up": 5100, "nodes": 2}
    >>> measures["network"] = {"a": {"node": "x"}, "b": {"node": "y"}}
    >>> _network_line(Record("fedavg", "fedavg", {}, 0.1, 0, 5, measures))
    'fedavg, seed 0, round 5: train loss 0.5, test accuracy 90.00 %; 2 nodes, 2 clients, 1.2 s,
     5.2 kB down, 5.1 kB up'
    """
    clients, nodes = len(record.network or {}), record.nodes or 0
    used = plural(clients, "client")
    if has(record, "epsilon"):
        used = f"epsilon {rounded_up(number_of(record, 'epsilon'))}"
    return (
        f"{record.label}, seed {record.seed}, round {record.round}: {figures(record)}; "
        f"{plural(nodes, 'node')}, {used}, "
        f"{record.seconds or 0.0:.1f} s, {decimal(record.bytes_down or 0)} down, "
        f"{decimal(record.bytes_up or 0)} up"
    )


def _show_joined(console: Console, wanted: int, names: Sequence[str]) -> None:
    """Print which nodes have joined."""
    count = f"{len(names)} of {max(wanted, len(names))} nodes have joined"
    listed = printable(", ".join(sorted(names))) or "none"
    console.print(f"{count}: {listed}", soft_wrap=True, highlight=False)


def node(
    file: Annotated[Path, typer.Argument(metavar="NODE.toml", help="The node's file.")],
    data_dir: DataDir = None,
    devices: DeviceCount = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Check the node's audit and print it, and do no more.")
    ] = False,
) -> None:
    """Hold clients for deployments: answer the requests of `fedprox deploy`.

    NODE.toml says which data the node holds, where it stores client state, which policy it follows,
    and how to reach the SuperLink. The node runs the methods, models and solvers of its own
    library: no code travels to it.

    Each request has a line in the file `audit.jsonl` of the node's folder, which has the digest of
    the line before; `audit-head.json` has the digest of the last one. With --audit the command
    checks these lines, also while the node runs, and prints them and the last digest. It ends with
    status 1 if one was changed or is missing, and with status 2 if the last one is not complete.

    Bad input is reported in one line, with exit status 2.
    """
    known = read_node_file(file)
    if audit:
        _print_audit(Path(known.folder))
        return
    set_up_jax(MOST_CLIENTS, devices)
    logging.basicConfig(format="fedprox: %(message)s", level=logging.WARNING)
    logging.getLogger("fedprox").setLevel(logging.INFO)
    folder = Path(known.folder)
    connection = NodeConnection(
        known.superlink, Path(known.ca_certificate), Path(known.key), folder
    )
    stop = threading.Event()
    # before anything in it is read, such as what is spent; client state is a model or a gradient of
    # one client's data
    with locked(folder, mode=0o700):
        with Bar("loading the data"):
            held = load_node(known, data_dir)
        say(f"node {known.name}: {held.federation}")
        if labels := labels_in_words(held.federation):
            say(labels)
        ends = "the node ends after its current answer; once more to end at once"
        with answering(setting_once(stop, ends)):
            serve(held.answer, connection, stop)


def _print_audit(folder: Path) -> None:
    """Print the lines of a node's audit up to the first that does not continue the one before."""
    first = last = None
    try:
        for last in checked_lines(folder):
            first = first or last
            print(printable(line_in_words(last.line)))
    except InputError as error:
        say(str(error))
        raise typer.Exit(2 if isinstance(error, TornError) else 1) from None
    if first is None or last is None:
        print(f"{printable(folder)}: no audit yet")
        return
    if first.line["line"] > 1:
        print(f"lines before {first.line['line']} are not kept any more")
    print(f"line {last.line['line']} is the last; its digest is {last.digest}")
