"""FedDANE: DANE's gradient-corrected local problem with few clients a round.

Li et al. 2020, appendix B and Figure 4, after Shamir et al. 2014, equation 13. A first cohort S'_t
sends its gradients, and a second one, S_t, drawn independently, solves:

    g^t     = sum_{k in S'_t} weight_k grad F_k(w^t)
    w_k    ~= argmin_w F_k(w) + <g^t - grad F_k(w^t), w> + (mu / 2) ||w - w^t||^2
    w^{t+1} = sum_{k in S_t} weight_k w_k

With every client in both cohorts this is (inexact) DANE. A round takes two exchanges, and its
communication counts twice; g^t, which travels with w^t in the second, is not counted. (The authors'
code draws the two cohorts with one seed, which makes them equal, and counts one exchange.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.adaptive import ADAPTIVE_MU
from fedprox.algorithms.base import Algorithm, ClientContext, HParams, add, check_hparam, zeros
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The model w^t and the first cohort's mean gradient g^t."""

    params: Params
    gradient: Params


def init(params: Params) -> State:
    """No gradient is known before the first exchange."""
    return State(params, zeros(params))


def exchange(state: State, gradient: Params) -> State:
    """Keep g^t."""
    return state._replace(gradient=gradient)


def corrected(state: State, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + <g^t - grad F_k(w^t), w> + (mu / 2) ||w - w^t||^2, from w^t."""
    linear = jax.tree.map(jnp.subtract, state.gradient, context.gradient)
    return Subproblem(state.params, mu=hparams["mu"], anchor=state.params, linear=linear)


def update(state: State, mean: Params, hparams: HParams) -> State:
    """w^{t+1} = w^t + sum_k weight_k (w_k - w^t)."""
    return state._replace(params=add(state.params, mean, hparams))


def feddane(mu: HParam, *, adapt: bool = False) -> Algorithm:
    """FedDANE (Li et al. 2020, appendix B), keeping stragglers' partial work.

    Args:
        mu: Weight of the proximal term, at least 0, or several to sweep over.
        adapt: Let mu follow the loss, beginning with the one given; see
            `fedprox.algorithms.adaptive`.

    Raises:
        InputError: mu < 0.

    >>> feddane(mu=0.1).communication
    2
    """
    return Algorithm(
        "feddane",
        corrected,
        hparams={"mu": check_hparam("feddane: mu", mu)},
        stragglers="keep",
        init=init,
        own_gradient=True,
        update=update,
        params=lambda state: state.params,
        exchange=exchange,
        communication=2,
        adapt=ADAPTIVE_MU if adapt else None,
    )
