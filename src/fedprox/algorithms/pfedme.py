"""pFedMe (Dinh et al. 2020): personal models by Moreau envelopes.

In Algorithm 1 a client repeats R times a step on its envelope, each after K steps of its solver.
Here R = 1: the solver's steps of a round all serve one envelope, whose centre is w^t. With eta =
1 / lambda and beta = 1 the server averages the personal models, which is FedProx with mu = lambda
and equal weights.
"""

import jax

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    HParams,
    Own,
    Personal,
    Solution,
    add_scaled,
    check_hparam,
    local_update,
    trained,
    untrained,
)
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def envelope(state: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """F_k(theta) + (lambda / 2) ||theta - w^t||^2, from w^t."""
    del context
    return Subproblem(state, mu=hparams["lam"], anchor=state)


def message(
    state: Params, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[Params, Own]:
    """Send eta lambda (theta_k - w^t), a step on the envelope; keep theta_k."""
    del state, context
    rate = hparams["eta"] * hparams["lam"]
    sent = jax.tree.map(lambda d: rate * d, local_update(solution))
    return sent, trained(solution.params)


def update(state: Params, mean: Params, hparams: HParams) -> Params:
    """w^{t+1} = (1 - beta) w^t + beta mean w_k."""
    return add_scaled(state, hparams["beta"], mean)


def pfedme(lam: HParam, *, eta: HParam, beta: HParam = 1.0) -> Algorithm:
    r"""Moreau envelopes (pFedMe): the server minimizes the mean of those of the clients.

    Client :math:`k` of the cohort approximately solves

    .. math:: \theta_k = \arg\min_\theta \; F_k(\theta) + \frac{\lambda}{2} \|\theta - w^t\|^2,

    which it keeps as its own model, and takes a step on its envelope :math:`\bar F_k`, whose
    gradient at :math:`w^t` is :math:`\lambda (w^t - \theta_k)`. The server averages:

    .. math::
        w_k &= w^t - \eta \lambda (w^t - \theta_k) \\
        w^{t+1} &= (1 - \beta) w^t + \frac{\beta}{|S_t|} \sum_{k \in S_t} w_k.

    Stragglers' partial work is kept.

    Args:
        lam: :math:`\lambda`, above 0. A sequence sweeps over its values, as for the others.
        eta: :math:`\eta`, the learning rate on the envelopes, above 0; at most
            :math:`1 / \lambda` is sensible.
        beta: :math:`\beta`, above 0.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If a hyperparameter is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> sorted(fp.pfedme(lam=15.0, eta=0.05).hparams)
        ['beta', 'eta', 'lam']

    References:
        Dinh, Tran, Nguyen, `Personalized Federated Learning with Moreau Envelopes
        <https://arxiv.org/abs/2006.08848>`_, NeurIPS 2020, Algorithm 1 with R = 1.
    """
    given = {"lam": lam, "eta": eta, "beta": beta}
    return Algorithm(
        "pfedme",
        envelope,
        hparams={
            name: check_hparam(f"pfedme: {name}", value, positive=True)
            for name, value in given.items()
        },
        stragglers="keep",
        average="clients",
        client_state=untrained,
        message=message,
        update=update,
        personal=Personal(own=lambda state: state),
    )
