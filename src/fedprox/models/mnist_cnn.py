"""FedAvg's convolutional network for MNIST (McMahan et al. 2017, section 3)."""

import jax
from flax import nnx

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, max_pool


class MnistCNN(nnx.Module):
    """Two 5x5 convolutions of 32 and 64 channels, each pooled 2x2, and a layer of 512 units."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.glorot_uniform()
        self.conv1 = Conv(1, 32, 5, padding=2, kernel_init=init, rngs=rngs)
        self.conv2 = Conv(32, 64, 5, padding=2, kernel_init=init, rngs=rngs)
        self.dense1 = Dense(7 * 7 * 64, 512, kernel_init=init, rngs=rngs)
        self.dense2 = Dense(512, classes, kernel_init=init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 28, 28) or (B, 28, 28, 1) -> (B, classes)."""
        x = x.reshape(-1, 28, 28, 1)
        x = nnx.relu(self.conv1(x, max_pool))
        x = nnx.relu(self.conv2(x, max_pool))
        x = nnx.relu(self.dense1(x.reshape(len(x), -1)))
        return self.dense2(x)


def mnist_cnn(federation: Federation) -> Model:
    """FedAvg's CNN for 28x28 grey images: 1,663,370 parameters for ten classes.

    The count needs convolutions whose outputs are as large as their inputs. Kernels begin uniform
    on +-sqrt(6 / (inputs + outputs)), biases at zero, which is TensorFlow's default: the paper
    does not say.

    Args:
        federation: Features 28 x 28 or 28 x 28 x 1, and any number of classes.

    Raises:
        InputError: The features are not such images, or the labels are not classes.
    """
    classes = class_count("mnist-cnn", federation)
    image_shape("mnist-cnn", federation, needed=(28, 28, 1))
    return Model.from_nnx(lambda rngs: MnistCNN(classes, rngs=rngs))
