"""MOON (Li et al. 2021): model-contrastive learning between a client's models and the server's."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    Batch,
    ClientContext,
    HParams,
    OnClient,
    Own,
    Solution,
    check_hparam,
    local_update,
    own_or,
    trained,
    untrained,
)
from fedprox.errors import require
from fedprox.model import Model, Params
from fedprox.model.convolution import fast
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class Given(NamedTuple):
    """The weight mu, the temperature tau, w^t and the client's last local model."""

    mu: jax.Array
    tau: jax.Array
    received: Params
    last: Params


def contrastive(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """F_k(w) + mu times the contrastive loss, from w^t."""
    last = own_or(context.state, params)
    return Subproblem(params, given=Given(hparams["mu"], hparams["tau"], params, last))


def similarity(a: jax.Array, b: jax.Array) -> jax.Array:
    """The cosine similarity of the rows of a and b, shape (B,)."""
    a, b = (v.reshape(len(v), -1) for v in (a, b))
    lengths = [jnp.sqrt(jnp.maximum(jnp.sum(v**2, axis=1), 1e-12)) for v in (a, b)]
    return jnp.sum(a * b, axis=1) / (lengths[0] * lengths[1])


def contrastive_loss(model: Model, params: Params, batch: Batch, given: Given) -> jax.Array:
    """The mini-batch's loss + mu log(1 + exp((sim(z, z_last) - sim(z, z_received)) / tau))."""
    represent = model.representation
    require(
        represent is not None,
        "moon: the model has no `representation`, (params, x) -> (B, d), which its loss compares",
    )
    assert represent is not None
    models = params, given.received, given.last
    represent = fast(represent)
    z, received, last = (represent(model.whole(w), batch.x) for w in models)
    ahead = (similarity(z, last) - similarity(z, received)) / given.tau
    return batch.loss(model, params) + given.mu * batch.mean(jax.nn.softplus(ahead))


def message(
    params: Params, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[Params, Own]:
    """Send w_k - w^t, and keep w_k."""
    del params, hparams, context
    return local_update(solution), trained(solution.params)


def moon(mu: HParam, *, tau: HParam = 0.5) -> Algorithm:
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
    return Algorithm(
        "moon",
        contrastive,
        hparams={
            "mu": check_hparam("moon: mu", mu),
            "tau": check_hparam("moon: tau", tau, positive=True),
        },
        stragglers="drop",
        client=OnClient(state=untrained, message=message, objective=contrastive_loss),
    )
