"""Rounds of logistic regression: the library against a NumPy loop and a torch loop.

    python -m benchmarks.rounds [--data-dir DIR]

SYN is Synthetic(1,1) with E = 20, evaluated every round; LR-MNIST is MNIST over 1,000 clients with
E = 1 and E = 20, evaluated every 20 rounds. Batches of 10, 10 clients a round, no stragglers. The
library and the loops train the same clients on the same mini-batches from the same initial model,
and their final losses must agree. All evaluate training loss, test accuracy and gradient variance;
the library also measures gamma.
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
from tempfile import TemporaryDirectory

from rich.table import Table

import fedprox as fp
from benchmarks.loops import Setting, Timing, numpy_loop, torch_loop
from benchmarks.page import add, leave_out, show, table

SYN_SEED = 1834
"""Data seed with which a round has about 13,000 client steps."""


def settings(data_dir: str | None) -> dict[str, Setting]:
    """The benchmarks by name, with mu = 0."""
    synthetic = fp.datasets.synthetic(1.0, 1.0, seed=SYN_SEED)
    known = {"SYN": Setting(synthetic, fp.Solver(0.01, 10, epochs=20), 10, 60, 1, 0.0)}
    try:
        mnist = fp.datasets.mnist(data_dir=data_dir)
    except fp.InputError as error:
        leave_out("LR-MNIST", error)
        return known
    for epochs in (1, 20):
        solver = fp.Solver(0.03, 10, epochs=epochs)
        known[f"LR-MNIST E={epochs}"] = Setting(mnist, solver, 10, 100, 20, 0.0)
    return known


def library(setting: Setting, *mus: float) -> fp.Run:
    """The fastest of three runs, without compilation."""

    def once() -> fp.Run:
        return fp.simulate(
            setting.federation,
            fp.models.logistic(setting.federation, initial="zeros"),
            fp.fedprox(mu=mus) if any(mus) else fp.fedavg(),
            solver=setting.solver,
            cohort=fp.Cohort(setting.clients_per_round),
            rounds=setting.rounds,
            evaluation=fp.Evaluation(every=setting.evaluate_every),
        )[0]

    return min((once() for _ in range(3)), key=lambda run: run.run_seconds)


def fastest(loop: Callable[[Setting], Timing], setting: Setting, runs: int) -> Timing:
    """The fastest of some runs of a loop."""
    return min((loop(setting) for _ in range(runs)), key=lambda t: t.rounds + t.evaluations)


def few_and_many(setting: Setting) -> tuple[fp.Run, fp.Run]:
    """Runs of the setting's rounds and of three times these.

    Only the initial and the final model are evaluated, so the difference is that of the rounds.
    """
    few = replace(setting, evaluate_every=setting.rounds)
    many = replace(few, rounds=3 * few.rounds, evaluate_every=3 * few.rounds)
    return library(few, setting.mu), library(many, setting.mu)


def rounds_alone(setting: Setting) -> float:
    """Seconds of the setting's rounds without evaluations."""
    few, many = few_and_many(setting)
    return (many.run_seconds - few.run_seconds) / 2


def compare_rounds(name: str, setting: Setting, shown: Table) -> None:
    """Add a row with evaluations and one without, for FedAvg and for FedProx mu = 1."""
    for mu in (0.0, 1.0):
        with_mu = replace(setting, mu=mu)
        ours = library(with_mu, mu)
        by_numpy = fastest(numpy_loop, with_mu, 3)
        check(name, ours.final.train_loss, by_numpy.loss)
        # torch is slow at twenty epochs: it runs fewer rounds, evaluated in proportion, and its
        # loss is compared with that of a shorter run of the library
        few = with_mu
        if with_mu.solver.epochs != 1:
            few = replace(
                with_mu,
                rounds=with_mu.rounds // 10,
                evaluate_every=max(1, with_mu.evaluate_every // 10),
            )
        by_torch = fastest(torch_loop, few, 2)
        check(name, library(few, mu).final.train_loss, by_torch.loss)
        alone = rounds_alone(with_mu)
        method = f"FedProx mu = {mu:g}" if mu else "FedAvg"
        whole = [
            1e3 * ours.run_seconds / with_mu.rounds,
            1e3 * (by_numpy.rounds + by_numpy.evaluations) / with_mu.rounds,
            1e3 * (by_torch.rounds + by_torch.evaluations) / few.rounds,
        ]
        parts = [
            1e3 * alone / with_mu.rounds,
            1e3 * by_numpy.rounds / with_mu.rounds,
            1e3 * by_torch.rounds / few.rounds,
        ]
        for what, (fast, numpy_, torch_) in (("run", whole), ("rounds alone", parts)):
            add(
                shown,
                name,
                method,
                what,
                f"{fast:.2f}",
                f"{numpy_:.2f}",
                f"{torch_:.1f}",
                f"{numpy_ / fast:.1f}",
                f"{torch_ / fast:.0f}",
                f"{100 * ours.lane_idle:.1f} %",
            )


def check(name: str, ours: float, theirs: float) -> None:
    """Exit if the losses, and so the trained models, differ."""
    if abs(ours - theirs) > 1e-3 * abs(theirs):
        raise SystemExit(f"{name}: losses differ, {ours} against {theirs}")


def sweep(setting: Setting) -> str:
    """The time of four values of mu in one program, relative to one value."""
    one, four = library(setting, 1.0), library(setting, 0.0, 0.01, 0.1, 1.0)
    ratio = four.run_seconds / one.run_seconds
    return f"SYN, four values of mu in one program: {ratio:.2f} times the time of one"


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
    solver=fp.Solver(0.03, 10, epochs=1), cohort=fp.Cohort(10), rounds=100,
    evaluation=fp.Evaluation(every=20),
)
print(json.dumps([imported - begin, loaded - imported, run.compile_seconds, run.run_seconds]))
"""


def cold(data_dir: str | None, cache: Path | None) -> list[float]:
    """Seconds of LR-MNIST E = 1 in a new process: import, data, compile, run, whole."""
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
    fp.use_cpu_devices(10)
    benchmarks = settings(data_dir)
    headers = "benchmark,method,what,fedprox,NumPy,torch,NumPy/fedprox,torch/fedprox,lane idle"
    warm = table(*headers.split(","), title="ms per round, warm", left=3)
    for name, setting in benchmarks.items():
        compare_rounds(name, setting, warm)
    warm.caption = sweep(benchmarks["SYN"])
    tables = [warm]
    if len(benchmarks) > 1:
        headers = "cache of compiled programs,import,data,compile,run,whole process"
        fresh = table(*headers.split(","), title="LR-MNIST E = 1, a fresh process, seconds")
        with TemporaryDirectory() as folder:
            for label, cache in (("none", None), ("empty", folder), ("filled", folder)):
                parts = cold(data_dir, Path(cache) if cache else None)
                add(fresh, label, *(f"{part:.2f}" for part in parts))
        tables.append(fresh)
    show(*tables)


if __name__ == "__main__":
    main()
