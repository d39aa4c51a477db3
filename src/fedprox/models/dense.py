"""Multinomial logistic regression, and perceptrons with hidden layers."""

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


class Logistic(nnx.Module):
    """softmax(W x + b) over flattened features."""

    def __init__(
        self, features: int, classes: int, *, kernel_init: nnx.Initializer, rngs: nnx.Rngs
    ) -> None:
        self.dense = Dense(features, classes, kernel_init=kernel_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, ...) -> (B, classes)."""
        return self.dense(x.reshape(x.shape[0], -1))


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
    classes, features = class_count("logistic", federation), feature_count("logistic", federation)
    require_one_of("model.initial", initial, ("glorot", "zeros"))
    init = nnx.initializers.glorot_uniform() if initial == "glorot" else nnx.initializers.zeros
    return Model.from_nnx(lambda rngs: Logistic(features, classes, kernel_init=init, rngs=rngs))


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

    def representation(self, x: jax.Array) -> jax.Array:
        """(B, ...) -> (B, units of the last hidden layer)."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return x

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, ...) -> (B, classes)."""
        return self.layers[-1](self.representation(x))


def mlp(
    federation: Federation,
    *,
    hidden: list[int],
    initial: Literal["glorot", "torch"] = "glorot",
) -> Model:
    """A multilayer perceptron: dense layers with ReLU between them.

    On MNIST, `hidden=[200, 200]` is FedAvg's 2NN, with 199,210 parameters. FedDyn has 200 units
    twice for MNIST and 100 units twice for EMNIST-L (89,610 parameters), by its appendix A.2 and
    its code; its section 3 speaks of 200 and 100.

    Args:
        federation: Clients whose examples have numbers in any shape, and classes.
        hidden: Units of each hidden layer, at least one layer.
        initial: Initial values: "glorot" for kernels uniform on +-sqrt(6 / (inputs + outputs)) and
            zero biases, TensorFlow's default (FedAvg's paper does not say); "torch" for both
            uniform on +-1 / sqrt(inputs), as FedDyn's code.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the labels are not classes, there is no layer, a layer has no units, or
            `initial` has another value.

    Example:
        >>> import jax
        >>> import fedprox as fp
        >>> model = fp.models.mlp(fp.datasets.synthetic(clients=2), hidden=[30])
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        2140

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3;
        and Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    classes, features = class_count("mlp", federation), feature_count("mlp", federation)
    require(len(hidden) > 0, "model.hidden: no layers; at least one is needed")
    for units in hidden:
        require_whole("model.hidden", units)
    require_one_of("model.initial", initial, ("glorot", "torch"))
    widths = (features, *hidden, classes)
    return Model.from_nnx(lambda rngs: Perceptron(widths, initial=initial, rngs=rngs))
