"""FedAvg: every client runs SGD on its own F_k; the server averages the models.

McMahan et al. 2017, Algorithm 1:

    w_k     = E epochs of SGD on F_k from w^t
    w^{t+1} = sum_{k in S_t} (n_k / sum_{j in S_t} n_j) w_k

With `average="clients"` the server counts each client once, whatever its rows:

    w^{t+1} = (1 / |S_t|) sum_{k in S_t} w_k.

The local problem is h_k = F_k. Clients that cannot finish in time are dropped, as Li et al. 2020,
section 5.2 run it.
"""

from typing import get_args

from fedprox.algorithms.base import Algorithm, Average, ClientContext, HParams
from fedprox.errors import require_one_of
from fedprox.model import Params
from fedprox.subproblem import Subproblem


def local_loss(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w), from w^t."""
    del hparams, context
    return Subproblem(start=params)


def fedavg(*, average: Average = "rows") -> Algorithm:
    """Federated averaging (McMahan et al. 2017, Algorithm 1), dropping stragglers.

    Args:
        average: What the server's mean weighs a client by: "rows", its training rows n_k, or
            "clients", each client once. The latter minimizes the plain mean of the F_k.

    Raises:
        InputError: Another average.

    Example:
        >>> fedavg().stragglers, fedavg(average="clients").average
        ('drop', 'clients')
    """
    require_one_of("fedavg: average", average, get_args(Average))
    variant = "" if average == "rows" else "plain mean"
    return Algorithm(
        "fedavg", local_loss, hparams={}, stragglers="drop", variant=variant, average=average
    )
