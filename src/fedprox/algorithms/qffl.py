"""q-FedAvg (Li et al. 2020) for q-FFL: clients with large losses count more.

The objective is the mean of F_k^{q+1} / (q + 1). With L = 1 / eta in place of the smoothness of
F_k, h_k bounds the curvature of its terms, so no rate has to be tuned for each q. Sound messages
differ in size by the q-th power of the losses, which `fedprox.Faults` must allow for.
"""

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms import base
from fedprox.algorithms.fedavg import local_loss
from fedprox.model import Params
from fedprox.solver import HParam

LEAST = 1e-10
"""Losses below count as this one, so that F_k^(q-1) is finite."""


def message(
    params: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[base.Numbered, base.ClientState]:
    """Send F_k^q L (w^t - w_k) and q F_k^(q-1) ||L (w^t - w_k)||^2 + L F_k^q."""
    del params
    q, smoothness = hparams["q"], 1 / hparams["learning_rate"]
    # powers of a negative loss would be nonsense
    loss = jnp.where(context.loss < 0, jnp.nan, jnp.maximum(context.loss, LEAST))
    gradient = jax.tree.map(lambda step: -smoothness * step, base.local_update(solution))
    squared = optax.tree.norm(gradient, squared=True)
    curvature = q * loss ** (q - 1) * squared + loss**q * smoothness
    return (jax.tree.map(lambda g: loss**q * g, gradient), curvature), context.state


def along(params: Params, mean: base.Numbered, hparams: base.HParams) -> tuple[Params, Params]:
    """-sum_k Delta_k / sum_k h_k."""
    del hparams
    delta, curvature = mean
    # powers of tiny losses may be 0, with all that they multiply
    return optax.tree.scale(-1 / jnp.where(curvature == 0, 1, curvature), delta), params


def qffl(q: HParam) -> base.Algorithm:
    r"""Fair resource allocation by q-FedAvg: clients with larger losses have larger weights.

    Clients work as in FedAvg, with learning rate :math:`\eta` and :math:`L = 1 / \eta`. With the
    loss :math:`F_k(w^t)` of its training rows, client :math:`k` of the cohort :math:`S_t` sends

    .. math::
        \Delta_k &= F_k(w^t)^q L (w^t - w_k), \\
        h_k &= q F_k(w^t)^{q-1} \|L (w^t - w_k)\|^2 + L F_k(w^t)^q,

    and the server computes

    .. math:: w^{t+1} = w^t - \frac{\sum_{k \in S_t} \Delta_k}{\sum_{k \in S_t} h_k}.

    Losses must not be negative. Stragglers are dropped.

    Args:
        q: Exponent :math:`q`, at least 0: the larger, the more large losses count. With 0 this is
            FedAvg with equal weights. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If q is negative or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.qffl(q=[0.0, 1.0]).hparams["q"]
        (0.0, 1.0)

    References:
        Li et al., `Fair Resource Allocation in Federated Learning
        <https://arxiv.org/abs/1905.10497>`_, ICLR 2020, Algorithm 2.
    """
    return base.Algorithm(
        "qffl",
        local_loss,
        hparams={"q": base.check_hparam("qffl: q", q)},
        stragglers="drop",
        average="clients",
        not_private="a message holds a bound on the curvature beside the update",
        fixed={"average": "the clients' losses are their weights"},
        first=base.First(loss=True),
        client=base.OnClient(
            message=message,
            size=lambda sent: optax.tree.norm(sent[0]),
            possible=lambda _, mean, __: ~(mean[1] < 0),  # no h_k is negative
        ),
        server=base.OnServer(update=base.Direction(along)),
    )
