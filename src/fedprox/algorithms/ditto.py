"""Ditto (Li et al. 2021): personal models that stay near a global one.

The global model is trained as in FedAvg, and nothing of the personal models reaches it. In
Algorithm 1 a client of the cohort takes its personal steps after its part of the global model's
round. Both begin from the client's earlier state, so the order does not matter. Here both take the
same number of steps on the same mini-batches.
"""

from fedprox.algorithms import base
from fedprox.algorithms.fedavg import local_loss
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def near_global(state: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(v) + (lambda / 2) ||v - w^t||^2, from v_k; w^t if the client has no model of its own."""
    return Subproblem(base.own_or(context.state, state), mu=hparams["lam"], anchor=state)


def ditto(lam: HParam) -> base.Algorithm:
    r"""Ditto: each client has a model of its own, drawn towards the global model.

    The global model :math:`w^t` is that of FedAvg with the partial work of stragglers. Client
    :math:`k` of the cohort also approximately minimizes

    .. math:: \min_v \; F_k(v) + \frac{\lambda}{2} \|v - w^t\|^2

    from its own model :math:`v_k`, which it keeps. With :math:`\lambda = 0` these are local models,
    and for large :math:`\lambda` the global one. A client starts from :math:`w^t` when it takes
    part for the first time.

    Args:
        lam: :math:`\lambda`, at least 0. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If lambda is negative or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.ditto(lam=0.1).communication
        1

    References:
        Li et al., `Ditto: Fair and Robust Federated Learning Through Personalization
        <https://arxiv.org/abs/2012.04221>`_, ICML 2021, Algorithm 1.
    """
    return base.Algorithm(
        "ditto",
        local_loss,
        hparams={"lam": base.check_hparam("ditto: lam", lam)},
        stragglers="keep",
        personal=base.Personal(
            own=lambda own, _: own,
            subproblem=near_global,
            keep=lambda _, solved: base.trained(solved),
        ),
        client=base.OnClient(state=base.untrained),
    )
