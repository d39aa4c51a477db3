"""What a checkpoint costs, and what it costs to go on from one.

    python -m benchmarks.checkpoints [--data-dir DIR]

MNIST, 10 clients a round, B = 10, E = 1. *To write* is the mean of some checkpoints. *To go on*
is what a call with `resume` takes for the one round that is left, more than a call that trains one
round from the start, compilation left out of both: reading, and giving clients what they kept.
*One per cent* is the number of rounds between checkpoints at which they take a hundredth of a run.
"""

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

import fedprox as fp

Problem = tuple[str, Literal["power-law", "iid"], fp.Algorithm, int]
PROBLEMS: tuple[Problem, ...] = (
    ("logistic regression", "power-law", fp.fedavg(), 400),
    ("logistic regression", "power-law", fp.scaffold(), 400),
    ("2NN", "iid", fp.scaffold(), 20),
    ("MNIST CNN", "iid", fp.fedavg(), 1),
)
CHECKPOINTS = 5


def model(name: str, federation: fp.Federation) -> fp.Model:
    """The model of a name."""
    if name == "2NN":
        return fp.models.mlp(federation, hidden=[200, 200])
    return (
        fp.models.mnist_cnn(federation) if name == "MNIST CNN" else fp.models.logistic(federation)
    )


def call(
    federation: fp.Federation,
    model: fp.Model,
    method: fp.Algorithm,
    rounds: int,
    checkpoints: fp.Checkpoints | None = None,
) -> tuple[fp.Run, float]:
    """A run, and the seconds of the whole call."""
    begin = time.perf_counter()
    (found,) = fp.simulate(
        federation,
        model,
        method,
        solver=fp.Solver(0.03, 10, epochs=1),
        cohort=fp.Cohort(10),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
        checkpoints=checkpoints,
    )
    return found, time.perf_counter() - begin


def main() -> None:
    """A line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    headers = ("method", "ms a round", "MB", "ms to write", "ms to go on", "one per cent, rounds")
    for header in ("model", *headers):
        shown.add_column(header, justify="left" if header in ("model", "method") else "right")
    for name, partition, method, rounds in PROBLEMS:
        federation = fp.datasets.mnist(partition, data_dir=arguments.data_dir)
        made = model(name, federation)

        train = partial(call, federation, made, method)
        with tempfile.TemporaryDirectory() as folder:
            place, last = Path(folder) / "checkpoint", rounds * CHECKPOINTS + 1
            plain, _ = train(last)
            keeping = fp.Checkpoints(place, every=rounds)
            kept, _ = train(last, keeping)
            again, seconds = train(last, fp.Checkpoints(place, resume=True))
            seconds -= again.compile_seconds - kept.compile_seconds
            fresh, one_round = train(1)
            seconds -= one_round - fresh.compile_seconds
        write, a_round = keeping.seconds / keeping.made, plain.run_seconds / last
        shown.add_row(
            name,
            method.name,
            f"{1e3 * a_round:.2f}",
            f"{keeping.size / 1e6:.2f}",
            f"{1e3 * write:.0f}",
            f"{1e3 * seconds:.0f}",
            f"{100 * write / a_round:.0f}",
        )
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()
