"""FedNova (Wang et al. 2020): normalized averaging, however many steps each client takes.

A client's w^t - w_k is the learning rate times a weighted sum of the gradients on its path, and
||a_k||_1 is the sum of the weights. Clients with equal steps make this FedAvg (FedProx with mu).
"""

import functools

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms import base
from fedprox.algorithms.fedavg import local_loss
from fedprox.algorithms.fedprox import proximal
from fedprox.errors import require, require_number
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.solver import HParam, Solver


def geometric(x: jax.Array, steps: jax.Array) -> jax.Array:
    """The sum of |1 - x|^j over j < steps."""
    y = jnp.minimum(x, 2 - x)  # 1 - |1 - x|
    exponent = jnp.where(steps > 0, steps * jnp.log1p(-y), 0)  # for x = 1, 0 times -inf is NaN
    return jnp.where(y == 0, steps, -jnp.expm1(exponent) / jnp.where(y == 0, 1, y))


def along(params: Params, mean: base.Numbered, hparams: base.HParams) -> tuple[Params, Params]:
    """-(sum_k p_k ||a_k||_1) sum_k p_k d_k."""
    del hparams
    direction, length = mean
    return optax.tree.scale(-length, direction), params


def fednova(mu: HParam = 0.0, momentum: float = 0.0) -> base.Algorithm:
    r"""FedNova: updates are divided by the clients' local steps before they are averaged.

    Client :math:`k` takes :math:`\tau_k` steps of SGD with learning rate :math:`\eta` on
    :math:`F_k(w) + \frac{\mu}{2} \|w - w^t\|^2` from :math:`w^t`. With weights :math:`p_k`
    proportional to rows the server computes

    .. math:: w^{t+1} = w^t - \Big(\sum_{k \in S_t} p_k \|a_k\|_1\Big)
        \sum_{k \in S_t} p_k d_k, \qquad d_k = \frac{w^t - w_k}{\|a_k\|_1},

    where :math:`\|a_k\|_1` is :math:`\tau_k`, with a proximal term
    :math:`\sum_{j < \tau_k} |1 - \eta \mu|^j`, and with momentum :math:`\rho`
    :math:`\sum_{j=1}^{\tau_k} (1 - \rho^j) / (1 - \rho)`. Stragglers' partial work is kept.

    Args:
        mu: Proximal weight, at least 0. A sequence sweeps over its values.
        momentum: Momentum :math:`\rho` of the local SGD, from 0 to below 1; with it mu must be 0.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If a number is out of range, or both are above 0.

    Example:
        >>> import fedprox as fp
        >>> fp.fednova(momentum=0.9).variant
        'momentum=0.9'

    References:
        Wang et al., `Tackling the Objective Inconsistency Problem in Heterogeneous Federated
        Optimization <https://arxiv.org/abs/2007.07481>`_, NeurIPS 2020.
    """
    mus = base.check_hparam("fednova: mu", mu)
    require_number("fednova: momentum", momentum)
    require(momentum < 1, f"fednova: momentum = {momentum}; it must be below 1")
    require(not momentum or not any(mus), "fednova: mu and momentum: one of them must be 0")

    def local(solver: Solver) -> Solver:
        needs = "fednova needs solver.optimizer = sgd without options; it has its own momentum"
        require(solver.optimizer is optax.sgd, needs)
        sgd = functools.partial(optax.sgd, momentum=momentum) if momentum else optax.sgd
        return solver.changed(optimizer=sgd)

    def length_of(hparams: base.HParams, steps: jax.Array) -> jax.Array:
        """||a_k||_1, which grows with the steps."""
        length = steps.astype(real_type())
        if any(mus):
            length = geometric(hparams["learning_rate"] * hparams["mu"], length)
        if momentum:
            powers = geometric(jnp.asarray(1 - momentum, real_type()), length)
            length = (length - momentum * powers) / (1 - momentum)
        return length

    def possible(hparams: base.HParams, mean: base.Numbered, steps: jax.Array) -> jax.Array:
        _, length = mean
        return ~((length < 0) | (length > (1 + base.ROUNDING) * length_of(hparams, steps)))

    def message(
        params: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[base.Numbered, base.ClientState]:
        """Send d_k and ||a_k||_1, both 0 for a client without steps."""
        del params
        length = length_of(hparams, solution.steps)
        scale = -1 / jnp.where(length > 0, length, 1)
        direction = jax.tree.map(lambda step: scale * step, base.local_update(solution))
        return (direction, length), context.state

    return base.Algorithm(
        "fednova",
        proximal if any(mus) else local_loss,
        hparams={"mu": mus} if any(mus) else {},
        stragglers="keep",
        variant=f"momentum={momentum:g}" if momentum else "",
        not_private="a message holds the length of a client's work beside its update",
        client=base.OnClient(
            message,
            solver=local,
            size=lambda sent: optax.tree.norm(sent[0]),
            possible=possible,
        ),
        server=base.OnServer(update=base.Direction(along)),
    )
