"""Li et al. 2021 (Ditto): the lambda with the least error, for the estimation of points.

Client k has n observations of its own centre, with noise of variance sigma^2; the centres have
variance tau^2. F_k is half the mean squared distance from the observations, so Ditto's own models
are (xbar_k + lambda xbar) / (1 + lambda). Their squared error is least for

    lambda* = sigma^2 / (n tau^2),

as the authors prove. With N clients, s^2 = sigma^2 / n and c = lambda / (1 + lambda) it is

    s^2 + (1 - 1/N) (c^2 (tau^2 + s^2) - 2 c s^2)

since xbar_k - c (xbar_k - xbar) is the model, (1 - 1/N) (tau^2 + s^2) the variance of
xbar_k - xbar, and (1 - 1/N) s^2 its covariance with the error of xbar_k.
"""

from functools import partial
from pathlib import Path

import numpy as np

import fedprox as fp
from experiments.engine.item import Claim, Comparison, Item, Line, Other, Panel, Table
from experiments.engine.series import Series
from experiments.engine.summaries import FINAL
from experiments.independent.fixed_points import point_model, points, proved

CLIENTS, D = 100, 1000
BEST = "lambda*"
MULTIPLES = {"lambda* / 4": 0.25, "lambda* / 2": 0.5, BEST: 1, "2 lambda*": 2, "4 lambda*": 4}
CASES = {"n = 4, sigma = 1": (4, 1.0), "n = 1, sigma = 1": (1, 1.0), "n = 1, sigma = 2": (1, 2.0)}


def series(
    experiment: Table, seed: int, data_dir: Path | None = None, *, n: int, sigma: float
) -> list[Series]:
    """The squared error of own models in each dimension for each lambda, and what is proved."""
    del data_dir
    rng, rounds = np.random.default_rng(seed), np.arange(1, experiment["rounds"] + 1)
    centres = rng.normal(size=(CLIENTS, 1, D))
    observed = centres + sigma * rng.normal(size=(CLIENTS, n, D))
    variance = sigma**2 / n
    lams = [multiple * variance for multiple in MULTIPLES.values()]
    runs = fp.simulate(
        fp.Federation.from_arrays(points(observed), points(centres)),
        point_model(D),
        fp.ditto(lam=lams),
        solver=fp.Solver(1 / (1 + max(lams)), "all", steps=200),
        cohort=fp.Cohort(CLIENTS),
        rounds=len(rounds),
        evaluation=fp.Evaluation(gradients=False),
        seed=seed,
        progress=False,
    )
    found = []
    for label, lam, run in zip(MULTIPLES, lams, runs, strict=True):
        losses = np.array([record.personal_loss for record in run.history[1:]], np.float64)
        c = lam / (1 + lam)
        error = variance + (1 - 1 / CLIENTS) * (c**2 * (1 + variance) - 2 * c * variance)
        level = np.full(len(rounds), error)
        found += [
            Series(label, seed, rounds, {"error": 2 * losses / D}),
            Series(proved(label), seed, rounds, {"error": level}),
        ]
    return found


POINT_ESTIMATION = Item(
    "Ditto: the best lambda for the estimation of points",
    "Li et al. 2021, the analysis of point estimation",
    {"short": 20, "paper": 50},
    panels=(tuple(Panel(case, "error", (case,), tuple(MULTIPLES)) for case in CASES),),
    claims=(
        Claim(
            "The squared error is least for lambda* = sigma^2 / (n tau^2).",
            "error",
            FINAL,
            tuple(
                Comparison(case, Line(case, other), Line(case, BEST))
                for case in CASES
                for other in MULTIPLES
                if other != BEST
            ),
        ),
        Claim(
            "The squared error is that of the closed form.",
            "error",
            FINAL,
            tuple(
                Comparison(case, Line(case, label), Line(case, proved(label)))
                for case in CASES
                for label in MULTIPLES
            ),
            alike=0.02,
        ),
    ),
    others={
        case: Other({"data": {"name": "points"}, "rounds": 4}, partial(series, n=n, sigma=sigma))
        for case, (n, sigma) in CASES.items()
    },
    notes=(
        "Each seed draws 100 clients with tau = 1 in 1,000 dimensions, each of which is a draw of "
        "the authors' one-dimensional problem; the error is the mean over clients and dimensions. "
        "Every client takes part in every round. The closed form of the error is ours.",
    ),
)
