"""FedExP (Jhunjhunwala et al. 2023): FedAvg whose server extrapolates along the mean update.

For identical updates the quotient is below 1/2, so the method is FedAvg; the more they differ, the
longer is the step. The paper evaluates the mean of the last two models, evaluations here the last
one. A clip of faulty updates (`fedprox.Faults`) scales both parts of a message by one factor, so
the squared norm of a clipped update counts as too large.
"""

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms.base import (
    ROUNDING,
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    OnClient,
    OnServer,
    Solution,
    add_scaled,
    check_hparam,
    local_update,
)
from fedprox.algorithms.fedavg import local_loss
from fedprox.model import Params
from fedprox.solver import HParam

Message = tuple[Params, jax.Array]
"""The update d_k = w_k - w^t and its squared norm."""


def message(
    params: Params, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[Message, ClientState]:
    """Send d_k and ||d_k||^2."""
    del params, hparams
    step = local_update(solution)
    return (step, optax.tree.norm(step, squared=True)), context.state


def possible(hparams: HParams, mean: Message, steps: jax.Array) -> jax.Array:
    """The mean of squared norms is at least the squared norm of the mean."""
    del hparams, steps
    step, squares = mean
    return ~(squares < (1 - ROUNDING) * optax.tree.norm(step, squared=True))


def update(params: Params, mean: Message, hparams: HParams) -> Params:
    """w^{t+1} = w^t + max(1, mean ||d_k||^2 / (2 (||mean d_k||^2 + epsilon))) mean d_k."""
    step, squares = mean
    divisor = 2 * (optax.tree.norm(step, squared=True) + hparams["epsilon"])
    return add_scaled(params, jnp.maximum(1.0, squares / divisor), step)


def fedexp(epsilon: HParam = 1e-3) -> Algorithm:
    r"""FedExP: the server's step grows with the disagreement of the clients' updates.

    Clients work as in FedAvg. With the updates :math:`d_k = w_k - w^t` of the :math:`m` clients
    that finish, the server computes

    .. math::
        \eta_g &= \max\Big(1, \frac{\sum_{k \in S_t} \|d_k\|^2}
            {2 m (\|\bar d\|^2 + \varepsilon)}\Big), \qquad
            \bar d = \frac{1}{m} \sum_{k \in S_t} d_k, \\
        w^{t+1} &= w^t + \eta_g \bar d.

    Stragglers are dropped.

    Args:
        epsilon: :math:`\varepsilon`, above 0, which bounds the step where updates cancel. It is
            compared with squared norms of updates. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If epsilon is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedexp(epsilon=[0.001, 0.1]).hparams["epsilon"]
        (0.001, 0.1)

    References:
        Jhunjhunwala et al., `FedExP: Speeding Up Federated Averaging via Extrapolation
        <https://arxiv.org/abs/2301.09604>`_, ICLR 2023.
    """
    return Algorithm(
        "fedexp",
        local_loss,
        hparams={"epsilon": check_hparam("fedexp: epsilon", epsilon, positive=True)},
        stragglers="drop",
        average="clients",
        not_private="a message holds the squared norm of an update beside the update",
        client=OnClient(
            message=message, size=lambda sent: optax.tree.norm(sent[0]), possible=possible
        ),
        server=OnServer(update=update),
    )
