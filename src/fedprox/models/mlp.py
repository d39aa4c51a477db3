"""Perceptrons with hidden layers: FedAvg's 2NN and those of FedDyn."""

import itertools
from collections.abc import Sequence
from typing import Literal

import jax
from flax import nnx

from fedprox.errors import require, require_one_of, require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, feature_count
from fedprox.models.layers import Dense, torch_default


class Perceptron(nnx.Module):
    """Dense layers with max(0, .) between them, over flattened features."""

    def __init__(self, widths: Sequence[int], *, initial: str, rngs: nnx.Rngs) -> None:
        glorot, zeros = nnx.initializers.glorot_uniform(), nnx.initializers.zeros
        layers = []
        for inputs, outputs in itertools.pairwise(widths):
            uniform = torch_default(inputs)
            kernel, bias = (glorot, zeros) if initial == "glorot" else (uniform, uniform)
            layers.append(Dense(inputs, outputs, kernel_init=kernel, bias_init=bias, rngs=rngs))
        self.layers = nnx.List(layers)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, ...) -> (B, classes)."""
        x = x.reshape(len(x), -1)
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def mlp(
    federation: Federation,
    *,
    hidden: list[int],
    initial: Literal["glorot", "torch"] = "glorot",
) -> Model:
    """A perceptron with hidden layers.

    On MNIST, [200, 200] is FedAvg's 2NN (McMahan et al. 2017, section 3) with 199,210 parameters.
    Acar et al. 2021 write in section 3 of layers of 200 and 100, which would have 178,110; their
    appendix A.2 means 200 twice for MNIST and 100 twice for EMNIST-L (89,610), as in their code.

    Args:
        federation: Gives the number of features and of classes.
        hidden: Units of each hidden layer.
        initial: "glorot": kernels uniform on +-sqrt(6 / (inputs + outputs)) and zero biases,
            TensorFlow's default (FedAvg does not say); "torch": both uniform on
            +-1 / sqrt(inputs), as FedDyn's code begins.

    Raises:
        InputError: The labels are not classes, or no layer, or one without units.

    >>> from fedprox.datasets import synthetic
    >>> model = mlp(synthetic(clients=2), hidden=[30])
    >>> sum(a.size for a in jax.tree.leaves(model.init(jax.random.key(0))))
    2140
    """
    classes, features = class_count("mlp", federation), feature_count(federation)
    require(len(hidden) > 0, "model.hidden: no layers; at least one is needed")
    for units in hidden:
        require_whole("model.hidden", units)
    require_one_of("model.initial", initial, ("glorot", "torch"))
    widths = (features, *hidden, classes)
    return Model.from_nnx(lambda rngs: Perceptron(widths, initial=initial, rngs=rngs))
