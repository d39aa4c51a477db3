"""The cost of a checkpoint, and of resuming from one.

    python -m benchmarks.checkpoints [--data-dir DIR]

MNIST, 10 clients a round, B = 10, E = 1. *To write* is the mean over several checkpoints. *To
resume* is the time of a call with `resume` for one more round, minus that of a call that trains one
round from the start, both without compilation: the time to read the checkpoint and to restore
client state. *One per cent* is the number of rounds between checkpoints at which
checkpoints take one per cent of a run's time.
"""

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Literal

import fedprox as fp
from benchmarks.page import show, table

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
    (run,) = fp.simulate(
        federation,
        model,
        method,
        solver=fp.Solver(0.03, 10, epochs=1),
        cohort=fp.Cohort(10),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
        checkpoints=checkpoints,
    )
    return run, time.perf_counter() - begin


def main() -> None:
    """Print a line for each problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    headers = ("method", "ms a round", "MB", "ms to write", "ms to resume", "one per cent, rounds")
    shown = table("model", *headers, left=2)
    for name, partition, method, rounds in PROBLEMS:
        federation = fp.datasets.mnist(partition, data_dir=arguments.data_dir)
        train = partial(call, federation, model(name, federation), method)
        with tempfile.TemporaryDirectory() as folder:
            path, last = Path(folder) / "checkpoint", rounds * CHECKPOINTS
            plain, _ = train(last)
            checkpoints = fp.Checkpoints(path, every=rounds)
            written, _ = train(last, checkpoints)
            again = fp.Checkpoints(path, resume=True)
            resumed, seconds = train(last + 1, again)
            seconds -= resumed.compile_seconds - written.compile_seconds + again.seconds
            fresh, one_round = train(1)
            seconds -= one_round - fresh.compile_seconds
        write, a_round = checkpoints.seconds / checkpoints.made, plain.run_seconds / last
        shown.add_row(
            name,
            method.name,
            f"{1e3 * a_round:.2f}",
            f"{checkpoints.size / 1e6:.2f}",
            f"{1e3 * write:.0f}",
            f"{1e3 * seconds:.0f}",
            f"{100 * write / a_round:.0f}",
        )
    show(shown)


if __name__ == "__main__":
    main()
