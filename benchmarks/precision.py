"""What mixed precision costs in accuracy, and what it does to the time of a round.

    python -m benchmarks.precision [--data-dir DIR] [--seeds N]

FedProx on MNIST over the 1,000 clients of the power law, 10 a round, B = 10, E = 1, with and
without `fp.mixed_precision`. Both train with the same seeds, cohorts and mini-batches, so their
difference in accuracy is paired. They alternate in this process, and the shortest run counts.
"""

import argparse
import os
import statistics

import fedprox as fp
from benchmarks.page import add, show, table

MODELS = {"logistic": (0.03, 100), "2NN": (0.03, 40), "mnist-cnn": (0.05, 4)}
"""Learning rate and rounds of each model."""


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    federation = fp.datasets.mnist("power-law", data_dir=arguments.data_dir)
    make = {
        "logistic": fp.models.logistic(federation),
        "2NN": fp.models.mlp(federation, hidden=[200, 200]),
        "mnist-cnn": fp.models.mnist_cnn(federation),
    }
    title = f"test accuracy in per cent, {arguments.seeds} seeds, and the ratio of times"
    headers = ("model", "rounds", "float32", "bfloat16", "difference", "time")
    shown = table(*headers, title=title)
    for name, (rate, rounds) in MODELS.items():
        accuracy: dict[bool, list[float]] = {False: [], True: []}
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for seed in range(arguments.seeds):
            for mixed in (False, True):
                (run,) = fp.simulate(
                    federation,
                    fp.mixed_precision(make[name]) if mixed else make[name],
                    fp.fedprox(mu=0.1),
                    solver=fp.Solver(rate, 10, epochs=1),
                    cohort=fp.Cohort(10),
                    rounds=rounds,
                    seed=seed,
                    evaluation=fp.Evaluation(every=rounds, gradients=False),
                    progress=False,
                )
                assert run.final.test_accuracy is not None
                accuracy[mixed].append(100 * run.final.test_accuracy)
                seconds[mixed].append(run.run_seconds)
        apart = [low - full for full, low in zip(accuracy[False], accuracy[True], strict=True)]
        cells = [spread(each) for each in (accuracy[False], accuracy[True], apart)]
        ratio = min(seconds[True]) / min(seconds[False])
        add(shown, name, str(rounds), *cells, f"{ratio:.2f}")
    show(shown)


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
