"""A round on one CPU device against the same round on two.

    python -m benchmarks.devices

Logistic regression on Synthetic(1,1) with 30 clients and on MNIST with 1,000 clients (E = 20,
B = 10), and the character LSTM (2 x 100) on random texts of 80 characters (E = 1, B = 10). Runs
with one and with two devices alternate in this process, and the shortest time counts. Times are
those of all rounds and two small evaluations; *idle* is the planned share of lane ticks without a
client. MNIST's files come from `FEDPROX_DATA` or a download.
"""

import numpy as np

import fedprox as fp
from benchmarks.page import show, table

TURNS = 3


def texts(clients: int = 20, rows: int = 50) -> fp.Federation:
    """Random rows of 80 characters from an alphabet of 80."""
    rng = np.random.default_rng(0)
    data = [
        (rng.integers(80, size=(rows, 80)).astype(np.int32), rng.integers(80, size=rows))
        for _ in range(clients)
    ]
    return fp.Federation.from_arrays(data, classes=80)


def train(
    federation: fp.Federation, model: fp.Model, cohort: int, epochs: int, rounds: int, devices: int
) -> fp.Run:
    """A run of FedAvg with so many devices."""
    (run,) = fp.simulate(
        federation,
        model,
        fp.fedavg(),
        solver=fp.Solver(0.01, 10, epochs=epochs),
        cohort=fp.Cohort(cohort),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=2, gradients=False),
        devices=devices,
    )
    return run


def main() -> None:
    """Print a line for each model."""
    fp.use_cpu_devices(100, devices=2)
    synthetic, mnist, characters = fp.datasets.synthetic(1.0, 1.0), fp.datasets.mnist(), texts()
    logistic = fp.models.logistic
    shown = table("model", "clients a round", "1 device, ms", "2", "ratio", "idle with 1", "2")
    for name, federation, model, cohort, epochs, rounds in (
        ("logistic regression, Synthetic(1,1)", synthetic, logistic(synthetic), 10, 20, 400),
        ("logistic regression, Synthetic(1,1)", synthetic, logistic(synthetic), 30, 20, 300),
        ("logistic regression, MNIST", mnist, logistic(mnist), 10, 20, 300),
        ("logistic regression, MNIST", mnist, logistic(mnist), 100, 20, 60),
        ("character LSTM", characters, fp.models.char_lstm(characters, hidden=100), 10, 1, 6),
    ):
        turns = [
            [train(federation, model, cohort, epochs, rounds, devices) for devices in (1, 2)]
            for _ in range(TURNS)
        ]
        least = [min(turn[i].run_seconds for turn in turns) / rounds * 1e3 for i in (0, 1)]
        idle = [f"{100 * run.lane_idle:.0f} %" for run in turns[0]]
        milliseconds = (f"{ms:.1f}" for ms in least)
        shown.add_row(name, str(cohort), *milliseconds, f"{least[0] / least[1]:.2f}", *idle)
    show(shown)


if __name__ == "__main__":
    main()
