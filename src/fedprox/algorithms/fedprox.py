"""FedProx: FedAvg with a proximal term in the local problem, and partial work kept.

Li et al. 2020, Algorithm 2 and equation 2:

    w_k    ~= argmin_w h_k(w; w^t) = F_k(w) + (mu / 2) ||w - w^t||^2
    w^{t+1} = mean of the w_k, partial solutions of stragglers included

The mean is weighted by n_k under uniform sampling (section 5.1, the papers' experiments), and plain
under proportional sampling (Algorithm 2 as written).
"""

from fedprox.algorithms.base import Algorithm, ClientContext, HParams, check_hparam
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def proximal(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (mu / 2) ||w - w^t||^2, from w^t."""
    del context
    return Subproblem(start=params, mu=hparams["mu"], anchor=params)


def fedprox(mu: HParam, *, adapt: bool = False) -> Algorithm:
    """FedProx (Li et al. 2020, Algorithm 2), keeping stragglers' partial work.

    Args:
        mu: Weight of the proximal term, at least 0, or several to sweep over. 0 is FedAvg that
            keeps partial work.
        adapt: Let mu follow the loss, beginning with the one given (section 5.3.2); see
            `fedprox.algorithms.adaptive`.

    Raises:
        InputError: mu < 0.

    >>> fedprox(mu=[0.0, 1.0]).hparams["mu"]
    (0.0, 1.0)
    """
    values = check_hparam("fedprox: mu", mu)
    return Algorithm(
        "fedprox",
        proximal,
        hparams={"mu": values},
        stragglers="keep",
        adapt=adapt,
    )
