"""FedSAM (Qu et al. 2022): clients take sharpness-aware steps, and the server averages."""

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms import base
from fedprox.model import Model, Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def sharp(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """Max over ||e|| <= rho of F_k(w + e), to first order, from w^t."""
    del context
    return Subproblem(params, given=hparams["rho"])


def perturbed(model: Model, params: Params, batch: base.Batch, rho: jax.Array) -> jax.Array:
    """The loss at w + rho g / ||g||, with the gradient g of the mini-batch at w held fixed."""
    gradient = jax.lax.stop_gradient(jax.grad(lambda w: batch.loss(model, w))(params))
    norm = optax.tree.norm(gradient)
    scale = rho / jnp.where(norm > 0, norm, 1)
    return batch.loss(model, base.add_scaled(params, scale, gradient))


def fedsam(rho: HParam) -> base.Algorithm:
    r"""FedSAM: sharpness-aware steps, whose gradient is taken at a nearby point of larger loss.

    On a mini-batch :math:`z`, client :math:`k` steps along

    .. math:: \nabla F_k\Big(w + \rho \frac{g}{\|g\|}; z\Big), \qquad g = \nabla F_k(w; z),

    from :math:`w^t`, which costs two gradients a step. The server averages as in FedAvg. Stragglers
    are dropped.

    Args:
        rho: :math:`\rho`, at least 0. A sequence sweeps over its values. With 0 this is FedAvg.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If rho is negative or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedsam(rho=[0.0, 0.05]).hparams["rho"]
        (0.0, 0.05)

    References:
        Qu et al., `Generalized Federated Learning via Sharpness Aware Minimization
        <https://arxiv.org/abs/2206.02618>`_, ICML 2022, Algorithm 1.
    """
    return base.Algorithm(
        "fedsam",
        sharp,
        hparams={"rho": base.check_hparam("fedsam: rho", rho)},
        stragglers="drop",
        client=base.OnClient(objective=perturbed, whole_batches=True),
    )
