"""FedAvg: every client runs SGD on its own F_k; the server averages the models.

McMahan et al. 2017, Algorithm 1:

    w_k     = E epochs of SGD on F_k from w^t
    w^{t+1} = sum_{k in S_t} (n_k / sum_{j in S_t} n_j) w_k

The local problem is h_k = F_k. Clients that cannot finish in time are dropped, as Li et al. 2020,
section 5.2 run it.
"""

from fedprox.algorithms.base import Algorithm, Own, Scalars
from fedprox.model import Params
from fedprox.subproblem import Subproblem


def local_loss(params: Params, numbers: Scalars, own: Own) -> Subproblem:
    """h_k(w) = F_k(w), from w^t."""
    del numbers, own
    return Subproblem(start=params)


def fedavg() -> Algorithm:
    """Federated averaging (McMahan et al. 2017, Algorithm 1), dropping stragglers.

    >>> fedavg().stragglers
    'drop'
    """
    return Algorithm("fedavg", local_loss, numbers={}, stragglers="drop")
