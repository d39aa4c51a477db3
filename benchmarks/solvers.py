"""The cost of a stopping rule, a line search and FedDANE's extra exchange against plain SGD.

    python -m benchmarks.solvers

Synthetic(1,1), 10 clients a round, mu = 1.
"""

from typing import Any

import optax

import fedprox as fp
from benchmarks.page import show, table

ROUNDS = 30
REPEATS = 3


def main() -> None:
    """Time each local solver, in one process, and compare it with the first."""
    fp.use_cpu_devices(clients_per_round=10)
    federation = fp.datasets.synthetic(seed=1834)
    model = fp.models.logistic(federation)
    sgd: dict[str, Any] = {"learning_rate": 0.01, "batch_size": 10, "epochs": 20}
    whole: dict[str, Any] = {"learning_rate": 1.0, "batch_size": "all", "gamma": 0.1}
    cases = {
        "SGD, batch 10, E = 20": (fp.fedprox(mu=1.0), fp.Solver(**sgd)),
        "the same, gamma = 0.3": (fp.fedprox(mu=1.0), fp.Solver(**sgd, gamma=0.3)),
        "the same, gamma = 0.5": (fp.fedprox(mu=1.0), fp.Solver(**sgd, gamma=0.5)),
        "the same, gamma = 0, never met": (fp.fedprox(mu=1.0), fp.Solver(**sgd, gamma=0.0)),
        "line search, gamma = 0.1": (
            fp.fedprox(mu=1.0),
            fp.Solver(**whole, steps=100, optimizer=fp.line_search_descent),
        ),
        "L-BFGS, gamma = 0.1": (
            fp.fedprox(mu=1.0),
            fp.Solver(**whole, steps=30, optimizer=optax.lbfgs),
        ),
        "FedDANE, SGD, batch 10, E = 20": (fp.feddane(mu=1.0), fp.Solver(**sgd)),
    }
    headers = ("local solver", "ms a round", "of the first", "client steps", "loss", "compile, s")
    shown = table(*headers)
    first = None
    for name, (method, solver) in cases.items():
        runs = [
            fp.simulate(
                federation,
                model,
                method,
                solver=solver,
                cohort=fp.Cohort(10),
                rounds=ROUNDS,
                evaluation=fp.Evaluation(every=ROUNDS),
            )[0]
            for _ in range(REPEATS)
        ]
        fastest = 1e3 * min(run.run_seconds for run in runs) / ROUNDS
        first = first or fastest
        run = runs[0]
        shown.add_row(
            name,
            f"{fastest:.0f}",
            f"{fastest / first:.2f}",
            f"{run.client_steps:,}",
            f"{run.final.train_loss:.3f}",
            f"{run.compile_seconds:.1f}",
        )
    show(shown)


if __name__ == "__main__":
    main()
