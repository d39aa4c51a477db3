"""FedDANE (Li et al. 2019): DANE's gradient-corrected local problem with sampled clients.

With every client in both cohorts of a round this is inexact DANE (Shamir et al. 2014, equation 13).
A round takes two exchanges, so its communication counts twice; g^t, which travels with w^t in the
second exchange, is not counted. The authors' code draws both cohorts with one seed, which makes
them equal, and counts one exchange.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.algorithms.fedprox import ADAPTIVE_MU
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t and the mean gradient g^t of the first cohort."""

    params: Params
    gradient: Params


def exchange(state: State, gradient: Params, hparams: base.HParams) -> State:
    """Store g^t."""
    del hparams
    return state._replace(gradient=gradient)


def corrected(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + <g^t - grad F_k(w^t), w> + (mu / 2) ||w - w^t||^2, from w^t."""
    linear = jax.tree.map(jnp.subtract, state.gradient, context.gradient)
    return Subproblem(state.params, mu=hparams["mu"], anchor=state.params, linear=linear)


def feddane(mu: HParam, *, adapt: bool = False) -> base.Algorithm:
    r"""FedDANE: a proximal term and a correction by the gradient of another cohort.

    A first cohort :math:`S'_t` sends its gradients, whose weighted mean is :math:`g^t`. Client
    :math:`k` of a second cohort, drawn independently, approximately minimizes

    .. math:: h_k(w) = F_k(w) + \langle g^t - \nabla F_k(w^t), w \rangle
        + \frac{\mu}{2} \|w - w^t\|^2,

    starting from :math:`w^t`. The server averages the results, weighted by rows. Stragglers'
    partial work is kept.

    Args:
        mu: Proximal weight, at least 0. A sequence sweeps over its values.
        adapt: Whether mu follows the training loss, starting from the value given, as in
            :func:`fedprox.fedprox`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If mu is negative or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.feddane(mu=0.1).communication
        2

    References:
        Li et al., `FedDANE: A Federated Newton-Type Method <https://arxiv.org/abs/2001.01920>`_,
        Asilomar 2019; and Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix B.
    """
    return base.Algorithm(
        "feddane",
        corrected,
        hparams={"mu": base.check_hparam("feddane: mu", mu)},
        stragglers="keep",
        communication=2,
        adapt=ADAPTIVE_MU if adapt else None,
        server=base.beside_model(lambda params: State(params, base.zeros(params))),
        first=base.First(gradient=True, exchange=exchange),
    )
