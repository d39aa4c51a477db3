"""Rounds of real federations on this machine, beside a plain Flower app with the same model.

    python -m benchmarks.deployment [CASE ...]

Each node has one client of Synthetic(1,1) with 20 training rows, and takes one gradient step on all
of them a round, so that a round is messages and little else. The other side is
`benchmarks/flower_app.py`: Flower's own FedAvg, SuperLink and SuperNodes, as `flwr run` starts
them, and the same step in NumPy from the same start on the same rows. The final models must agree.
Ours has TLS and node authentication, plain Flower has neither. No checkpoints are written.

Both sides take turns. A turn starts all processes anew, with an empty cache of compiled programs;
its time is the median over the rounds after the first. The case `start` measures the seconds from
the start of `fedprox deploy examples/demo.toml --local 3` to the end of its first round. Without
names all cases run but `mlp-10` and `mlp-10-evaluated`, which need more than 24 GiB.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import fedprox as fp
from benchmarks.page import show, table
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import Coordinator, Ledger
from fedprox.deployment.flower import environment
from fedprox.deployment.joining import join
from fedprox.deployment.network import Network, Parcel
from fedprox.deployment.processes import Child, running
from fedprox.deployment.remote import run_deployment
from fedprox.deployment.trial import free_port, local_nodes
from fedprox.deployment.wire import SUMS
from fedprox.experiment import parse, resolve

TURNS = 2
ROWS = 20
LEARNING_RATE = 0.01
BIG: dict[str, Any] = {"name": "mlp", "hidden": [5000, 5000]}
SMALL: dict[str, Any] = {"name": "logistic"}


class Case(NamedTuple):
    """A model, a number of nodes, whether every round is evaluated, and sums are secret.

    With `many` there is a round more than nodes agree on keys for.
    """

    model: dict[str, Any]
    nodes: int
    evaluated: bool
    secure: bool = False
    many: bool = False

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        if self.many:
            return SUMS + 1
        return 5 if self.evaluated else 7


CASES = {
    f"{name}-{nodes}{'-evaluated' * evaluated}": Case(model, nodes, evaluated)
    for evaluated in (False, True)
    for name, model in (("logistic", SMALL), ("mlp", BIG))
    for nodes in (3, 10)
}

LARGEST = ("mlp-10", "mlp-10-evaluated")
"""Cases that run only if they are named: all processes together need more than 24 GiB."""


class Turn(NamedTuple):
    """What one turn of one side measured.

    Attributes:
        seconds: Seconds of each round, the first included.
        work: Processor seconds of all processes in a round, the mean over those after the first.
        down: Bytes to a node in a round, over those of the model; NaN if not measured.
        up: Bytes from a node likewise.
        peaks: Peak bytes of kinds of processes, the greatest of each kind.
        final: The final model, leaf by leaf.
        asked: Requests to a node in a round, the mean over those after the first.
    """

    seconds: list[float]
    work: float
    down: float
    up: float
    peaks: Mapping[str, float]
    final: list[NDArray[Any]]
    asked: float = np.nan

    @property
    def warm(self) -> float:
        """The median over the rounds after the first."""
        return statistics.median(self.seconds[1:])


def table_of(case: Case, initial: Path) -> dict[str, Any]:
    """The experiment of a case."""
    return {
        "rounds": case.rounds,
        "data": {"name": "synthetic", "clients": case.nodes},
        "client_rows": ROWS,
        "model": case.model,
        "initial": str(initial),
        "cohort": {"clients_per_round": case.nodes},
        "solver": {"learning_rate": LEARNING_RATE, "batch_size": "all", "epochs": 1},
        "evaluation": {"every": 1 if case.evaluated else case.rounds},
        "method": [{"name": "fedavg"}],
        "deployment": {"secure": {"threshold": max(3, case.nodes // 2 + 1), "bound": 1.0}}
        if case.secure
        else {},
    }


def ours(case: Case, folder: Path, initial: Path) -> Turn:
    """A turn of `fedprox deploy --local`, without the command line around it."""
    os.environ["FEDPROX_CACHE"] = str(folder / "cache")
    experiment = parse("benchmark", table_of(case, initial))
    began: dict[int, tuple[float, float, int]] = {}
    with local_nodes(experiment, case.nodes, folder) as network:
        conversation = Conversation(timed(network, folder, began))
        joined = join(conversation, case.nodes)
        server = Coordinator(conversation, experiment, joined, Ledger())
        (run,) = run_deployment(server)
        kinds = {
            "node": "fedprox.cli",
            "heartbeat": "deployment.heartbeat",
            "SuperLink": "flower_superlink",
        }
        peaks = {kind: peak_bytes(folder, word) for kind, word in kinds.items()}
    times, work, asked = zip(*(began[t] for t in sorted(began)), strict=True)
    final = [np.asarray(leaf) for leaf in jax.tree.leaves(run.params)]
    messages = case.nodes * case.rounds * sum(leaf.nbytes for leaf in final)
    after = run.history[1:]
    down = sum(record.bytes_down or 0 for record in after) / messages
    up = sum(record.bytes_up or 0 for record in after) / messages
    return Turn(list(np.diff(times)), rate(work), down, up, peaks, final, rate(asked) / case.nodes)


def rate(work: Sequence[float]) -> float:
    """The mean increase after the first round."""
    return (work[-1] - work[1]) / (len(work) - 2)


def timed(network: Network, folder: Path, began: dict[int, tuple[float, float, int]]) -> Network:
    """A network that notes a round's begin: time, processor seconds, and requests before it."""
    asked = 0

    def send(parcels: Mapping[int, Parcel]) -> Mapping[int, str]:
        nonlocal asked
        head = json.loads(next(iter(parcels.values())).head) if parcels else {}
        if head.get("kind") == "train":
            work = processor_seconds(folder) + time.process_time()
            began.setdefault(head["round"], (time.perf_counter(), work, asked))
        asked += len(parcels)
        return network.send(parcels)

    return network._replace(send=send)


