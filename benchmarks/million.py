"""A million clients with a hundred million rows in mapped files, against a thousand clients.

    python -m benchmarks.million [--folder DIR] [--clients N] [--repeats R]

Logistic regression on 8 features and 4 classes, 50 to 150 rows of a client, FedAvg with 100 clients
a round, batches of 10, evaluated on 1,000 clients. The files, 1.9 GB, go to a temporary folder and
are removed in the end. Each line is a process of its own, since memory is counted for a process;
lines are run in turn, several times, and the median over all stretches of 50 rounds, an evaluation
of training loss and accuracy included, is shown. Ratios are to a thousand clients in files.

"files" are mapped, "memory" is the same federation in arrays. A cold line begins after the system
was asked to forget the files' pages, so that its rounds read from the disk.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import fedprox as fp

FEATURES, CLASSES, FEW, COHORT, TESTS = 8, 4, 1000, 100, 10
BLOCK = 10_000
"""Clients that are drawn at once."""

ROUNDS, EVERY, FIRST = 1000, 50, 5
"""Rounds, rounds between evaluations, and evaluations before which time is not counted: the first
rounds' plans are made while programs compile."""

EPOCHS = (1, 5)
CLOCKS = ("seconds", "processor")

Array = NDArray[Any]


def sizes(clients: int) -> NDArray[np.int64]:
    """Rows of each client: from 50 to 150, 100 in the mean."""
    return 50 + np.arange(clients) * 37 % 101


def clients(count: int, rows: NDArray[np.int64], seed: int) -> Iterator[tuple[Array, Array]]:
    """Each client's rows: its own mean, and labels by a rule that all share, with noise."""
    rule = np.random.default_rng(0).normal(size=(FEATURES, CLASSES)).astype(np.float32)
    for begin in range(0, count, BLOCK):
        stream = np.random.default_rng([seed, begin])
        mine = rows[begin : begin + BLOCK]
        mean = np.random.default_rng([7, begin]).normal(size=(len(mine), FEATURES))
        x = stream.standard_normal((int(mine.sum()), FEATURES), np.float32)
        x += np.repeat(mean.astype(np.float32), mine, axis=0)
        noise = stream.standard_normal((len(x), CLASSES), np.float32)
        y = (x @ rule + noise).argmax(axis=1).astype(np.uint8)
        edges = np.cumsum(mine)[:-1]
        yield from zip(np.split(x.astype(np.float16), edges), np.split(y, edges), strict=True)


def generate(folder: Path, count: int) -> None:
    """Write a federation of so many clients."""
    train = clients(count, sizes(count), 1)
    fp.datasets.write_mapped(folder, train, clients(count, np.full(count, TESTS), 2))


def forget(folder: Path) -> None:
    """Ask the system to drop the files' pages."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: str, where: str, epochs: int) -> None:
    """Print what a process takes, as JSON."""
    fp.use_cpu_devices(COHORT)
    begin = time.perf_counter()
    federation = fp.datasets.mapped(folder, classes=CLASSES)
    if where == "memory":
        train, test = (
            replace(part, x=np.array(part.x), y=np.array(part.y))
            for part in (federation.train, federation.test)
        )
        federation = replace(federation, train=train, test=test)
    opened, times = time.perf_counter() - begin, []
    begin = time.perf_counter()
    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedavg(),
        solver=fp.Solver(0.1, 10, epochs=epochs),
        cohort=fp.Cohort(COHORT),
        rounds=ROUNDS,
        evaluation=fp.Evaluation(every=EVERY, clients=FEW, gradients=False),
        on_record=lambda _: times.append((time.perf_counter(), time.process_time())),
    )
    last = run.final
    rounds = np.diff(times[FIRST:], axis=0) / EVERY
    found = {
        "seconds": rounds[:, 0].tolist(),
        "processor": rounds[:, 1].tolist(),
        "open": opened,
        "setup": times[0][0] - begin,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "loss": [last.train_loss, last.train_loss_se],
        "accuracy": [last.test_accuracy, last.test_accuracy_se],
    }
    print(json.dumps(found))


def line(folder: Path, where: str, epochs: int) -> dict[str, Any]:
    """What a process of its own takes."""
    command = [sys.executable, "-m", "benchmarks.million", "--line", str(folder), where]
    done = subprocess.run([*command, str(epochs)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(folder: Path, count: int, repeats: int) -> Table:
    """Both federations in turn."""
    lines = [(FEW, "memory"), (FEW, "files"), (count, "files"), (count, "cold")]
    shown = Table(title="FedAvg, 100 clients a round", box=None)
    for header in (
        "clients",
        "rows lie in",
        "E",
        "ms a round (ratio)",
        "processor, ms (ratio)",
        "open, s",
        "first model measured, s",
        "peak memory, MiB",
        "train loss",
        "accuracy, %",
    ):
        shown.add_column(header, justify="right")
    for epochs in EPOCHS:
        found: dict[tuple[int, str], list[dict[str, Any]]] = {each: [] for each in lines}
        for _ in range(repeats):
            for clients_, where in lines:
                if where == "cold":
                    forget(folder / str(clients_))
                place = "files" if where == "cold" else where
                found[clients_, where].append(line(folder / str(clients_), place, epochs))
        typical = {
            each: [statistics.median(s for one in many for s in one[what]) for what in CLOCKS]
            for each, many in found.items()
        }
        for each, many in found.items():
            (loss, loss_error), (accuracy, error) = many[0]["loss"], many[0]["accuracy"]
            shown.add_row(
                f"{each[0]:,}",
                "files, cold" if each[1] == "cold" else each[1],
                str(epochs),
                *(
                    f"{1e3 * t:.2f} ({t / base:.2f})"
                    for t, base in zip(typical[each], typical[FEW, "files"], strict=True)
                ),
                f"{statistics.median(one['open'] for one in many):.2f}",
                f"{statistics.median(one['setup'] for one in many):.1f}",
                f"{statistics.median(one['memory'] for one in many):.0f}",
                f"{loss:.4f} ± {loss_error:.4f}",
                f"{100 * accuracy:.2f} ± {100 * error:.2f}",
            )
    return shown


def main() -> None:
    """Make the files, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--clients", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--line", nargs=3)
    arguments = parser.parse_args()
    if arguments.line:
        folder, where, epochs = arguments.line
        measure(folder, where, int(epochs))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        folder = Path(made)
        for count in (FEW, arguments.clients):
            begin = time.perf_counter()
            generate(folder / str(count), count)
            size = sum(path.stat().st_size for path in (folder / str(count)).iterdir())
            print(
                f"{count:,} clients, {int(sizes(count).sum()):,} rows, {size / 1e9:.2f} GB, "
                f"written in {time.perf_counter() - begin:.0f} s"
            )
        Console(width=140).print(compare(folder, arguments.clients, arguments.repeats))


if __name__ == "__main__":
    main()
