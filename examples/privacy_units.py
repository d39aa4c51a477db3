"""Accuracy against epsilon for 3, 10 and 100 sites: privacy of whole sites, and of single rows.

    python examples/privacy_units.py [--data-dir DIR] [--seeds N] [--sites 3 10 100]

MNIST's 836 writers are divided into sites, each writer at one site. Logistic regression by FedAvg,
20 rounds of one epoch with all sites in each. With the unit "client" the messages of sites are
clipped to the better of two norms, by test accuracy; with "example" the gradients of rows are
clipped to one norm.
"""

import argparse
import os
from statistics import fmean, stdev

import numpy as np

import fedprox as fp

EPSILONS = 1.0, 2.0, 4.0, 8.0
DELTA = 1e-5
PLAIN = fp.Solver(0.1, batch_size=128, epochs=1)
PRIVATE = fp.Solver(0.5, batch_size=128, epochs=1)
CLIPS = 0.3, 1.0


def sites(writers: fp.Federation, count: int) -> fp.Federation:
    """Writers, whose rows lie one after another, divided into as many sites of about one size."""
    ends = np.linspace(0, len(writers), count + 1).astype(int)
    parts = (fp.Rows(part.x, part.y, part.offsets[ends]) for part in writers.parts[:2])
    return fp.Federation(*parts, classes=10, names=[f"site {k}" for k in range(count)])


def accuracies(
    federation: fp.Federation, privacy: fp.Privacy | None, solver: fp.Solver, seeds: int
) -> list[float]:
    """Test accuracy after the last round in per cent, for each seed."""
    runs = fp.simulate(
        *(federation, fp.models.logistic(federation), fp.fedavg()),
        solver=solver,
        cohort=fp.Cohort(len(federation)),
        rounds=20,
        privacy=privacy,
        evaluation=fp.Evaluation(every=20, gradients=False),
        seed=range(seeds),
        progress=False,
    )
    return [100 * run.final.test_accuracy for run in runs]


def shown(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def main() -> None:
    """Print a line for each number of sites and each unit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10, 100])
    arguments = parser.parse_args()
    writers = fp.datasets.mnist("writers", data_dir=arguments.data_dir)
    print("| sites | rows a site | unit |", *(f"{e:g} |" for e in EPSILONS), "none |")
    for count in arguments.sites:
        federation = sites(writers, count)
        plain = accuracies(federation, None, PLAIN, arguments.seeds)
        lines: dict[str, list[str]] = {"client": [], "example": []}
        for epsilon in EPSILONS:
            of_sites = [
                accuracies(
                    federation,
                    fp.Privacy(clip, epsilon=epsilon, delta=DELTA),
                    PLAIN,
                    arguments.seeds,
                )
                for clip in CLIPS
            ]
            lines["client"].append(shown(max(of_sites, key=fmean)))
            privacy = fp.Privacy(1.0, epsilon=epsilon, delta=DELTA, unit="example")
            of_rows = accuracies(federation, privacy, PRIVATE, arguments.seeds)
            lines["example"].append(shown(of_rows))
        rows = f"{len(federation.train) / count:,.0f}"
        for unit, cells in lines.items():
            print(f"| {count} | {rows} | {unit} |", *(f"{c} |" for c in cells), f"{shown(plain)} |")


if __name__ == "__main__":
    main()
