"""FedGKD (Yao et al. 2021): clients distil from the mean of the server's last models."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import require, require_whole
from fedprox.losses import classes_loss
from fedprox.model import Model, Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The model w^t, the teacher, the last M models, that of round t at t mod M, and t."""

    params: Params
    teacher: Params
    past: Params
    round: jax.Array


def distilled(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(w) + (gamma / 2) KL(teacher || w), from w^t."""
    del context
    return Subproblem(state.params, given=(hparams["gamma"], state.teacher))


def distillation(model: Model, params: Params, batch: base.Batch, given: Any) -> jax.Array:
    """The mini-batch's loss + (gamma / 2) the divergence of its predictions from the teacher's."""
    gamma, teacher = given
    theirs = jax.nn.log_softmax(model.apply(teacher, batch.x))
    outputs = batch.outputs(model, params)
    require(
        classes_loss(model.loss, outputs, batch.y),
        "fedgkd: the model's loss is not cross-entropy, whose probabilities it distils",
    )
    ours = jax.nn.log_softmax(outputs)
    each = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
    known, positions = batch.y >= 0, tuple(range(1, batch.y.ndim))
    summed = jnp.sum(jnp.where(known, each, 0), axis=positions)
    divergence = summed / jnp.maximum(jnp.sum(known, axis=positions), 1)
    return batch.loss(model, params) + gamma / 2 * batch.mean(divergence)


def moved(state: State, params: Params) -> State:
    """w^{t+1} takes the place of the oldest model."""
    now = state.round + 1

    def kept(past: jax.Array, new: jax.Array) -> jax.Array:
        return past.at[jnp.mod(now, len(past))].set(new)

    past = jax.tree.map(kept, state.past, params)

    def mean_of(past: jax.Array) -> jax.Array:
        return past.sum(axis=0) / jnp.minimum(now + 1, len(past))

    return State(params, jax.tree.map(mean_of, past), past, now)


def fedgkd(gamma: HParam, *, models: int = 1) -> base.Algorithm:
    r"""FedGKD: clients distil from the server's last models while they train.

    Client :math:`k` approximately minimizes the mean, over its rows, of their cross-entropy and

    .. math:: \frac{\gamma}{2} \mathrm{KL}\big(p(x; \bar w^t) \,\|\, p(x; w)\big), \qquad
        \bar w^t = \frac{1}{M} \sum_{m=0}^{M-1} w^{t-m},

    starting from :math:`w^t`, where :math:`p` are the model's probabilities; before round :math:`M`
    the mean is over all models so far. The server averages as in FedAvg. Stragglers are dropped.
    The model's loss must be cross-entropy.

    Args:
        gamma: :math:`\gamma`, at least 0. A sequence sweeps over its values. With 0 this is FedAvg.
        models: :math:`M`, at least 1. With more than 1, clients are sent the mean beside
            :math:`w^t`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If gamma is negative or not finite, or `models` is not a whole number above 0.

    Example:
        >>> import fedprox as fp
        >>> fp.fedgkd(gamma=0.2, models=5).variant
        'M=5'

    References:
        Yao et al., `Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
        Non-IID Data <https://arxiv.org/abs/2107.00051>`_, 2021.
    """
    require_whole("fedgkd: models", models)

    def init(params: Params) -> State:
        def first(w: jax.Array) -> jax.Array:
            return jnp.zeros((models, *jnp.shape(w)), w.dtype).at[0].set(w)

        return State(params, params, jax.tree.map(first, params), jnp.int32(0))

    return base.Algorithm(
        "fedgkd",
        distilled,
        hparams={"gamma": base.check_hparam("fedgkd: gamma", gamma)},
        stragglers="drop",
        variant="" if models == 1 else f"M={models}",
        communication=1 if models == 1 else 1.5,
        client=base.OnClient(objective=distillation),
        server=base.beside_model(init, moved=moved),
    )
