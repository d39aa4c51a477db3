"""Does the proximal term help under clipping and noise? Accuracy against epsilon, by writers.

    python examples/privacy_study.py [--data-dir DIR] [--out FOLDER] [--data mnist femnist]

Logistic regression over the writers of MNIST (836 clients) and of a sample of FEMNIST (300
clients), Poisson cohorts of a fifth of the clients on average, 100 rounds of E = 5, B = 10, with
all clients in time and with 90 % stragglers. FedAvg drops stragglers; FedProx and FedDyn keep their
partial work. Epsilon infinity is clipping alone. Results are stored as they come, and a call with
the same folder goes on.
"""

import argparse
import itertools
import json
import math
import os
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

import fedprox as fp

ROUNDS, SEEDS, DELTA = 100, range(5), 1e-4
EPSILONS = (1.0, 2.0, 4.0, 8.0, math.inf)
STRAGGLERS = (0.0, 0.9)
CLIP = {"mnist": 0.5, "femnist": 0.5}
RATE = {"mnist": 0.03, "femnist": 0.03}
METHODS = [fp.fedavg(), fp.fedprox(mu=[0.0, 0.1, 1.0]), fp.feddyn(alpha=0.1)]


def compare(federation: fp.Federation, name: str, epsilon: float, stragglers: float) -> list[Any]:
    """The final accuracy of each run of a comparison: (label, seed, accuracy)."""
    strength = {"noise_multiplier": 0.0} if epsilon == math.inf else {"epsilon": epsilon}
    runs = fp.simulate(
        federation,
        fp.models.logistic(federation),
        METHODS,
        solver=fp.Solver(RATE[name], batch_size=10, epochs=5),
        cohort=fp.Cohort(round(len(federation) / 5), sampling="bernoulli"),
        systems=fp.Systems(stragglers=stragglers),
        rounds=ROUNDS,
        seed=list(SEEDS),
        privacy=fp.Privacy(CLIP[name], delta=DELTA, **strength),
        evaluation=fp.Evaluation(every=ROUNDS, gradients=False),
    )
    return [(run.label, run.seed, run.final.test_accuracy) for run in runs]


def show(results: list[dict[str, Any]]) -> None:
    """Print a table for each data set and share of stragglers, in Markdown."""

    def name_of(result: dict[str, Any]) -> tuple[str, float]:
        return result["data"], result["stragglers"]

    for (data, stragglers), group in itertools.groupby(sorted(results, key=name_of), name_of):
        by_epsilon = {each["epsilon"]: each["runs"] for each in group}
        print(f"\n{data}, {stragglers:.0%} stragglers\n")
        print("| method |" + "".join(f" {e:g} |" for e in by_epsilon))
        print("|---|" + "---|" * len(by_epsilon))
        for label in dict.fromkeys(run[0] for runs in by_epsilon.values() for run in runs):
            cells = []
            for runs in by_epsilon.values():
                accuracies = [100 * run[2] for run in runs if run[0] == label]
                cells.append(f" {fmean(accuracies):.1f} ± {stdev(accuracies):.1f} |")
            print(f"| {label} |" + "".join(cells))


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against epsilon, a panel for each data set and share of stragglers."""
    settings = sorted({(each["data"], each["stragglers"]) for each in results}, reverse=True)
    figure = Figure(figsize=(4 * len(settings), 3.2), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for panel, (data, stragglers) in zip(panels, settings, strict=True):
        shown = [r for r in results if (r["data"], r["stragglers"]) == (data, stragglers)]
        for label in dict.fromkeys(run[0] for each in shown for run in each["runs"]):
            values = [[100 * run[2] for run in each["runs"] if run[0] == label] for each in shown]
            middle, spread = list(map(fmean, values)), list(map(stdev, values))
            panel.errorbar(range(len(shown)), middle, spread, label=label, capsize=2)
        names = ["∞" if each["epsilon"] == math.inf else f"{each['epsilon']:g}" for each in shown]
        panel.set_xticks(range(len(shown)), names)
        panel.set_title(f"{data}, {stragglers:.0%} stragglers")
        panel.set_xlabel("epsilon")
    panels[0].set_ylabel("test accuracy (%)")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is not stored yet, and print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--data", nargs="+", default=["mnist", "femnist"], choices=CLIP)
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in arguments.data:
        federation = getattr(fp.datasets, name)("writers", data_dir=arguments.data_dir)
        for stragglers, epsilon in itertools.product(STRAGGLERS, EPSILONS):
            file = arguments.out / f"{name}-{stragglers:g}-{epsilon:g}.json"
            if not file.exists():
                runs = compare(federation, name, epsilon, stragglers)
                file.write_text(json.dumps(runs))
            known = {"data": name, "stragglers": stragglers, "epsilon": epsilon}
            results.append(known | {"runs": json.loads(file.read_text())})
    show(results)
    draw(results, arguments.out / "privacy.png")


if __name__ == "__main__":
    main()
