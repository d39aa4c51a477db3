"""Does the proximal term help under clipping and noise? Accuracy against epsilon, by writers.

    python examples/privacy_study.py [--data-dir DIR] [--out FOLDER] [--data mnist femnist]

A study of logistic regression over the writers of MNIST (836 clients) and of a sample of FEMNIST
(300 clients), Poisson cohorts of a fifth of the clients on average, 100 rounds of E = 5, B = 10,
with all clients in time and with 90 % stragglers. FedAvg drops stragglers; FedProx and FedDyn keep
their partial work. Epsilon infinity is clipping alone. A call with the same folder goes on where
the last one ended.
"""

import argparse
import os
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure

import fedprox as fp

METHODS = {
    "FedAvg": fp.fedavg(),
    **{f"FedProx, mu = {mu:g}": fp.fedprox(mu=mu) for mu in (0.0, 0.1, 1.0)},
    "FedDyn, alpha = 0.1": fp.feddyn(alpha=0.1),
}
STRAGGLERS = {"0 %": fp.Systems(0.0), "90 %": fp.Systems(0.9)}
EPSILONS = {
    **{f"{e:g}": fp.Privacy(0.5, epsilon=e, delta=1e-4) for e in (1.0, 2.0, 4.0, 8.0)},
    "∞": fp.Privacy(0.5, noise_multiplier=0.0, delta=1e-4),
}


def run(data: list[str], data_dir: str | None, out: Path, rounds: int = 100) -> fp.Study:
    """The study, from where it was left."""
    levels = {}
    for name in data:
        federation = getattr(fp.datasets, name)("writers", data_dir=data_dir)
        cohort = fp.Cohort(round(len(federation) / 5), sampling="bernoulli")
        levels[name] = {"federation": federation, "cohort": cohort}
    return fp.study(
        METHODS,
        data=levels,
        vary={"stragglers": STRAGGLERS, "epsilon": EPSILONS},
        model=fp.models.logistic,
        solver=fp.Solver(0.03, batch_size=10, epochs=5),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, gradients=False),
        out=out,
    )


def draw(study: fp.Study) -> Figure:
    """Accuracy against epsilon, a panel for each data set and share of stragglers."""
    rows = study.records()
    panels = list(dict.fromkeys((row["data"], row["stragglers"]) for row in rows))
    figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (data, stragglers) in zip(axes, panels, strict=True):
        for method in METHODS:
            values = [
                [
                    100 * row["test_accuracy"]
                    for row in rows
                    if (row["data"], row["stragglers"], row["epsilon"], row["method"])
                    == (data, stragglers, epsilon, method)
                ]
                for epsilon in EPSILONS
            ]
            middle, spread = list(map(fmean, values)), list(map(stdev, values))
            axis.errorbar(range(len(values)), middle, spread, label=method, capsize=2)
        axis.set_xticks(range(len(EPSILONS)), list(EPSILONS))
        axis.set_title(f"{data}, {stragglers} stragglers")
        axis.set_xlabel("epsilon")
    axes[0].set_ylabel("test accuracy (%)")
    axes[0].legend(fontsize="small")
    return figure


def main() -> None:
    """Run what is not stored yet, and print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--data", nargs="+", default=["mnist", "femnist"])
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    study = run(arguments.data, arguments.data_dir, arguments.out)
    print(study.table(rows=["data", "stragglers", "method"], columns="epsilon"))
    print("\n".join(study.conclusions()))
    draw(study).savefig(arguments.out / "privacy.png", dpi=110)


if __name__ == "__main__":
    main()
