"""The cost of screening faulty updates.

    python -m benchmarks.faults [--data-dir DIR]

FedAvg on MNIST, 10 clients a round, B = 10, E = 1: logistic regression over the 1,000 clients of
the power law, and the 2NN over 100 IID clients. The same rounds run without screening, with a check
that updates are finite, and with a check of their norms too; no update is faulty. The initial and
the final model are evaluated on a row of each client, without gradients. The three variants
alternate in this process, and the shortest run counts; their final losses must agree.
"""

import argparse
import math
import os
from typing import Literal

from rich.console import Console
from rich.table import Table

import fedprox as fp

TURNS = 5
PROBLEMS: tuple[tuple[str, Literal["power-law", "iid"], int], ...] = (
    ("logistic", "power-law", 400),
    ("2NN", "iid", 12),
)
POLICIES = {
    "none": None,
    "finite": fp.Faults(norm=math.inf),
    "compared": fp.Faults(norm=100),
}


def train(federation: fp.Federation, model: fp.Model, policy: str, rounds: int) -> fp.Run:
    """A run of some rounds with a key of `POLICIES`."""
    (run,) = fp.simulate(
        federation,
        model,
        fp.fedavg(),
        solver=fp.Solver(0.03, 10, epochs=1),
        cohort=fp.Cohort(10),
        faults=POLICIES[policy],
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
    )
    return run


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    table = Table(title="milliseconds a round, and ratios to no screening", box=None)
    for header in ("model", *POLICIES, "finite / none", "compared / none"):
        table.add_column(header, justify="right")
    for name, partition, rounds in PROBLEMS:
        federation = fp.datasets.mnist(partition, data_dir=arguments.data_dir)
        two_layers = fp.models.mlp(federation, hidden=[200, 200])
        model = two_layers if name == "2NN" else fp.models.logistic(federation)
        times = dict.fromkeys(POLICIES, math.inf)
        for _ in range(TURNS):
            losses = []
            for policy in POLICIES:
                run = train(federation, model, policy, rounds)
                times[policy] = min(times[policy], 1000 * run.run_seconds / rounds)
                losses.append(run.final.train_loss)
                if run.faulty:
                    raise SystemExit(f"{name}, {policy}: {run.faulty} faulty updates")
            if max(losses) - min(losses) > 1e-3 * min(losses):
                raise SystemExit(f"{name}: losses differ, {losses}")
        none = times["none"]
        ratios = [f"{times[policy] / none:.2f}" for policy in ("finite", "compared")]
        table.add_row(name, *(f"{t:.2f}" for t in times.values()), *ratios)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
