"""The time and memory that client state costs.

    python -m benchmarks.client_state [--data-dir DIR]

FedDyn's CNN (797,962 parameters) on CIFAR-10 over 1,000 IID clients of 50 images, 100 clients a
round with one step each: the most state for the least work. FedAvg has no client state. FedDyn and
SCAFFOLD store a vector for each client, and a second one if the mean of all clients' last models is
evaluated. Each line runs in a separate process and shows the greatest resident memory of that
process; FedAvg's line shows how much of it the data and the rounds' program take.
"""

import argparse
import os
import resource
import subprocess
import sys
from typing import Any

import fedprox as fp
from benchmarks.page import add, show, table

CLIENTS, COHORT, ROUNDS = 1000, 100, 10
LINES = (
    ("fedavg", "host", "server"),
    ("feddyn", "host", "server"),
    ("feddyn", "disk", "server"),
    ("feddyn", "disk", "clients"),
    ("scaffold", "disk", "server"),
    ("scaffold", "disk", "clients"),
)


def measure(method: str, where: Any, evaluated: Any, data_dir: str | None) -> None:
    """Print seconds per round and the process's memory in GiB."""
    fp.use_cpu_devices(COHORT)
    federation = fp.datasets.cifar_10("iid", clients=CLIENTS, data_dir=data_dir)
    methods = {"fedavg": fp.fedavg(), "feddyn": fp.feddyn(0.01), "scaffold": fp.scaffold()}
    (run,) = fp.simulate(
        federation,
        fp.models.wide_lenet(federation),
        methods[method],
        solver=fp.Solver(0.05, 50, epochs=1),
        cohort=fp.Cohort(COHORT),
        rounds=ROUNDS,
        evaluation=fp.Evaluation(every=ROUNDS, rows=1, model=evaluated, gradients=False),
        client_store=where,
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{run.run_seconds / ROUNDS:.2f} {memory:.2f}")


def main() -> None:
    """Measure one line, or all of them, each in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--line", nargs=3)
    arguments = parser.parse_args()
    if arguments.line:
        method, where, evaluated = arguments.line
        measure(method, where, evaluated, arguments.data_dir)
        return
    shown = table("method", "store", "evaluated", "seconds a round", "GiB", left=3)
    for line in LINES:
        command = [sys.executable, "-m", "benchmarks.client_state", "--line", *line]
        folder = ["--data-dir", arguments.data_dir] if arguments.data_dir else []
        done = subprocess.run([*command, *folder], check=True, stdout=subprocess.PIPE, text=True)
        add(shown, *line, *done.stdout.split()[-2:])
    show(shown)


if __name__ == "__main__":
    main()
