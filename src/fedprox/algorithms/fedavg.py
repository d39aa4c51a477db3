"""FedAvg (McMahan et al. 2017): the local problem is h_k = F_k, the server averages.

The paper's server waits for the whole cohort. This one drops clients that cannot finish, as in the
experiments of Li et al. 2020, section 5.2.
"""

from fedprox.algorithms.base import Algorithm, Average, ClientContext, HParams, Stragglers
from fedprox.model import Params
from fedprox.subproblem import Subproblem


def local_loss(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w), from w^t."""
    del hparams, context
    return Subproblem(start=params)


def fedavg(*, stragglers: Stragglers = "drop", average: Average = "rows") -> Algorithm:
    r"""FedAvg: clients run SGD on their own data, and the server averages their models.

    Client :math:`k` computes :math:`w_k` by :math:`E` epochs of SGD on :math:`F_k` from
    :math:`w^t`. The server computes

    .. math:: w^{t+1} = \sum_{k \in S_t} \frac{n_k}{\sum_{j \in S_t} n_j} w_k.

    Args:
        stragglers: Whether the partial work of stragglers is averaged, "keep", or they are left
            out, "drop".
        average: Weights of the server's mean: "rows" for the training rows :math:`n_k`, or
            "clients" for 1 each, which minimizes the plain mean of the :math:`F_k`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If `stragglers` or `average` has another value.

    Example:
        >>> import fedprox as fp
        >>> fp.fedavg().stragglers, fp.fedavg(stragglers="keep", average="clients").average
        ('drop', 'clients')

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, Algorithm 1.
    """
    plain = Algorithm("fedavg", local_loss, hparams={}, stragglers="drop")
    return plain.with_stragglers(stragglers).with_average(average)
