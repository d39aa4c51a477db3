"""FedProx (Li et al. 2020): a proximal term in the local problem, and partial work is kept.

The server's mean is weighted by n_k under uniform sampling, as in the paper's experiments (section
5.1), and plain under proportional sampling, as Algorithm 2 is written.
"""

from fedprox.algorithms.adaptive import ADAPTIVE_MU
from fedprox.algorithms.base import Algorithm, ClientContext, HParams, check_hparam
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def proximal(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (mu / 2) ||w - w^t||^2, from w^t."""
    del context
    return Subproblem(start=params, mu=hparams["mu"], anchor=params)


def fedprox(mu: HParam, *, adapt: bool = False) -> Algorithm:
    r"""FedProx: FedAvg with a proximal term that keeps stragglers' partial work.

    Client :math:`k` approximately minimizes

    .. math:: h_k(w) = F_k(w) + \frac{\mu}{2} \|w - w^t\|^2,

    starting from :math:`w^t`. The server averages the results, weighted by rows.

    Args:
        mu: Proximal weight, at least 0. A sequence sweeps over its values. With 0 this is FedAvg
            that keeps partial work.
        adapt: Whether mu follows the training loss, starting from the value given (section 5.3.2);
            see `fedprox.algorithms.adaptive`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If mu is negative or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedprox(mu=[0.0, 1.0]).hparams["mu"]
        (0.0, 1.0)

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Algorithm 2 and equation 2.
    """
    values = check_hparam("fedprox: mu", mu)
    return Algorithm(
        "fedprox",
        proximal,
        hparams={"mu": values},
        stragglers="keep",
        adapt=ADAPTIVE_MU if adapt else None,
    )
