"""A deployment with one slow node: rounds that wait for it, and rounds that do not.

    python -m benchmarks.slow_node [--rounds 12]

Three nodes as processes, over Flower on the loopback, train the MNIST CNN. One of them is stopped
for four fifths of the time, so it is five times slower. It prints the seconds to each test
accuracy, with a barrier and with a buffer of one update, once all programs are compiled.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.page import add, show, table

EXPERIMENT = """
rounds = {rounds}
client_rows = 600

[data]
name = "mnist"
partition = "iid"
clients = 3

[model]
name = "mnist-cnn"

[cohort]
clients_per_round = 3

[evaluation]
every = {every}
gradients = false
rows = 200

[solver]
learning_rate = 0.02
batch_size = 10
epochs = 2

[[method]]
name = "fedavg"
{more}
"""

STOPPED, RUNS = 0.4, 0.1
"""Seconds for which the slow node is stopped and runs, in turn."""

ACCURACIES = (0.88, 0.9, 0.92)


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The records of a run directory, while it is written."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def process_of(node: str) -> int | None:
    """The process of a node of a trial."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(f"/{node}/node.toml".encode()) for word in words):
            return int(path.parent.name)
    return None


def slow_down(folder: Path, over: threading.Event) -> None:
    """Stop and continue the third node once all programs are compiled."""
    while not over.is_set() and len(records_of(folder)) < 2:
        time.sleep(0.1)
    pid = process_of("node-3")
    while pid is not None and not over.is_set():
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        time.sleep(RUNS)


def run(folder: Path, rounds: int, every: int, more: str) -> list[dict[str, Any]]:
    """Deploy the experiment on three nodes, and return its records."""
    file = folder.with_suffix(".toml")
    file.write_text(EXPERIMENT.format(rounds=rounds, every=every, more=more))
    over = threading.Event()
    slowing = threading.Thread(target=slow_down, args=(folder, over))
    slowing.start()
    try:
        subprocess.run(
            [sys.executable, "-m", "fedprox", "deploy", file, "--local", "3", "--out", folder],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    finally:
        over.set()
        slowing.join()
    return records_of(folder)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="rounds with a barrier")
    arguments = parser.parse_args()
    rules = {
        "waits for all": (arguments.rounds, 3, ""),
        "buffer of 1": (6 * arguments.rounds, 9, "\n[asynchronous]\nbuffer = 1\n"),
    }
    shown = table("rule", "updates", "seconds", *(f"seconds to {a:.0%}" for a in ACCURACIES))
    with tempfile.TemporaryDirectory() as folder:
        for rule, (rounds, every, more) in rules.items():
            records = run(Path(folder) / rule.replace(" ", "-"), rounds, every, more)
            first, seconds, reached = records[1]["round"], 0.0, Counter[float]()
            for record in records[2:]:
                seconds += record["seconds"]
                for accuracy in ACCURACIES:
                    if record["test_accuracy"] >= accuracy:
                        reached.setdefault(accuracy, seconds)
            # both are measured from the ninth update on
            updates = (records[-1]["round"] - first) * (1 if more else 3)
            times = (f"{reached[a]:.0f}" if a in reached else "-" for a in ACCURACIES)
            add(shown, rule, str(updates), f"{seconds:.0f}", *times)
    show(shown)


if __name__ == "__main__":
    main()
