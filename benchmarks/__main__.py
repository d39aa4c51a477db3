"""Run benchmarks, and write their tables into benchmarks/README.md.

    python -m benchmarks [NAME ...]
    python -m benchmarks --old

Without names all run, one after the other, each in a process of its own. A script that fails leaves
its old table, and the command ends with status 1.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.page import README, TABLES, load, old, write


class Script(NamedTuple):
    """Estimated minutes of a command on two idle cores, and what it needs beside the library."""

    minutes: float
    packages: tuple[str, ...] = ()
    data: str = ""


ALL = {
    "rounds": Script(3, ("numpy", "torch"), "MNIST"),
    "secure --flower": Script(40, ("flwr", "cryptography")),
    "guarantees": Script(35, ("flwr",)),
    "secure": Script(3, ("numpy", "cryptography")),
    "tables": Script(3, ("pyarrow", "polars")),
    "many_rounds": Script(2),
    "clients": Script(1),
    "scheduler": Script(3, ("numpy",)),
    "solvers": Script(1, ("optax",)),
    "sweeps": Script(5, (), "MNIST"),
    "client_state": Script(5, (), "CIFAR-10"),
    "asynchronous": Script(4, (), "MNIST"),
    "slow_node": Script(4, ("flwr",), "MNIST"),
    "faults": Script(1, (), "MNIST"),
    "privacy": Script(3, (), "MNIST"),
    "privacy_examples": Script(2, (), "MNIST"),
    "methods": Script(2),
    "by_client": Script(2, (), "MNIST"),
    "devices": Script(2, (), "MNIST"),
    "processes": Script(2, (), "MNIST"),
    "liars": Script(5, (), "MNIST"),
    "deployment": Script(30, ("flwr",)),
    "bases": Script(2),
    "precision": Script(10, (), "MNIST"),
    "checkpoints": Script(2, (), "MNIST"),
    "models": Script(5, ("torch",)),
    "ablation": Script(3),
    "flax_layers": Script(5, ("flax",)),
    "diagnose": Script(12, (), "MNIST, EMNIST"),
    "bounds": Script(1),
    "million": Script(3, ("numpy",)),
}
"""The commands whose tables the README has."""


def main() -> None:
    """Run the commands that are named, or all."""
    listed = "\n".join(
        f"  {name:24} {minutes:g} min  {', '.join(filter(None, (*packages, data)))}"
        for name, (minutes, packages, data) in ALL.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.splitlines()[0],
        epilog=f"names, estimated minutes and what they need:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="commands to run; all if none")
    parser.add_argument("--old", action="store_true", help="list sections older than a year")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in ALL]:
        parser.error(f"{', '.join(unknown)}: no benchmark; allowed are {', '.join(ALL)}")
    if given.old:
        today = datetime.datetime.now(datetime.UTC).date()
        print("\n".join(old(README.read_text(encoding="utf-8"), today)))
        return
    failed = [name for name in given.names or ALL if not run(name)]
    if failed:
        raise SystemExit(f"failed, their tables are the old ones: {', '.join(failed)}")


def run(name: str) -> bool:
    """Run a command and write its tables; whether it succeeded."""
    print(f"{name}: about {ALL[name].minutes:g} minutes", flush=True)
    script, *arguments = name.split()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tables.md"
        busy, began = load(), time.perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{script}", *arguments]
        done = subprocess.run(command, check=False, env={**os.environ, TABLES: str(file)})
        if done.returncode or not file.exists():
            return False
        write(name, file.read_text(encoding="utf-8"), ALL[name].packages, busy)
    print(f"{name}: {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    return True


if __name__ == "__main__":
    main()
