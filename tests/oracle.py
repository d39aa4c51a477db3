"""The engine's oracle: federated rounds of logistic regression as a plain NumPy loop in float64.

It shares with the library what defines a run (the random streams of cohorts, stragglers and
mini-batch orders) and nothing of how it is computed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox import Cohort, Federation, Solver, Systems
from tests.methods import batches_of

Matrix = NDArray[np.float64]


class Params(NamedTuple):
    kernel: Matrix
    bias: Matrix


def loss_and_gradient(params: Params, x: Matrix, y: NDArray[np.int64]) -> tuple[float, Params]:
    """Mean cross entropy of rows x (n, d) with labels y (n,), and its gradient."""
    logits = x @ params.kernel.T + params.bias
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    error = np.exp(log_p)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    return -float(log_p[np.arange(len(y)), y].mean()), Params(error.T @ x, error.sum(axis=0))


def client_rows(federation: Federation, k: int) -> tuple[Matrix, NDArray[np.int64]]:
    x, y = federation.train.client(k)
    return x.reshape(len(x), -1).astype(np.float64), y.astype(np.int64)


def federated(
    federation: Federation,
    params: Params,
    *,
    solver: Solver,
    cohort: Cohort,
    systems: Systems,
    rounds: int,
    seed: int,
    mu: float,
    drop: bool,
) -> Params:
    """The model after some rounds of FedAvg (drop, mu = 0) or FedProx."""
    assert isinstance(solver.learning_rate, float)
    for t in range(rounds):
        chosen = cohort.draw(seed, t, federation.train.offsets).clients
        sizes = federation.train.sizes[chosen]
        work = systems.work(seed, t, chosen, sizes, solver)
        moved, mass = Params(np.zeros_like(params.kernel), np.zeros_like(params.bias)), 0
        for k, steps, late in zip(chosen, work.steps, work.stragglers, strict=True):
            if drop and late:
                continue
            x, y = client_rows(federation, int(k))
            n = len(y)
            batches = batches_of(seed, t, int(k), n, solver, int(steps))
            local = params
            for batch in batches:
                _, gradient = loss_and_gradient(local, x[batch], y[batch])
                local = Params(
                    *(
                        w - solver.learning_rate * (g + mu * (w - a))
                        for w, g, a in zip(local, gradient, params, strict=True)
                    )
                )
            moved = Params(*(m + n * (w - a) for m, w, a in zip(moved, local, params, strict=True)))
            mass += n
        if mass:
            params = Params(*(w + m / mass for w, m in zip(params, moved, strict=True)))
    return params
