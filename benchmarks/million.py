"""A million clients with a hundred million rows in mapped files, against a thousand clients.

    python -m benchmarks.million [--folder DIR] [--clients N] [--repeats R]

Logistic regression on 8 features and 4 classes, 50 to 150 rows of a client, FedAvg with 100 clients
a round, batches of 10, evaluated on 1,000 clients. The files, 1.9 GB, are written to a temporary
folder and removed at the end. Each line runs in a separate process, because memory is measured by
process. Lines alternate and are repeated; the table shows medians over all blocks of 50 rounds,
each with an evaluation of training loss and accuracy. Ratios are to a thousand clients in files.

"files" are mapped files, "memory" is the same federation in arrays. Before a "cold" line the system
is asked to drop the files' pages from its cache, so that rounds read from the disk.
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
from rich.table import Table

import fedprox as fp
from benchmarks.page import show, table

FEATURES, CLASSES, FEW, COHORT, TESTS = 8, 4, 1000, 100, 10
BLOCK = 10_000
"""Clients whose rows are generated together."""

ROUNDS, EVERY, FIRST = 1000, 50, 5
"""Rounds, rounds between evaluations, and the first evaluation from which time is counted: the
plans of earlier rounds are made while programs compile."""

EPOCHS = (1, 5)
CLOCKS = ("seconds", "processor")
HEADERS = (
    *("clients", "rows in", "E", "ms a round (ratio)", "processor, ms (ratio)"),
    *("open, s", "first model measured, s", "peak memory, MiB", "train loss", "accuracy, %"),
)

Array = NDArray[Any]


def sizes(clients: int) -> NDArray[np.int64]:
    """Rows of each client: from 50 to 150, 100 on average."""
    return 50 + np.arange(clients) * 37 % 101


def clients(count: int, rows: NDArray[np.int64], seed: int) -> Iterator[tuple[Array, Array]]:
    """Each client's rows: features around its own mean, labels by a common rule with noise."""
    rule = np.random.default_rng(0).normal(size=(FEATURES, CLASSES)).astype(np.float32)
    for begin in range(0, count, BLOCK):
        stream = np.random.default_rng([seed, begin])
        block_rows = rows[begin : begin + BLOCK]
        mean = np.random.default_rng([7, begin]).normal(size=(len(block_rows), FEATURES))
        x = stream.standard_normal((int(block_rows.sum()), FEATURES), np.float32)
        x += np.repeat(mean.astype(np.float32), block_rows, axis=0)
        noise = stream.standard_normal((len(x), CLASSES), np.float32)
        y = (x @ rule + noise).argmax(axis=1).astype(np.uint8)
        edges = np.cumsum(block_rows)[:-1]
        yield from zip(np.split(x.astype(np.float16), edges), np.split(y, edges), strict=True)


def generate(folder: Path, count: int) -> None:
    """Write the files of a federation of `count` clients."""
    train = clients(count, sizes(count), 1)
    fp.datasets.write_mapped(folder, train, clients(count, np.full(count, TESTS), 2))


def drop_pages(folder: Path) -> None:
    """Ask the system to drop the files' pages from its cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: str, where: str, epochs: int) -> None:
    """Print the measurements of a line, as JSON."""
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

    def note_times(_: fp.Record) -> None:
        times.append((time.perf_counter(), time.process_time()))

    begin = time.perf_counter()
    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedavg(),
        solver=fp.Solver(0.1, 10, epochs=epochs),
        cohort=fp.Cohort(COHORT),
        rounds=ROUNDS,
        evaluation=fp.Evaluation(every=EVERY, clients=FEW, gradients=False),
        callbacks=[fp.Callback(on_record=note_times)],
    )
    last = run.final
    rounds = np.diff(times[FIRST:], axis=0) / EVERY
    measurements = {
        "seconds": rounds[:, 0].tolist(),
        "processor": rounds[:, 1].tolist(),
        "open": opened,
        "setup": times[0][0] - begin,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "loss": [last.train_loss, last.train_loss_se],
        "accuracy": [last.test_accuracy, last.test_accuracy_se],
    }
    print(json.dumps(measurements))


def measure_in_process(folder: Path, where: str, epochs: int) -> dict[str, Any]:
    """The measurements of a line in a new process."""
    command = [sys.executable, "-m", "benchmarks.million", "--line", str(folder), where]
    done = subprocess.run([*command, str(epochs)], check=True, capture_output=True, text=True)
    measurements: dict[str, Any] = json.loads(done.stdout)
    return measurements


def compare(folder: Path, count: int, repeats: int) -> Table:
    """A table with both federations, whose lines alternate."""
    lines = [(FEW, "memory"), (FEW, "files"), (count, "files"), (count, "cold")]
    shown = table(*HEADERS, title="FedAvg, 100 clients a round", left=2)
    for epochs in EPOCHS:
        repeated: dict[tuple[int, str], list[dict[str, Any]]] = {each: [] for each in lines}
        for _ in range(repeats):
            for clients_, where in lines:
                if where == "cold":
                    drop_pages(folder / str(clients_))
                storage = "files" if where == "cold" else where
                repeated[clients_, where].append(
                    measure_in_process(folder / str(clients_), storage, epochs)
                )
        medians = {
            each: [statistics.median(s for one in runs for s in one[what]) for what in CLOCKS]
            for each, runs in repeated.items()
        }
        for each, runs in repeated.items():
            (loss, loss_error), (accuracy, error) = runs[0]["loss"], runs[0]["accuracy"]
            shown.add_row(
                f"{each[0]:,}",
                "files, cold" if each[1] == "cold" else each[1],
                str(epochs),
                *(
                    f"{1e3 * t:.2f} ({t / base:.2f})"
                    for t, base in zip(medians[each], medians[FEW, "files"], strict=True)
                ),
                f"{statistics.median(one['open'] for one in runs):.2f}",
                f"{statistics.median(one['setup'] for one in runs):.1f}",
                f"{statistics.median(one['memory'] for one in runs):.0f}",
                f"{loss:.4f} ± {loss_error:.4f}",
                f"{100 * accuracy:.2f} ± {100 * error:.2f}",
            )
    return shown


def main() -> None:
    """Write the files, measure and print the table."""
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
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        for count in (FEW, arguments.clients):
            begin = time.perf_counter()
            generate(folder / str(count), count)
            size = sum(path.stat().st_size for path in (folder / str(count)).iterdir())
            print(
                f"{count:,} clients, {int(sizes(count).sum()):,} rows, {size / 1e9:.2f} GB, "
                f"written in {time.perf_counter() - begin:.0f} s"
            )
        show(compare(folder, arguments.clients, arguments.repeats))


if __name__ == "__main__":
    main()
