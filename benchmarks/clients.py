"""The cost of a round against the number of clients outside the cohort.

    python -m benchmarks.clients

The same cohorts (100 clients of 20 rows, E = 5) in federations of 1,000 and of 100,000 clients.
Only the initial and the final model are evaluated.
"""

import numpy as np

import fedprox as fp
from benchmarks.page import show, table

ROWS, FEATURES, CLASSES = 20, 30, 5


def federation(clients: int) -> fp.Federation:
    """Clients of equal size with random rows."""
    rng = np.random.default_rng(0)
    rows = clients * ROWS
    offsets = np.arange(0, rows + 1, ROWS)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, rows).astype(np.int32)
    train = fp.Rows(x, y, offsets)
    test = fp.Rows(x[:0], y[:0], np.zeros_like(offsets))
    return fp.Federation(train, test, CLASSES, tuple(map(str, range(clients))))


def milliseconds(clients: int) -> float:
    """Milliseconds per round: the difference between a long and a short run."""
    data = federation(clients)
    model = fp.models.logistic(data)

    def seconds(rounds: int) -> float:
        (run,) = fp.simulate(
            data,
            model,
            fp.fedavg(),
            solver=fp.Solver(0.01, 10, epochs=5),
            cohort=fp.Cohort(100),
            rounds=rounds,
            evaluation=fp.Evaluation(every=rounds),
        )
        return run.run_seconds

    short, long = (min(seconds(rounds) for _ in range(3)) for rounds in (100, 1100))
    return long - short


def main() -> None:
    """Measure both costs and their ratio."""
    fp.use_cpu_devices(100)
    few, many = milliseconds(1000), milliseconds(100_000)
    shown = table("1,000 clients", "100,000 clients", "ratio", title="ms a round", left=0)
    shown.add_row(f"{few:.2f}", f"{many:.2f}", f"{many / few:.2f}")
    show(shown)


if __name__ == "__main__":
    main()
