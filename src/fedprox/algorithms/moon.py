"""MOON (Li et al. 2021): model-contrastive learning between a client's models and the server's."""

from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import InputError
from fedprox.model import Model, Params
from fedprox.model.convolution import fast
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def contrastive(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(w) + mu times the contrastive loss, from w^t."""
    last = base.own_or(context.state, params)
    return Subproblem(params, given=(hparams["mu"], hparams["tau"], params, last))


def similarity(a: jax.Array, b: jax.Array) -> jax.Array:
    """The cosine similarity of the rows of a and b, shape (B,)."""
    a, b = (v.reshape(len(v), -1) for v in (a, b))
    lengths = [jnp.sqrt(jnp.maximum(jnp.sum(v**2, axis=1), 1e-12)) for v in (a, b)]
    return jnp.sum(a * b, axis=1) / (lengths[0] * lengths[1])


def contrastive_loss(model: Model, params: Params, batch: base.Batch, given: Any) -> jax.Array:
    """The mini-batch's loss + mu log(1 + exp((sim(z, z_last) - sim(z, z_received)) / tau))."""
    if model.representation is None:
        what = "`representation`, (params, x) -> (B, d), which its loss compares"
        raise InputError(f"moon: the model has no {what}")
    mu, tau, *others = given
    represent = fast(model.representation)
    z, received, last = (represent(model.whole(w), batch.x) for w in (params, *others))
    ahead = (similarity(z, last) - similarity(z, received)) / tau
    return batch.loss(model, params) + mu * batch.mean(jax.nn.softplus(ahead))


def message(
    params: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[Params, base.Own]:
    """Send w_k - w^t, and keep w_k."""
    del params, hparams, context
    return base.local_update(solution), base.trained(solution.params)


def moon(mu: HParam, *, tau: HParam = 0.5) -> base.Algorithm:
    r"""MOON: representations stay near the global model's, away from the client's last model's.

    With the representation :math:`z = R_w(x)`, client :math:`k` approximately minimizes the mean,
    over its rows, of their loss and

    .. math:: -\mu \log \frac{\exp(\mathrm{sim}(z, z_g) / \tau)}
        {\exp(\mathrm{sim}(z, z_g) / \tau) + \exp(\mathrm{sim}(z, z_l) / \tau)},

    starting from :math:`w^t`, where :math:`z_g` is the representation of :math:`w^t`, :math:`z_l`
    that of the client's last local model, which it keeps, and :math:`\mathrm{sim}` the cosine. For
    a client that takes part for the first time both are those of :math:`w^t`. The server averages
    as in FedAvg. Stragglers are dropped.

    The model says what its representation is: see `representation` of :class:`fedprox.Model`.

    Args:
        mu: :math:`\mu`, at least 0. A sequence sweeps over its values. With 0 this is FedAvg.
        tau: The temperature :math:`\tau`, above 0.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If mu is negative, tau not above 0, or one of them not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.moon(mu=[1.0, 5.0]).hparams
        {'mu': (1.0, 5.0), 'tau': (0.5,)}

    References:
        Li, He, Song, `Model-Contrastive Federated Learning <https://arxiv.org/abs/2103.16049>`_,
        CVPR 2021, Algorithm 1 and equations 3 and 4.
    """
    return base.Algorithm(
        "moon",
        contrastive,
        hparams={
            "mu": base.check_hparam("moon: mu", mu),
            "tau": base.check_hparam("moon: tau", tau, positive=True),
        },
        stragglers="drop",
        client=base.OnClient(state=base.untrained, message=message, objective=contrastive_loss),
    )
