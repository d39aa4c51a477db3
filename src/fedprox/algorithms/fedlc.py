"""FedLC (Zhang et al. 2022): logits are calibrated by the label counts of each client.

The margin of Cao et al. 2019, n^(-1/4), is larger for the rarer classes of a client, so that its
local steps push their logits down less.
"""

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import require
from fedprox.losses import classes_loss
from fedprox.model import Model, Params, losses_of
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem

NEVER = 1e9
"""A margin with which a class has no probability, and no gradient."""


def by_counts(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(w) with outputs less tau n_kc^(-1/4) for class c, from w^t."""
    counts = context.labels
    margins = hparams["tau"] * jnp.maximum(counts, 1) ** -0.25
    return Subproblem(params, given=jnp.where(counts > 0, margins, NEVER))


def calibrated_loss(
    model: Model, params: Params, batch: base.Batch, margins: jax.Array
) -> jax.Array:
    """The model's cross-entropy, of calibrated logits."""
    outputs = batch.outputs(model, params)
    loss = classes_loss(model.loss, outputs, batch.y)
    require(loss, "fedlc: the model's loss is not cross-entropy, whose logits it calibrates")
    require(
        not (loss and loss.smoothing),
        "fedlc: the model's loss smooths labels, which gives probability to classes that a client "
        "does not have; leave smoothing out",
    )
    return batch.mean(losses_of(model, outputs - margins, batch.y))


def fedlc(tau: HParam) -> base.Algorithm:
    r"""FedLC: a cross-entropy whose logits are calibrated by the client's label counts.

    With :math:`n_{kc}` labels of class :math:`c` among its training rows, client :math:`k`
    approximately minimizes the mean, over its rows :math:`(x, y)`, of

    .. math:: -\log \frac{\exp(z_y - \tau n_{ky}^{-1/4})}
        {\sum_{c : n_{kc} > 0} \exp(z_c - \tau n_{kc}^{-1/4})},

    starting from :math:`w^t`, where :math:`z` are the model's outputs for :math:`x`. Classes that
    the client does not have get no gradient. The server averages as in FedAvg. Stragglers are
    dropped. Label counts stay on the clients. The model's loss must be cross-entropy.

    Args:
        tau: :math:`\tau`, above 0. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If tau is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedlc(tau=[0.5, 1.0]).hparams["tau"]
        (0.5, 1.0)

    References:
        Zhang et al., `Federated Learning with Label Distribution Skew via Logits Calibration
        <https://arxiv.org/abs/2209.00189>`_, ICML 2022, section 4.
    """
    return base.Algorithm(
        "fedlc",
        by_counts,
        hparams={"tau": base.check_hparam("fedlc: tau", tau, positive=True)},
        stragglers="drop",
        first=base.First(labels=True),
        client=base.OnClient(objective=calibrated_loss),
    )