def plain(case: Case, folder: Path, data: Path) -> Turn:
    """A turn of plain Flower."""
    scripts = str(Path(sys.executable).parent)
    settings = {
        **environment(folder / "flwr"),
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
    }
    app, address = folder / "app", f"127.0.0.1:{free_port()}"
    write_app(app, folder, case)
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    shutil.copy(data / "initial.npz", folder)
    superlink = Child(
        "flwr.superlink.cli.flower_superlink:flower_superlink",
        [
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--port",
            address.rpartition(":")[2],
        ],
        folder / "superlink.log",
        settings,
    )
    supernodes = [
        Child(
            "flwr.supernode.cli.flower_supernode:flower_supernode",
            [
                "--insecure",
                "--superlink",
                address,
                "--port",
                str(free_port()),
                "--node-config",
                f'rows="{data / f"{i}.npz"}"',
            ],
            folder / f"supernode-{i}.log",
            settings,
        )
        for i in range(case.nodes)
    ]
    with ending(folder), running([superlink]) as started:
        wait_for(lambda: "startup complete" in (folder / "superlink.log").read_text(), started)
        with running(supernodes) as processes:
            everyone = [*started, *processes]
            subprocess.run(
                [f"{scripts}/flwr", "run", str(app), "here"],
                env={**os.environ, **settings},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            work = dict[int, float]()

            def done() -> bool:
                times = folder / "times"
                rounds = len(times.read_text().splitlines()) if times.is_file() else 0
                work.setdefault(rounds, processor_seconds(folder))
                return (folder / "peak").is_file()

            wait_for(done, everyone)
            peaks = {
                "SuperNode": max(hwm(process.pid) for process in processes),
                "SuperLink": hwm(started[0].pid),
            }
    times = [float(line) for line in (folder / "times").read_text().splitlines()]
    with np.load(folder / "final.npz") as file:
        final = [file[name] for name in file.files]
    peaks["node"] = float((folder / "peak").read_text())
    spent = [work[rounds] for rounds in sorted(work) if rounds]
    return Turn(list(np.diff(times)), rate(spent), np.nan, np.nan, peaks, final)


@contextmanager
def ending(folder: Path) -> Iterator[None]:
    """Kill what Flower leaves behind: the processes of apps that had not ended."""
    try:
        yield
    finally:
        for process, _ in processes_of(folder):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def write_app(app: Path, folder: Path, case: Case) -> None:
    """The folder of the plain Flower app."""
    app.mkdir()
    shutil.copy(Path(__file__).with_name("flower_app.py"), app)
    (app / "LICENSE").write_text("Apache-2.0\n")
    (app / "pyproject.toml").write_text(
        f"""[project]
name = "plain"
version = "1.0.0"
license = {{file = "LICENSE"}}
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "plain"

[tool.flwr.app.components]
serverapp = "flower_app:server_app"
clientapp = "flower_app:client_app"

[tool.flwr.app.config]
folder = "{folder}"
nodes = {case.nodes}
rounds = {case.rounds}
evaluated = {str(case.evaluated).lower()}
learning_rate = {LEARNING_RATE}
"""
    )


def wait_for(condition: Any, processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """Wait until a condition holds while processes live."""
    while not condition():
        if any(process.poll() is not None for process in processes):
            raise SystemExit("a process of plain Flower has ended")
        time.sleep(0.1)


def processes_of(folder: Path) -> Iterator[tuple[int, str]]:
    """Processes whose command line or environment names a folder, with their command lines."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command, environ = ((process / name).read_text() for name in ("cmdline", "environ"))
            if str(folder) in command + environ and int(process.name) != os.getpid():
                yield int(process.name), command


def peak_bytes(folder: Path, word: str) -> float:
    """The greatest peak memory of a folder's processes with a word in their command lines."""
    return max(hwm(process) for process, command in processes_of(folder) if word in command)


def processor_seconds(folder: Path) -> float:
    """Processor seconds of a folder's processes and of their children that have ended."""
    ticks = 0
    for process, _ in processes_of(folder):
        with suppress(OSError):
            numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, numbers[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def hwm(process: int) -> float:
    """The peak memory of a process in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def write_data(case: Case, folder: Path) -> Path:
    """Write the rows and the initial model for plain Flower, and the latter for ours."""
    experiment = table_of(case, folder / "initial.safetensors")
    del experiment["initial"]
    resolved = resolve(parse("benchmark", experiment))
    params = jax.tree.map(np.asarray, resolved.model.init(jax.random.key(0)))
    fp.save_model(folder / "initial.safetensors", params)
    np.savez(folder / "initial.npz", *jax.tree.leaves(params))
    train, test = resolved.federation.train, resolved.federation.test
    for i in range(case.nodes):
        own, held = (slice(*part.offsets[i : i + 2]) for part in (train, test))
        np.savez(
            folder / f"{i}.npz",
            x=train.x[own],
            y=train.y[own],
            test_x=test.x[held],
            test_y=test.y[held],
        )
    return folder / "initial.safetensors"


def apart(a: Turn, b: Turn) -> float:
    """The distance of two final models, relative to the first."""
    pairs = list(zip(a.final, b.final, strict=True))
    squares = sum(float(np.sum((x.astype(float) - y) ** 2)) for x, y in pairs)
    return float(np.sqrt(squares / sum(float(np.sum(x.astype(float) ** 2)) for x, _ in pairs)))


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        yield Path(name)


def measured(name: str, case: Case, console: Console) -> tuple[list[Turn], list[Turn]]:
    """The turns of both sides."""
    turns: tuple[list[Turn], list[Turn]] = [], []
    with scratch() as data:
        initial = write_data(case, data)
        for _ in range(TURNS):
            for side, done in zip(("fedprox", "Flower"), turns, strict=True):
                load = os.getloadavg()[0]
                with scratch() as folder:
                    turn = (
                        ours(case, folder, initial)
                        if side == "fedprox"
                        else plain(case, folder, data)
                    )
                done.append(turn)
                console.print(
                    f"{name}, {side}, load {load:.1f}:",
                    " ".join(f"{seconds:.2f}" for seconds in turn.seconds),
                    f"s; {turn.work:.2f} processor s;",
                    " ".join(f"{kind} {peak / 2**20:.0f} MiB" for kind, peak in turn.peaks.items()),
                    soft_wrap=True,
                )
    distance = apart(turns[0][0], turns[1][0])
    if not distance < 1e-4:
        raise SystemExit(f"{name}: the final models differ, {distance:.1e}")
    return turns


def started(cache: Path) -> float:
    """Seconds from the start of `fedprox deploy` to the end of its first round."""
    with scratch() as folder:
        log = folder / "log"
        command = [sys.executable, "-m", "fedprox", "deploy", "examples/demo.toml"]
        command += ["--local", "3", "--out", str(folder / "run")]
        began = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, "FEDPROX_CACHE": str(cache)}
            )
        try:
            wait_for(lambda: "round 1:" in log.read_text(), [process])
            return time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def main() -> None:
    """Measure the cases and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["start", *CASES]
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"any of {', '.join(names)}")
    chosen = parser.parse_args().case or [name for name in names if name not in LARGEST]
    if unknown := set(chosen) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: no case; the cases are {', '.join(names)}")
    console = Console(width=160)
    fp.use_cpu_devices(1)
    starts = table("first round after, s: empty cache", "filled", left=0)
    if "start" in chosen:
        for _ in range(TURNS):
            with scratch() as cache:
                empty, filled = started(cache), started(cache)
            starts.add_row(f"{empty:.1f}", f"{filled:.1f}")
    headers = ("case", "fedprox", "", "first", "CPU", "Flower", "", "first", "CPU", "ratio")
    rounds = table(*headers, title="seconds a round")
    ours_, theirs_ = (
        ("node", "heartbeat", "SuperLink"),
        ("Flower's client", "SuperNode", "SuperLink"),
    )
    title = "bytes over the model's, most memory in MiB"
    costs = table("case", "down", "up", *ours_, *theirs_, title=title)
    for name, case in CASES.items():
        if name not in chosen:
            continue
        mine, theirs = measured(name, case, console)
        cells, best = [], []
        for turns in (mine, theirs):
            warm = sorted(turn.warm for turn in turns)
            best.append(warm[0])
            first = min(turn.seconds[0] for turn in turns)
            work = min(turn.work for turn in turns)
            cells += [f"{warm[0]:.2f}", f"to {warm[-1]:.2f}", f"{first:.2f}", f"{work:.2f}"]
        rounds.add_row(name, *cells, f"{best[0] / best[1]:.2f}")
        peaks = [
            f"{max(turn.peaks[kind] for turn in turns) / 2**20:.0f}"
            for turns, beside in ((mine, "heartbeat"), (theirs, "SuperNode"))
            for kind in ("node", beside, "SuperLink")
        ]
        costs.add_row(name, f"{mine[0].down:.3f}", f"{mine[0].up:.3f}", *peaks)
    show(*(each for each in (rounds, costs, starts) if each.row_count))


if __name__ == "__main__":
    main()
