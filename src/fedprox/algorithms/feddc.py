"""FedDC (Gao et al. 2022): clients' drifts from the global model are kept apart and corrected.

Without the correction r_k - r this is FedDyn with g_k = -alpha h_k, weighted by rows. As the paper
describes it, r_k is the client's last change for each step. In the authors' code it is the negative
control variate of SCAFFOLD: this change without the correction that caused a part of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t, and the means of all clients' drifts h_k and last changes r_k."""

    params: Params
    drift: Params
    change: Params


def corrected(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(w) + (alpha / 2) ||w + h_k - w^t||^2 + <r_k - r, w>, from w^t."""
    drift, change = context.state
    return Subproblem(
        state.params,
        mu=hparams["alpha"],
        anchor=jax.tree.map(jnp.subtract, state.params, drift),
        linear=jax.tree.map(jnp.subtract, change, state.change),
    )


def message(
    state: State, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[base.Pair, base.Pair]:
    """Send w_k - w^t and the change of r_k; keep h_k, which grows by w_k - w^t, and r_k."""
    del state
    (drift, last), step = context.state, base.local_update(solution)
    length = solution.steps * hparams["learning_rate"]
    change = jax.tree.map(
        # a client without steps has computed no gradient
        lambda r, s: jnp.where(length > 0, s / jnp.where(length > 0, length, 1) - r, 0),
        last,
        step,
    )
    return (step, change), (base.add_scaled(drift, 1, step), base.add_scaled(last, 1, change))


def along(state: State, mean: base.Pair, hparams: base.HParams) -> tuple[Params, State]:
    """The mean of w_k - w^t plus h, once the means over all clients follow the cohort's."""
    step, change = mean
    drift = base.add_scaled(state.drift, hparams["participation"], step)
    after = base.add_scaled(state.change, hparams["participation"], change)
    return base.add_scaled(step, 1, drift), State(state.params, drift, after)


def feddc(alpha: HParam) -> base.Algorithm:
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
    needs = "feddc needs solver.optimizer = sgd without options, whose steps its correction counts"
    return base.Algorithm(
        "feddc",
        corrected,
        hparams={"alpha": base.check_hparam("feddc: alpha", alpha, positive=True)},
        stragglers="keep",
        communication=2,
        client=base.OnClient(
            message,
            state=lambda params: (base.zeros(params), base.zeros(params)),
            solver=base.plain_sgd(needs),
        ),
        server=base.beside_model(
            lambda params: State(params, base.zeros(params), base.zeros(params)),
            base.Direction(along),
        ),
    )
