"""Rounds of logistic regression: the library against a NumPy loop and a torch loop.

    python -m benchmarks.rounds [--data-dir DIR]

SYN is Synthetic(1,1) with E = 20, evaluated every round; LR-MNIST is MNIST over 1,000 clients with
E = 1 and E = 20, evaluated every 20 rounds. Batches of 10, 10 clients a round, no stragglers. All
three sides train the same clients on the same mini-batches from the same start, and their final
losses must agree. An evaluation is training loss, test accuracy and gradient variance on all sides;
the library measures gamma besides.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import fedprox as fp
from benchmarks.loops import Setting, numpy_loop, torch_loop

SYN_SEED = 1834
"""Data seed whose client sizes make a round about 13,000 client steps."""


def settings(data_dir: str | None) -> dict[str, Setting]:
    """The benchmarks by name, with mu = 0."""
    synthetic = fp.datasets.synthetic(1.0, 1.0, seed=SYN_SEED)
    found = {"SYN": Setting(synthetic, fp.Solver(0.01, 10, epochs=20), 10, 60, 1, 0.0)}
    try:
        mnist = fp.datasets.mnist(data_dir=data_dir)
    except fp.InputError as error:
        print(f"LR-MNIST is left out: {error}", file=sys.stderr)
        return found
    for epochs in (1, 20):
        solver = fp.Solver(0.03, 10, epochs=epochs)
        found[f"LR-MNIST E={epochs}"] = Setting(mnist, solver, 10, 100, 20, 0.0)
    return found


def library(setting: Setting, *mus: float) -> list[fp.Run]:
    """The same with the library; the programs are compiled first and not timed."""
    return fp.simulate(
        setting.federation,
        fp.models.logistic(setting.federation, initial="zeros"),
        fp.fedprox(mu=mus) if any(mus) or len(mus) > 1 else fp.fedavg(),
        solver=setting.solver,
        cohort=fp.Cohort(setting.clients_per_round),
        rounds=setting.rounds,
        evaluate_every=setting.evaluate_every,
    )


def timed(loop: Callable[[Setting], tuple[float, float]], setting: Setting) -> tuple[float, float]:
    """Milliseconds per round, and final loss."""
    begin = time.perf_counter()
    loss, _ = loop(setting)
    return 1e3 * (time.perf_counter() - begin) / setting.rounds, loss


def compare_rounds(name: str, setting: Setting, table: Table) -> None:
    """Add one row for FedAvg and one for FedProx mu = 1."""
    for mu in (0.0, 1.0):
        here = replace(setting, mu=mu)
        best = min((library(here, mu)[0] for _ in range(3)), key=lambda run: run.run_seconds)
        ours = 1e3 * best.run_seconds / here.rounds
        by_numpy, loss = timed(numpy_loop, here)
        check(name, best.final.train_loss, loss)
        # torch is slow: fewer rounds for SYN, and its own run of the library to agree with
        few = replace(here, rounds=here.rounds // 10) if name == "SYN" else here
        by_torch, loss = timed(torch_loop, few)
        check(name, library(few, mu)[0].final.train_loss, loss)
        table.add_row(
            name,
            f"mu = {mu:g}" if mu else "FedAvg",
            f"{best.client_steps / here.rounds:,.0f}",
            f"{ours:.2f}",
            f"{by_numpy:.2f}",
            f"{by_torch:.1f}",
            f"{by_numpy / ours:.1f}",
            f"{by_torch / ours:.0f}",
            f"{100 * best.lane_idle:.1f} %",
            f"{best.compile_seconds:.1f}",
        )


def check(name: str, ours: float, theirs: float) -> None:
    """The sides must have trained the same model."""
    if abs(ours - theirs) > 1e-3 * abs(theirs):
        raise SystemExit(f"{name}: losses differ, {ours} against {theirs}")


def sweep(setting: Setting) -> str:
    """Time of four values of mu in one program against one."""
    one = min(library(setting, 1.0)[0].run_seconds for _ in range(3))
    four = min(library(setting, 0.0, 0.01, 0.1, 1.0)[0].run_seconds for _ in range(3))
    return f"SYN, four values of mu in one program: {four / one:.2f} times the time of one"


COLD = """
import json, sys, time
begin = time.perf_counter()
import fedprox as fp
fp.use_cpu_devices(10)
{cache}
imported = time.perf_counter()
federation = fp.datasets.mnist(data_dir=sys.argv[1] or None)
loaded = time.perf_counter()
(run,) = fp.simulate(
    federation, fp.models.logistic(federation), fp.fedavg(),
    solver=fp.Solver(0.03, 10, epochs=1), cohort=fp.Cohort(10), rounds=100, evaluate_every=20,
)
print(json.dumps([imported - begin, loaded - imported, run.compile_seconds, run.run_seconds,
                  time.perf_counter() - begin]))
"""


def cold(data_dir: str | None, cache: Path | None) -> list[float]:
    """Seconds of a fresh process for LR-MNIST E = 1: import, data, compile, run, all inside it."""
    line = f"import pathlib; fp.use_compilation_cache(pathlib.Path({str(cache)!r}))"
    code = COLD.format(cache=line if cache else "")
    command = [sys.executable, "-c", code, data_dir or ""]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    parts: list[float] = json.loads(done.stdout)
    return [*parts, time.perf_counter() - begin]


def main() -> None:
    """Run all and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    data_dir = parser.parse_args().data_dir
    console = Console(width=130)
    fp.use_cpu_devices(10)
    benchmarks = settings(data_dir)
    table = Table(title="ms per round, warm, evaluations included", box=None)
    headers = "benchmark,method,client steps,fedprox,NumPy,torch,NumPy / fedprox,torch / fedprox"
    for header in [*headers.split(","), "lane idle", "compile s"]:
        table.add_column(header, justify="right")
    for name, setting in benchmarks.items():
        compare_rounds(name, setting, table)
    console.print(table)
    console.print(sweep(benchmarks["SYN"]))
    if len(benchmarks) > 1:
        shown = Table(title="LR-MNIST E = 1, a fresh process, seconds", box=None)
        for header in ("cache", "import", "data", "compile", "run", "inside", "whole process"):
            shown.add_column(header, justify="right")
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            for label, cache in (("none", None), ("empty", folder), ("filled", folder)):
                parts = cold(data_dir, Path(cache) if cache else None)
                shown.add_row(label, *(f"{part:.2f}" for part in parts))
        console.print(shown)


if __name__ == "__main__":
    main()
