"""Wang et al. 2020 (FedNova): where methods end if clients take different numbers of steps.

By Theorem 1 averaging ends at the minimizer of a mismatched objective, sum_k p_k ||a_k||_1 F_k. For
tau_k steps of SGD with rate eta ||a_k||_1 is tau_k, and with a proximal term of weight mu it is
(1 - (1 - eta mu)^tau_k) / (eta mu). FedNova ends at the minimizer of f = sum_k p_k F_k.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from experiments.engine.item import Item, Other, Panel, Table
from experiments.engine.series import Numbers, Series
from experiments.independent.fixed_points import claims, ends, point_model, points, solution

CLIENTS, D, MOST_STEPS, RATE, MU = 10, 10, 32, 0.001, 100.0
RUN = "quadratics"
LABELS = ("FedAvg", "FedProx", "FedNova", "FedNova with mu")


def series(experiment: Table, seed: int, data_dir: Path | None = None) -> list[Series]:
    """The methods on F_k(w) = 1/2 ||w - b_k||^2, with a step for each of a client's rows."""
    del data_dir
    rng = np.random.default_rng(seed)
    minima = rng.normal(size=(CLIENTS, D))
    rows = np.exp(rng.uniform(0, np.log(MOST_STEPS + 1), CLIENTS)).astype(int)

    def end(lengths: NDArray[Any] | int) -> Numbers:
        """The minimizer with weights p_k times these lengths."""
        return solution([weight * np.eye(D) for weight in rows * lengths], minima)

    star = end(1)
    federation = fp.Federation.from_arrays(
        points(np.tile(b, (n, 1)) for n, b in zip(rows, minima, strict=True)),
        points([star[None]] * CLIENTS),
    )
    solver = fp.Solver(RATE, batch_size=1, epochs=1)
    proximal = (1 - (1 - RATE * MU) ** rows) / (RATE * MU)
    algorithms = fp.fedavg(), fp.fedprox(mu=MU), fp.fednova(), fp.fednova(mu=MU)
    where = end(rows), end(proximal), star, star
    methods = {
        label: (algorithm, solver, point)
        for label, algorithm, point in zip(LABELS, algorithms, where, strict=True)
    }
    return ends(federation, point_model(D), star, methods, experiment["rounds"], seed)


QUADRATICS = Item(
    "FedNova: the point at which each method ends on quadratics",
    "Wang et al. 2020, Theorem 1 and its example of quadratics",
    {"short": 30, "paper": 70},
    panels=((Panel("10 clients, 1 to 32 steps", "distance", (RUN,)),),),
    claims=claims(
        "FedAvg and FedProx end at the minimizer of the mismatched objective, FedNova at that of "
        "f.",
        RUN,
        LABELS,
        {"FedAvg": "FedNova", "FedProx": "FedNova with mu"},
        within=0.02,
    ),
    others={RUN: Other({"data": {"name": "quadratics"}, "rounds": 2000}, series)},
    notes=(
        "Each seed draws 10 quadratics F_k(w) = 1/2 ||w - b_k||^2, b_k standard normal in 10 "
        "dimensions, and for each client 1 to 32 rows, which are its steps a round and its weight. "
        "The learning rate is 0.001 and mu 100. What is proved is for small rates.",
    ),
)
