"""FedDC (Gao et al. 2022): clients' drifts from the global model are kept apart and corrected.

Without the correction r_k - r this is FedDyn with g_k = -alpha h_k, weighted by rows. As the paper
describes it, r_k is the client's last change for each step. In the authors' code it is the negative
control variate of SCAFFOLD: this change without the correction that caused a part of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    Direction,
    HParams,
    OnClient,
    OnServer,
    Solution,
    add_scaled,
    check_hparam,
    local_update,
    params_of,
    plain_sgd,
    with_params,
    zeros,
)
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t, and the means of all clients' drifts h_k and last changes r_k."""

    params: Params
    drift: Params
    change: Params


class Own(NamedTuple):
    """A client's drift h_k, and its last change r_k for each step and unit of learning rate."""

    drift: Params
    change: Params


def corrected(state: State, hparams: HParams, context: ClientContext) -> Subproblem:
    """F_k(w) + (alpha / 2) ||w + h_k - w^t||^2 + <r_k - r, w>, from w^t."""
    own: Own = context.state
    return Subproblem(
        state.params,
        mu=hparams["alpha"],
        anchor=jax.tree.map(jnp.subtract, state.params, own.drift),
        linear=jax.tree.map(jnp.subtract, own.change, state.change),
    )


def message(
    state: State, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[tuple[Params, Params], Own]:
    """Send w_k - w^t and the change of r_k; h_k grows by w_k - w^t."""
    del state
    own, step = context.state, local_update(solution)
    length = solution.steps * hparams["learning_rate"]
    change = jax.tree.map(
        # a client without steps has computed no gradient
        lambda r, s: jnp.where(length > 0, s / jnp.where(length > 0, length, 1) - r, 0),
        own.change,
        step,
    )
    after = Own(add_scaled(own.drift, 1, step), add_scaled(own.change, 1, change))
    return (step, change), after


def along(state: State, mean: tuple[Params, Params], hparams: HParams) -> tuple[Params, State]:
    """The mean of w_k - w^t plus h, once the means over all clients follow the cohort's."""
    step, change = mean
    drift = add_scaled(state.drift, hparams["participation"], step)
    after = add_scaled(state.change, hparams["participation"], change)
    return add_scaled(step, 1, drift), State(state.params, drift, after)


SERVER = Direction(along, model=params_of, moved=with_params)


def feddc(alpha: HParam) -> Algorithm:
    r"""FedDC: local drift is decoupled from the model, and corrected when models are averaged.

    Client :math:`k` keeps its drift :math:`h_k` and its last change :math:`r_k`, the server their
    means :math:`h` and :math:`r` over all clients, weighted by rows; all are zero at first. The
    client takes :math:`K` steps of SGD with learning rate :math:`\eta` on

    .. math:: h_k(w) = F_k(w) + \frac{\alpha}{2} \|h_k + w - w^t\|^2 + \langle r_k - r, w \rangle,

    starting from :math:`w^t`, and then

    .. math::
        h_k &\leftarrow h_k + (w_k - w^t), \\
        r_k &\leftarrow (w_k - w^t) / (\eta K), \\
        w^{t+1} &= \sum_{k \in S_t} p_k w_k + h.

    Weights :math:`p_k` are proportional to rows. A client that does not take part keeps both.
    Stragglers' partial work is kept.

    Args:
        alpha: Weight :math:`\alpha` of the penalty, above 0. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If alpha is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.feddc(alpha=0.01).communication
        2

    References:
        Gao et al., `FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
        Correction <https://arxiv.org/abs/2203.11751>`_, CVPR 2022, Algorithm 1.
    """
    return Algorithm(
        "feddc",
        corrected,
        hparams={"alpha": check_hparam("feddc: alpha", alpha, positive=True)},
        stragglers="keep",
        communication=2,
        client=OnClient(
            solver=plain_sgd(
                "feddc needs solver.optimizer = sgd without options, whose steps its correction "
                "counts"
            ),
            state=lambda params: Own(zeros(params), zeros(params)),
            message=message,
        ),
        server=OnServer(
            init=lambda params: State(params, zeros(params), zeros(params)),
            update=SERVER,
            params=params_of,
        ),
    )
