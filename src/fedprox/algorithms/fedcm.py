r"""FedCM (Xu et al. 2021): every local step uses the server's last direction.

The paper's step is w - eta (alpha g + (1 - alpha) Delta). In terms of the local problem it is a
step of SGD of rate alpha eta on F_k(w) + (1 / alpha - 1) <Delta, w>. Clients take different numbers
of steps here, so Delta is the mean of their steps' directions, each step weighted alike.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms import base
from fedprox.errors import require
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t and the last direction Delta^t."""

    params: Params
    direction: Params


def with_direction(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (1 / alpha - 1) <Delta^t, w>, from w^t."""
    del context
    weight = 1 / hparams["alpha"] - 1
    return Subproblem(state.params, linear=optax.tree.scale(weight, state.direction))


def message(
    state: State, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[base.Numbered, base.ClientState]:
    """Send w_k - w^t and the steps K_k."""
    del state, hparams
    return (base.local_update(solution), solution.steps.astype(real_type())), context.state


def possible(hparams: base.HParams, mean: base.Numbered, most: jax.Array) -> jax.Array:
    """No client takes less than no steps, or more than the most."""
    del hparams
    _, steps = mean
    return ~((steps < 0) | (steps > (1 + base.ROUNDING) * most))


def along(state: State, mean: base.Numbered, hparams: base.HParams) -> tuple[Params, State]:
    """The mean update; divided by its steps it is the next Delta."""
    update, steps = mean
    length = steps * hparams["learning_rate"]
    scale = -hparams["alpha"] / jnp.where(length > 0, length, 1)
    direction = jax.tree.map(
        # nobody has taken a step
        lambda last, d: jnp.where(length > 0, scale * d, last),
        state.direction,
        update,
    )
    return update, state._replace(direction=direction)


def fedcm(alpha: HParam) -> base.Algorithm:
    r"""FedCM: each local step combines its gradient with the server's last direction.

    The server keeps :math:`\Delta^t`, at first zero. With a mini-batch :math:`z` a step of client
    :math:`k` is

    .. math:: w \leftarrow w - \eta \big(\alpha \nabla F_k(w; z) + (1 - \alpha) \Delta^t\big),

    which is a step of SGD with rate :math:`\alpha \eta` on

    .. math:: h_k(w) = F_k(w) + \Big(\frac{1}{\alpha} - 1\Big) \langle \Delta^t, w \rangle.

    After :math:`K_k` steps from :math:`w^t` the client sends :math:`w_k - w^t` and :math:`K_k`.
    With equal weights of the clients the server computes

    .. math::
        w^{t+1} = \frac{1}{|S_t|} \sum_{k \in S_t} w_k, \qquad
        \Delta^{t+1} = \frac{\sum_{k \in S_t} (w^t - w_k)}{\eta \sum_{k \in S_t} K_k}.

    The paper also has a learning rate of the server: add :func:`fedprox.server.optimizer` with SGD.
    Stragglers' partial work is kept.

    Args:
        alpha: Weight :math:`\alpha` of the client's own gradient, above 0 and at most 1. The
            solver's learning rate is :math:`\alpha \eta`. With 1 this is FedAvg with equal weights
            that keeps partial work. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If alpha is not above 0 and at most 1.

    Example:
        >>> import fedprox as fp
        >>> fp.fedcm(alpha=[0.1, 0.5]).hparams
        {'alpha': (0.1, 0.5)}

    References:
        Xu et al., `FedCM: Federated Learning with Client-level Momentum
        <https://arxiv.org/abs/2106.10874>`_, 2021, Algorithm 1.
    """
    alphas = base.check_hparam("fedcm: alpha", alpha, positive=True)
    require(max(alphas) <= 1, f"fedcm: alpha = {max(alphas)}; it must be at most 1")
    needs = "fedcm needs solver.optimizer = sgd without options, whose steps it counts"
    return base.Algorithm(
        "fedcm",
        with_direction,
        hparams={"alpha": alphas},
        stragglers="keep",
        average="clients",
        communication=1.5,
        not_private="a message holds the number of a client's steps beside its update",
        client=base.OnClient(
            message,
            solver=base.plain_sgd(needs),
            size=lambda sent: optax.tree.norm(sent[0]),
            possible=possible,
        ),
        server=base.beside_model(
            lambda params: State(params, base.zeros(params)),
            base.Direction(along, sent=lambda sent: sent[0]),
        ),
    )
