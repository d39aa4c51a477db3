"""LeNet's layout with 64 channels, for CIFAR-10 and CIFAR-100 (Acar et al. 2021, appendix A.2)."""

import jax
from flax import nnx

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, max_pool, torch_default


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
