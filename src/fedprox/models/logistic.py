"""Multinomial logistic regression, the convex model of Li et al. 2020 (appendix C.1)."""

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
    """Logistic regression with (d + 1) C parameters: 610 for Synthetic, 7,850 for MNIST.

    Args:
        federation: Gives the number of features d and of classes C.
        initial: "glorot": W uniform on +-sqrt(6 / (d + C)), b = 0, as the FedProx experiments
            begin; "zeros" as FedDyn's on synthetic data do.

    Raises:
        InputError: The labels are not classes.

    >>> from fedprox.datasets import synthetic
    >>> model = logistic(synthetic(clients=2))
    >>> sum(a.size for a in jax.tree.leaves(model.init(jax.random.key(0))))
    610
    """
    classes, features = class_count("logistic", federation), feature_count(federation)
    require_one_of("model.initial", initial, ("glorot", "zeros"))
    init = nnx.initializers.glorot_uniform() if initial == "glorot" else nnx.initializers.zeros
    return Model.from_nnx(lambda rngs: Logistic(features, classes, kernel_init=init, rngs=rngs))
