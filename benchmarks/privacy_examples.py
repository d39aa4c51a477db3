"""The cost of hiding examples: local steps with clipped gradients and noise, and plain ones.

    python -m benchmarks.privacy_examples [--data-dir DIR] [--only LR CNN]

FedAvg with two clients a round: logistic regression on 60 features (SYN) and on MNIST (LR) with
6,000 rows a client, and the CNN of McMahan et al. 2017 with 600, each at several batch sizes.
Processor milliseconds of a step, planning included: the difference of a long and a short run, over
the difference of their steps. Both variants run in this process, and the least of each counts.
"""

import argparse
import math
import os
import time

import numpy as np

import fedprox as fp
from benchmarks.page import add, show, table

TURNS = 2
CASES = {
    "SYN": [(10, 5), (64, 15)],
    "LR": [(256, 10), (64, 5), (10, 3)],
    "CNN": [(10, 1), (64, 2)],
}
"""The batch sizes of a problem, and epochs of a short run; a long run has three times as many."""


def problem(name: str, data_dir: str | None) -> tuple[fp.Federation, fp.Model]:
    """Data and model."""
    if name == "SYN":
        rng = np.random.default_rng(0)
        parts = [
            (rng.normal(size=(6000, 60)).astype(np.float32), np.arange(6000) % 10) for _ in range(2)
        ]
        federation = fp.Federation.from_arrays(parts)
    else:
        clients = 100 if name == "CNN" else 10
        federation = fp.datasets.mnist("iid", clients=clients, data_dir=data_dir)
    model = fp.models.mnist_cnn if name == "CNN" else fp.models.logistic
    return federation, model(federation)


def seconds(
    federation: fp.Federation,
    model: fp.Model,
    solver: fp.Solver,
    rounds: int,
    privacy: fp.Privacy | None,
) -> float:
    """Processor seconds of a run."""
    began = time.process_time()
    fp.simulate(
        *(federation, model, fp.fedavg()),
        solver=solver,
        cohort=fp.Cohort(2),
        privacy=privacy,
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
        progress=False,
    )
    return time.process_time() - began


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--only", nargs="+", default=list(CASES))
    arguments = parser.parse_args()
    headers = ("problem", "batch", "plain", "private", "private / plain")
    shown = table(*headers, title="processor milliseconds a local step")
    hiding = fp.Privacy(1.0, noise_multiplier=1.0, unit="example", accountant="rdp")
    for name in arguments.only:
        federation, model = problem(name, arguments.data_dir)
        for batch, rounds in CASES[name]:
            solver = fp.Solver(0.01, batch, epochs=1)
            found = {}
            for privacy in (None, hiding):
                seconds(federation, model, solver, rounds, privacy)  # compiles
                least = {rounds: math.inf, 3 * rounds: math.inf}
                for _ in range(TURNS):
                    for count in least:
                        took = seconds(federation, model, solver, count, privacy)
                        least[count] = min(least[count], took)
                size = int(federation.train.sizes[0])
                steps = 2 * rounds * 2 * solver.steps_per_epoch(size)
                found[privacy] = 1000 * (least[3 * rounds] - least[rounds]) / steps
            plain, private = found[None], found[hiding]
            cells = (f"{plain:.4f}", f"{private:.4f}", f"{private / plain:.2f}")
            add(shown, name, str(batch), *cells)
    show(shown)


if __name__ == "__main__":
    main()
