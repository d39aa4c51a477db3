"""FedAvg's convolutional network for CIFAR-10: that of TensorFlow's tutorial (section 3)."""

from functools import partial

import jax
from flax import nnx

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, local_response_normalisation, max_pool

_pool = partial(max_pool, size=3, padding=(0, 1))
"""24 -> 12 -> 6, with the padding that TensorFlow calls SAME."""


class CifarCNN(nnx.Module):
    """Two 5x5 convolutions of 64 channels, pooled and normalised, and layers of 384 and 192."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs) -> None:
        normal, constant = nnx.initializers.truncated_normal, nnx.initializers.constant
        conv = partial(Conv, size=5, padding=2, kernel_init=normal(0.05), rngs=rngs)
        dense = partial(Dense, rngs=rngs)
        self.conv1 = conv(3, 64)
        self.conv2 = conv(64, 64, bias_init=constant(0.1))
        self.dense1 = dense(2304, 384, kernel_init=normal(0.04), bias_init=constant(0.1))
        self.dense2 = dense(384, 192, kernel_init=normal(0.04), bias_init=constant(0.1))
        self.dense3 = dense(192, classes, kernel_init=normal(1 / 192))

    def representation(self, x: jax.Array) -> jax.Array:
        """(B, 24, 24, 3) -> (B, 192)."""
        x = local_response_normalisation(nnx.relu(self.conv1(x, _pool)))
        x = _pool(local_response_normalisation(nnx.relu(self.conv2(x))))
        x = nnx.relu(self.dense1(x.reshape(len(x), -1)))
        return nnx.relu(self.dense2(x))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 24, 24, 3) -> (B, classes)."""
        return self.dense3(self.representation(x))


def cifar_cnn(federation: Federation) -> Model:
    """The CNN of TensorFlow's CIFAR-10 tutorial on 24x24 crops, as FedAvg's experiments use it.

    Two 5x5 convolutions of 64 channels, two dense layers of 384 and 192 units, and a linear layer:
    1,068,298 parameters for ten classes. Pooling is 3x3 with stride 2; local response normalization
    follows the first pooling and precedes the second. Kernels start from normal distributions cut
    off at two standard deviations (0.05 for convolutions, 0.04 for dense layers, 1 / 192 for the
    last layer), biases from 0, 0.1, 0.1, 0.1 and 0. The tutorial's weight decay on the dense layers
    is left out, since the paper does not mention it.

    Args:
        federation: Clients with images of shape (24, 24, 3) and any number of classes, such as
            `fedprox.datasets.cifar_10(augmentation="fedavg")`.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features have another shape, or the labels are not classes.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.zeros((1, 24, 24, 3)), [9])])
        >>> model = fp.models.cifar_cnn(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        1068298

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3.
    """
    classes = class_count("cifar-cnn", federation)
    image_shape("cifar-cnn", federation, needed=(24, 24, 3))
    return Model.from_nnx(lambda rngs: CifarCNN(classes, rngs=rngs))
