"""Pathak and Wainwright 2020 (FedSplit): where methods end on least squares.

With F_k(w) = 1/2 (w - b_k)' A_k (w - b_k) up to a constant, rounds of e steps of gradient descent
with rate r end where the sum of (I - (I - r A_k)^e) (w - b_k) is 0, and rounds of exact proximal
steps, mu = 1 / s, where the sum of (A_k + mu I)^-1 A_k (w - b_k) is 0. FedSplit ends at the
minimizer. If the eigenvalues of all A_k are from l to L, kappa = L / l and s = 1 / sqrt(l L), its
distance from the minimizer is at most

    (1 - 2 / (sqrt(kappa) + 1))^t ||z^0 - z|| / sqrt(N)

after t rounds, where z^0 and z are the first and the last z_k of all N clients.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedprox as fp
from experiments.engine.item import Claim, Comparison, Item, Line, Other, Panel, Table
from experiments.engine.series import Series
from experiments.engine.summaries import at
from experiments.independent.fixed_points import Method, claims, ends, solution

CLIENTS, ROWS, D = 10, 10, 5
EXACT_STEPS = 200
RUN = "least squares"
SPLIT, PROXIMAL = "FedSplit", "proximal steps"
LOCAL = {"1 local step": 1, "10 local steps": 10}
LABELS = (*LOCAL, PROXIMAL, SPLIT)
BOUND = "FedSplit's bound"


def series(experiment: Table, seed: int, data_dir: Path | None = None) -> list[Series]:
    """Local gradient descent, proximal steps and FedSplit, and FedSplit's bound at each round."""
    del data_dir
    rng, rounds = np.random.default_rng(seed), experiment["rounds"]
    x = rng.normal(size=(CLIENTS, ROWS, D))
    y = x @ rng.normal(size=D) + rng.normal(size=(CLIENTS, ROWS))
    a = np.einsum("kni,knj->kij", x, x) / ROWS
    minima = np.linalg.solve(a, np.einsum("kni,kn->ki", x, y)[..., None] / ROWS)[..., 0]
    star, eye = solution(list(a), minima), np.eye(D)
    curvatures = np.linalg.eigvalsh(a)
    least, most = float(curvatures.min()), float(curvatures.max())
    s = (least * most) ** -0.5
    # the test rows' mean loss is half the squared distance from the minimizer
    test = np.sqrt(D) * eye, np.sqrt(D) * star
    federation = fp.Federation.from_arrays(list(zip(x, y, strict=True)), [test] * CLIENTS)
    model = fp.Model(
        init=lambda _: jnp.zeros(D),
        apply=lambda w, x: x @ w,
        loss=lambda outputs, y: 0.5 * (outputs - y) ** 2,
        correct=None,
    )
    exact = fp.Solver(1 / (most + 1 / s), "all", steps=EXACT_STEPS)
    resolvents = [np.linalg.solve(a_k + eye / s, a_k) for a_k in a]
    methods: dict[str, Method] = {
        PROXIMAL: (fp.fedprox(mu=1 / s), exact, solution(resolvents, minima)),
        SPLIT: (fp.fedsplit(s, average="all"), exact, star),
    }
    for label, e in LOCAL.items():
        moved = [eye - np.linalg.matrix_power(eye - a_k / most, e) for a_k in a]
        solver = fp.Solver(1 / most, "all", steps=e)
        methods[label] = (fp.fedavg(), solver, solution(moved, minima))
    # the z_k begin at 0 and end at star - s grad F_k(star)
    last = star - s * np.einsum("kij,kj->ki", a, star - minima)
    factor = 1 - 2 / ((most / least) ** 0.5 + 1)
    bound = np.linalg.norm(last) / CLIENTS**0.5 * factor ** np.arange(rounds + 1)
    return [
        *ends(federation, model, star, methods, rounds, seed),
        Series(BOUND, seed, np.arange(rounds + 1), {"distance": bound}),
    ]


LEAST_SQUARES = Item(
    "FedSplit: the point at which each method ends on least squares, and FedSplit's rate",
    "Pathak and Wainwright 2020, the methods' fixed points, and FedSplit's rate",
    {"short": 25, "paper": 60},
    panels=((Panel("10 clients", "distance", (RUN,)),),),
    claims=(
        *claims(
            "Several local steps and proximal steps end at another point than the minimizer, a "
            "single step and FedSplit at the minimizer.",
            RUN,
            LABELS,
            {"10 local steps": SPLIT, PROXIMAL: SPLIT},
            within=0.001,
        ),
        Claim(
            "FedSplit is at least as fast as its rate.",
            "distance",
            at(12),
            (Comparison(SPLIT, Line(RUN, BOUND), Line(RUN, SPLIT)),),
        ),
    ),
    others={RUN: Other({"data": {"name": "least-squares"}, "rounds": 400}, series)},
    notes=(
        "Each seed draws 10 clients with 10 rows of 5 standard normal features, one linear model "
        "and noise of deviation 1. The learning rate of local steps is 1 / L; the step size of "
        "proximal steps and of FedSplit is 1 / sqrt(l L). 200 steps of gradient descent stand for "
        "an exact proximal step. The rate is judged at round 12, before rounding limits it.",
    ),
)
