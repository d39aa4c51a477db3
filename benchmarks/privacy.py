"""The cost of clipping and noise.

    python -m benchmarks.privacy [--data-dir DIR]

FedAvg with uniform cohorts of 10 clients, without privacy (`none`), with clipping and noise
(`fixed`), and with an adaptive clipping norm too (`adaptive`): logistic regression on
Synthetic(1,1) and on MNIST's power law with E = 20 and B = 10, and the 2NN and the CNN of McMahan
et al. 2017 on IID MNIST with E = 1 and B = 10. The initial and the final model are evaluated on a
row of each client, without gradients. The variants alternate in this process, and the shortest run
counts.
"""

import argparse
import math
import os

import fedprox as fp
from benchmarks.page import add, show, table

TURNS = 5

VARIANTS = {
    "none": None,
    "fixed": fp.Privacy(1.0, noise_multiplier=1.0, accountant="rdp"),
    "adaptive": fp.Privacy(
        1.0, noise_multiplier=1.0, accountant="rdp", adaptive_clip=fp.AdaptiveClip()
    ),
}


def problem(name: str, data_dir: str | None) -> tuple[fp.Federation, fp.Model, fp.Solver, int]:
    """Data, model, solver and rounds of a problem."""
    twenty = fp.Solver(0.01, 10, epochs=20)
    if name == "SYN":
        federation = fp.datasets.synthetic(alpha=1.0, beta=1.0)
        return federation, fp.models.logistic(federation), twenty, 200
    if name == "LR-MNIST":
        federation = fp.datasets.mnist("power-law", data_dir=data_dir)
        return federation, fp.models.logistic(federation), twenty, 100
    federation = fp.datasets.mnist("iid", data_dir=data_dir)
    model = (
        fp.models.mlp(federation, hidden=[200, 200])
        if name == "2NN"
        else fp.models.mnist_cnn(federation)
    )
    return federation, model, fp.Solver(0.03, 10, epochs=1), 12 if name == "2NN" else 2


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--only", nargs="+", default=["SYN", "LR-MNIST", "2NN", "CNN"])
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    headers = ("problem", *VARIANTS, "fixed / none", "adaptive / none")
    shown = table(*headers, title="milliseconds a round, and ratios to no privacy")
    for name in arguments.only:
        federation, model, solver, rounds = problem(name, arguments.data_dir)
        times = dict.fromkeys(VARIANTS, math.inf)
        for _ in range(TURNS):
            for variant, privacy in VARIANTS.items():
                (run,) = fp.simulate(
                    federation,
                    model,
                    fp.fedavg(),
                    solver=solver,
                    cohort=fp.Cohort(10),
                    privacy=privacy,
                    rounds=rounds,
                    evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
                    progress=False,
                )
                times[variant] = min(times[variant], 1000 * run.run_seconds / rounds)
        ratios = [f"{times[each] / times['none']:.2f}" for each in ("fixed", "adaptive")]
        add(shown, name, *(f"{t:.2f}" for t in times.values()), *ratios)
    show(shown)


if __name__ == "__main__":
    main()
