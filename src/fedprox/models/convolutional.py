"""The papers' small convolutional networks: FedAvg's two, and FedDyn's."""

from functools import partial

import jax
from flax import nnx

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, local_response_normalisation, max_pool, torch_default


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


_pool_same = partial(max_pool, size=3, padding=(0, 1))
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
        x = local_response_normalisation(nnx.relu(self.conv1(x, _pool_same)))
        x = _pool_same(local_response_normalisation(nnx.relu(self.conv2(x))))
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


class WideLeNet(nnx.Module):
    """Two 5x5 convolutions of 64 channels, each pooled 2x2, and layers of 384 and 192 units."""

    def __init__(self, classes: int, *, rngs: nnx.Rngs) -> None:
        def conv(inputs: int) -> Conv:
            init = torch_default(25 * inputs)
            return Conv(inputs, 64, 5, kernel_init=init, bias_init=init, rngs=rngs)

        def dense(inputs: int, outputs: int) -> Dense:
            init = torch_default(inputs)
            return Dense(inputs, outputs, kernel_init=init, bias_init=init, rngs=rngs)

        self.conv1, self.conv2 = conv(3), conv(64)
        self.dense1, self.dense2, self.dense3 = (
            dense(1600, 384),
            dense(384, 192),
            dense(192, classes),
        )

    def representation(self, x: jax.Array) -> jax.Array:
        """(B, 32, 32, 3) -> (B, 192)."""
        x = nnx.relu(self.conv1(x, max_pool))
        x = nnx.relu(self.conv2(x, max_pool))
        x = nnx.relu(self.dense1(x.reshape(len(x), -1)))
        return nnx.relu(self.dense2(x))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 32, 32, 3) -> (B, classes)."""
        return self.dense3(self.representation(x))


def wide_lenet(federation: Federation) -> Model:
    """A CNN with LeNet's layout and more channels, for 32x32 colour images: FedDyn's.

    Two 5x5 convolutions of 64 channels with 2x2 pooling, two dense layers of 384 and 192 units, and
    a linear layer: 797,962 parameters for ten classes, 815,332 for a hundred. The paper writes 394
    units in the third layer; its code and this model have 384. Kernels and biases start uniform on
    +-1 / sqrt(inputs of a unit), torch's default.

    Args:
        federation: Clients with images of shape (32, 32, 3) and any number of classes.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features have another shape, or the labels are not classes.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.zeros((1, 32, 32, 3)), [9])])
        >>> model = fp.models.wide_lenet(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        797962

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    classes = class_count("wide-lenet", federation)
    image_shape("wide-lenet", federation, needed=(32, 32, 3))
    return Model.from_nnx(lambda rngs: WideLeNet(classes, rngs=rngs))
