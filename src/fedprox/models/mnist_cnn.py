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

    def representation(self, x: jax.Array) -> jax.Array:
        """(B, 28, 28) or (B, 28, 28, 1) -> (B, 512)."""
        x = x.reshape(-1, 28, 28, 1)
        x = nnx.relu(self.conv1(x, max_pool))
        x = nnx.relu(self.conv2(x, max_pool))
        return nnx.relu(self.dense1(x.reshape(len(x), -1)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 28, 28) or (B, 28, 28, 1) -> (B, classes)."""
        return self.dense2(self.representation(x))


def mnist_cnn(federation: Federation) -> Model:
    """FedAvg's CNN for 28x28 grey images.

    Two 5x5 convolutions of 32 and 64 channels with 2x2 pooling, a dense layer of 512 units, and a
    linear layer: 1,663,370 parameters for ten classes, the paper's number, which needs convolutions
    whose outputs are as large as their inputs. The paper does not give initial values. These are
    TensorFlow's defaults: kernels uniform on +-sqrt(6 / (inputs + outputs)) and zero biases.

    Args:
        federation: Clients with images of shape (28, 28) or (28, 28, 1) and any number of classes.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features have another shape, or the labels are not classes.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.zeros((1, 28, 28)), [9])])
        >>> model = fp.models.mnist_cnn(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        1663370

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3.
    """
    classes = class_count("mnist-cnn", federation)
    image_shape("mnist-cnn", federation, needed=(28, 28, 1))
    return Model.from_nnx(lambda rngs: MnistCNN(classes, rngs=rngs))
