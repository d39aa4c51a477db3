"""Multinomial logistic regression."""

from typing import Literal

import jax
from flax import nnx

from fedprox.errors import require_one_of
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, feature_count
from fedprox.models.layers import Dense


class Logistic(nnx.Module):
    """softmax(W x + b) over flattened features."""

    def __init__(
        self, features: int, classes: int, *, kernel_init: nnx.Initializer, rngs: nnx.Rngs
    ) -> None:
        self.dense = Dense(features, classes, kernel_init=kernel_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, ...) -> (B, classes)."""
        return self.dense(x.reshape(len(x), -1))


def logistic(federation: Federation, *, initial: Literal["glorot", "zeros"] = "glorot") -> Model:
    r"""Multinomial logistic regression, a convex model.

    It predicts :math:`\mathrm{softmax}(W x + b)` from flattened features, with
    :math:`(d + 1) C` parameters: 610 for Synthetic, 7,850 for MNIST.

    Args:
        federation: Clients whose examples have d numbers, in any shape, and C classes.
        initial: Initial values: "glorot" for W uniform on +-sqrt(6 / (d + C)) and b = 0, as in
            FedProx's experiments; "zeros" as in FedDyn's on synthetic data.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the labels are not classes, or `initial` has another value.

    Example:
        >>> import jax
        >>> import fedprox as fp
        >>> model = fp.models.logistic(fp.datasets.synthetic(clients=2))
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        610

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C.1.
    """
    classes, features = class_count("logistic", federation), feature_count(federation)
    require_one_of("model.initial", initial, ("glorot", "zeros"))
    init = nnx.initializers.glorot_uniform() if initial == "glorot" else nnx.initializers.zeros
    return Model.from_nnx(lambda rngs: Logistic(features, classes, kernel_init=init, rngs=rngs))
