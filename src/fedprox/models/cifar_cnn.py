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

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 24, 24, 3) -> (B, classes)."""
        x = local_response_normalisation(nnx.relu(self.conv1(x, _pool)))
        x = _pool(local_response_normalisation(nnx.relu(self.conv2(x))))
        x = nnx.relu(self.dense1(x.reshape(len(x), -1)))
        x = nnx.relu(self.dense2(x))
        return self.dense3(x)


def cifar_cnn(federation: Federation) -> Model:
    """The CNN of TensorFlow's CIFAR-10 tutorial on 24x24 crops: 1,068,298 parameters.

    FedAvg's experiments (McMahan et al. 2017, section 3: two convolutional layers, two dense ones
    and a linear one, about 10^6 parameters) take it over. Pooling is 3x3 two apart, local response
    normalisation follows the first pooling and precedes the second. Kernels begin as normal
    numbers cut off at two standard deviations: 0.05 for convolutions, 0.04 for dense layers,
    1 / 192 for the last; biases at 0, 0.1, 0.1, 0.1 and 0. The tutorial's weight decay on the dense
    layers is left out, since the paper does not speak of one; a solver's optimizer can have it.

    Args:
        federation: Features 24 x 24 x 3, and any number of classes.

    Raises:
        InputError: The features are not such images, or the labels are not classes.
    """
    classes = class_count("cifar-cnn", federation)
    image_shape("cifar-cnn", federation, needed=(24, 24, 3))
    return Model.from_nnx(lambda rngs: CifarCNN(classes, rngs=rngs))
