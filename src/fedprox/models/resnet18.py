"""ResNet-18 with group normalisation, as in FedDyn's code."""

import jax
from flax import nnx

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, max_pool, torch_default


def _conv(inputs: int, outputs: int, size: int, stride: int, rngs: nnx.Rngs) -> Conv:
    """Without bias; normal numbers of variance 2 / (size^2 outputs) (He et al. 2015)."""
    return Conv(
        inputs,
        outputs,
        size,
        stride=stride,
        padding=size // 2,
        kernel_init=nnx.initializers.variance_scaling(2.0, "fan_out", "normal"),
        bias_init=None,
        rngs=rngs,
    )


def _norm(channels: int, rngs: nnx.Rngs) -> nnx.GroupNorm:
    return nnx.GroupNorm(channels, num_groups=2, epsilon=1e-5, rngs=rngs)


class Block(nnx.Module):
    """Two 3x3 convolutions beside a shortcut (He et al. 2016, figure 2 and option B)."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, rngs: nnx.Rngs) -> None:
        self.conv1 = _conv(inputs, outputs, 3, stride, rngs)
        self.norm1 = _norm(outputs, rngs)
        self.conv2 = _conv(outputs, outputs, 3, 1, rngs)
        self.norm2 = _norm(outputs, rngs)
        shortcut = []
        if stride > 1:
            shortcut = [_conv(inputs, outputs, 1, stride, rngs), _norm(outputs, rngs)]
        self.shortcut = nnx.List(shortcut)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, H, W, inputs) -> (B, H / stride, W / stride, outputs)."""
        y = nnx.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        for layer in self.shortcut:
            x = layer(x)
        return nnx.relu(x + y)


class ResNet18(nnx.Module):
    """A 7x7 convolution, 3x3 pooling, eight blocks of 64 to 512 channels, a mean, a dense layer."""

    def __init__(self, channels: int, classes: int, *, rngs: nnx.Rngs) -> None:
        self.conv = _conv(channels, 64, 7, 2, rngs)
        self.norm = _norm(64, rngs)
        blocks = []
        for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
            blocks.append(Block(inputs, outputs, outputs // inputs, rngs=rngs))
            blocks.append(Block(outputs, outputs, 1, rngs=rngs))
        self.blocks = nnx.List(blocks)
        init = torch_default(512)
        self.dense = Dense(512, classes, kernel_init=init, bias_init=init, rngs=rngs)

    def representation(self, x: jax.Array) -> jax.Array:
        """(B, H, W) or (B, H, W, C) -> (B, 512)."""
        x = x.reshape(*x.shape[:3], -1)
        x = max_pool(nnx.relu(self.norm(self.conv(x))), 3, (1, 1))
        for block in self.blocks:
            x = block(x)
        return x.mean(axis=(1, 2))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, H, W) or (B, H, W, C) -> (B, classes)."""
        return self.dense(self.representation(x))


def resnet18(federation: Federation) -> Model:
    """ResNet-18 with group normalization of two groups in place of batch normalization.

    Running statistics of clients cannot be averaged, so batch normalization does not fit federated
    training. The model is that of FedDyn's code, which keeps the strides for large images on 32x32
    images too, so that the last blocks see one pixel. It has 11,181,642 parameters on RGB images
    with ten classes. Convolutions start normal with variance 2 / (size^2 outputs), the dense layer
    as torch's.

    Args:
        federation: Clients with images of shape (H, W) or (H, W, C) and any number of classes.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are not images, or the labels are not classes.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.zeros((1, 32, 32, 3)), [9])])
        >>> model = fp.models.resnet18(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        11181642

    References:
        He et al., `Deep Residual Learning for Image Recognition
        <https://arxiv.org/abs/1512.03385>`_, CVPR 2016, Table 1; and
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, Figure 11.
    """
    classes = class_count("resnet18", federation)
    channels = image_shape("resnet18", federation)[2]
    return Model.from_nnx(lambda rngs: ResNet18(channels, classes, rngs=rngs))
