"""Accuracy against time for five rules of a server whose clients have devices.

    python examples/time.py [--out FOLDER]

Logistic regression on Synthetic(1,1) over 100 clients, of which the slowest of twenty needs five
times as long for a step as the median. All rules see the same devices; each runs for about an hour
of their time. It writes `time.png` and prints the time to an accuracy; three seeds take half a
minute.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedprox as fp

HOUR = 3600.0
FAST, WAITING = fp.Cohort(10), fp.Cohort(10, over_selection=1.5)
RULES: dict[str, dict[str, Any]] = {
    "FedAvg, waits for all": {"methods": fp.fedavg(), "rounds": 12},
    "FedAvg, first 10 of 15": {"methods": fp.fedavg(), "cohort": WAITING, "rounds": 50},
    "FedAvg, deadline and drop": {
        "methods": fp.fedavg(),
        "systems": fp.Systems(deadline=60.0),
        "rounds": 60,
    },
    "FedProx, deadline and partial work": {
        "methods": fp.fedprox(mu=0.1),
        "systems": fp.Systems(deadline=60.0),
        "rounds": 60,
    },
    "FedAvg, buffer of 10": {
        "methods": fp.fedavg(),
        "asynchronous": fp.Asynchronous(buffer=10),
        "rounds": 120,
    },
}


def main() -> None:
    """Run all rules, draw them and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/time"))
    arguments = parser.parse_args()
    federation = fp.datasets.synthetic(alpha=1.0, beta=1.0, clients=100)
    common: dict[str, Any] = {
        "solver": fp.Solver(learning_rate=0.01, batch_size=10, epochs=10),
        "cohort": FAST,
        "population": fp.Population(fp.LogNormal(0.5, spread=1.0), upload=100_000.0, latency=0.1),
        "evaluation": fp.Evaluation(gradients=False),
        "seed": [0, 1, 2],
    }
    model, runs = fp.models.logistic(federation), list[fp.Run]()
    for rule, settings in RULES.items():
        for run in fp.simulate(federation, model, **common | settings):
            runs.append(replace(run, label=rule, experiment={}))
    arguments.out.mkdir(parents=True, exist_ok=True)
    figure = fp.figure(runs)
    for axis in figure.axes:
        axis.set_xlim(0, HOUR)
    figure.savefig(arguments.out / "time.png", dpi=150)
    print(fp.table(runs, fp.Target("test_accuracy", 0.25)))
    print(f"wrote {arguments.out / 'time.png'}")


if __name__ == "__main__":
    main()
