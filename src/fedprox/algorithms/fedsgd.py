"""FedSGD: every client takes one full-batch gradient step; the server averages.

McMahan et al. 2017, section 2: with C = 1,

    w^{t+1} = w^t - eta sum_k (n_k / n) grad F_k(w^t) = w^t - eta grad f(w^t)

which is FedAvg with E = 1 and B = all, and is written as that here.
"""

from dataclasses import replace

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.fedavg import local_loss
from fedprox.solver import Solver


def one_full_batch(solver: Solver) -> Solver:
    """The same optimizer and learning rate, for a single step on all of a client's rows."""
    return replace(solver, batch_size="all", epochs=1, steps=None)


def fedsgd() -> Algorithm:
    """Federated SGD (McMahan et al. 2017, section 2), dropping stragglers."""
    return Algorithm("fedsgd", local_loss, hparams={}, stragglers="drop", local=one_full_batch)
