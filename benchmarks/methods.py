"""The cost of a round of each method.

    python -m benchmarks.methods

Logistic regression on Synthetic(1,1) with E = 20 and B = 10, 10 of 30 clients a round and 200
rounds. Models are evaluated on a row of each client, without gradients: the initial and the final
one, or all. The methods alternate in this process, and the shortest run counts.
"""

import math

import optax

import fedprox as fp
from benchmarks.page import show, table

TURNS, ROUNDS, EVERY = 4, 200, (200, 1)


def all_methods() -> dict[str, fp.Algorithm]:
    """The methods by name; devices must be set before they are made."""
    ditto = fp.ditto(lam=0.1)
    assert ditto.personal is not None
    alone = ditto.personal._replace(subproblem=None, keep=None)
    return {
        "FedAvg": fp.fedavg(),
        "FedProx": fp.fedprox(mu=1.0),
        "FedDANE": fp.feddane(mu=1.0),
        "SCAFFOLD": fp.scaffold(),
        "FedDyn": fp.feddyn(alpha=0.1),
        "FedSplit": fp.fedsplit(step_size=1.0),
        "FedOpt": fp.fedopt(optax.adam, server_learning_rate=0.01),
        "FedNova": fp.fednova(),
        "FedNova, mu = 1": fp.fednova(mu=1.0),
        "FedExP": fp.fedexp(),
        "FedADMM": fp.fedadmm(rho=0.1),
        "Mime": fp.mime(),
        "Mime, whole gradients": fp.mime(whole_gradients=True),
        "MimeLite": fp.mime(lite=True),
        "q-FedAvg": fp.qffl(q=1.0),
        "pFedMe": fp.pfedme(lam=1.0, eta=0.5),
        "pFedMe, K = 5": fp.pfedme(lam=1.0, eta=0.5, inner_steps=5),
        "Ditto, global part": ditto._replace(personal=alone),
        "Ditto": ditto,
    }


def main() -> None:
    """Run all and print a table."""
    fp.use_cpu_devices(10)
    federation = fp.datasets.synthetic(alpha=1.0, beta=1.0)
    methods = all_methods()
    times = {(name, every): math.inf for name in methods for every in EVERY}
    for _ in range(TURNS):
        for name, every in times:
            (run,) = fp.simulate(
                federation,
                fp.models.logistic(federation),
                methods[name],
                solver=fp.Solver(0.01, 10, epochs=20),
                cohort=fp.Cohort(10),
                rounds=ROUNDS,
                evaluation=fp.Evaluation(every=every, rows=1, gradients=False),
                progress=False,
            )
            times[name, every] = min(times[name, every], 1000 * run.run_seconds / ROUNDS)
    headers = ("method", "one evaluation", "ratio", "evaluated every round", "ratio")
    shown = table(*headers, title="milliseconds a round, and the ratio to FedAvg")
    for name in methods:
        cells = [
            cell
            for every in EVERY
            for cell in (
                f"{times[name, every]:.2f}",
                f"{times[name, every] / times['FedAvg', every]:.2f}",
            )
        ]
        shown.add_row(name, *cells)
    show(shown)


if __name__ == "__main__":
    main()
