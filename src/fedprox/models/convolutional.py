"""The papers' convolutional networks: FedAvg's two, and FedDyn's two."""

from functools import partial
from typing import Any, ClassVar, Literal

import jax
from flax import nnx

from fedprox.errors import require_one_of
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, local_response_normalisation, max_pool, torch_default


def _norm(kind: Literal["batch", "group"], channels: int, rngs: nnx.Rngs) -> Any:
    """Batch normalization with PyTorch's momentum, or group normalization of two groups."""
    if kind == "batch":
        return nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, rngs=rngs)
    return nnx.GroupNorm(channels, num_groups=2, epsilon=1e-5, rngs=rngs)


class _SmallCNN(nnx.Module):
    """Two convolutions and some dense layers, of which the last has an output for each class."""

    shape: ClassVar[tuple[int, int, int]]
    """Height, width and channels of the images."""

    depth: ClassVar[int] = 3
    """Number of dense layers."""

    def convolved(self, x: jax.Array) -> jax.Array:
        """The convolutions, each pooled."""
        x = nnx.relu(self.conv1(x, max_pool))
        return nnx.relu(self.conv2(x, max_pool))

    def representation(self, x: jax.Array) -> jax.Array:
        """Images (B, ...) -> (B, units of the layer before the last)."""
        x = self.convolved(x.reshape(-1, *self.shape))
        x = x.reshape(x.shape[0], -1)
        for i in range(1, self.depth):
            x = nnx.relu(getattr(self, f"dense{i}")(x))
        return x

    def __call__(self, x: jax.Array) -> jax.Array:
        """Images (B, ...) -> (B, classes)."""
        outputs: jax.Array = getattr(self, f"dense{self.depth}")(self.representation(x))
        return outputs

    @classmethod
    def model(cls, name: str, federation: Federation, **options: Any) -> Model:
        """The model for a federation of such images."""
        classes = class_count(name, federation)
        image_shape(name, federation, needed=cls.shape)
        return Model.from_nnx(lambda rngs: cls(classes, **options, rngs=rngs))


class MnistCNN(_SmallCNN):
    """Two 5x5 convolutions of 32 and 64 channels, each pooled 2x2, and a layer of 512 units."""

    shape, depth = (28, 28, 1), 2

    def __init__(
        self, classes: int, *, norm: Literal["none", "batch", "group"], rngs: nnx.Rngs
    ) -> None:
        init = nnx.initializers.glorot_uniform()
        self.conv1 = Conv(1, 32, 5, padding=2, kernel_init=init, rngs=rngs)
        self.conv2 = Conv(32, 64, 5, padding=2, kernel_init=init, rngs=rngs)
        self.dense1 = Dense(7 * 7 * 64, 512, kernel_init=init, rngs=rngs)
        self.dense2 = Dense(512, classes, kernel_init=init, rngs=rngs)
        if norm != "none":
            self.norm1, self.norm2 = _norm(norm, 32, rngs), _norm(norm, 64, rngs)

    def convolved(self, x: jax.Array) -> jax.Array:
        """The convolutions, each normalized, if at all, and pooled."""
        if not hasattr(self, "norm1"):
            return super().convolved(x)
        x = max_pool(nnx.relu(self.norm1(self.conv1(x))))
        return max_pool(nnx.relu(self.norm2(self.conv2(x))))


def mnist_cnn(federation: Federation, *, norm: Literal["none", "batch", "group"] = "none") -> Model:
    """FedAvg's CNN for 28x28 grey images.

    Two 5x5 convolutions of 32 and 64 channels with 2x2 pooling, a dense layer of 512 units, and a
    linear layer. With ten classes they have 1,663,370 parameters, the paper's number, which needs
    convolutions whose outputs are as large as their inputs. The paper does not give initial values.
    These are TensorFlow's defaults: kernels uniform on +-sqrt(6 / (inputs + outputs)) and zero
    biases.

    Args:
        federation: Clients with images of shape (28, 28) or (28, 28, 1) and any number of classes.
        norm: The normalization after each convolution, before ReLU and pooling: "none", "batch", or
            "group" of two groups. The running statistics of "batch" have a momentum of 0.9, the
            share of a statistic that stays in each step.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features have another shape, the labels are not classes, or `norm` has
            another value.

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
    require_one_of("model.norm", norm, ("none", "batch", "group"))
    return MnistCNN.model("mnist-cnn", federation, norm=norm)


_pool_same = partial(max_pool, size=3, padding=(0, 1))
"""24 -> 12 -> 6, with the padding that TensorFlow calls SAME."""


class CifarCNN(_SmallCNN):
    """Two 5x5 convolutions of 64 channels, pooled and normalised, and layers of 384 and 192."""

    shape = (24, 24, 3)

    def __init__(self, classes: int, *, rngs: nnx.Rngs) -> None:
        normal, constant = nnx.initializers.truncated_normal, nnx.initializers.constant
        conv = partial(Conv, size=5, padding=2, kernel_init=normal(0.05), rngs=rngs)
        dense = partial(Dense, rngs=rngs)
        self.conv1 = conv(3, 64)
        self.conv2 = conv(64, 64, bias_init=constant(0.1))
        self.dense1 = dense(2304, 384, kernel_init=normal(0.04), bias_init=constant(0.1))
        self.dense2 = dense(384, 192, kernel_init=normal(0.04), bias_init=constant(0.1))
        self.dense3 = dense(192, classes, kernel_init=normal(1 / 192))

    def convolved(self, x: jax.Array) -> jax.Array:
        """The convolutions, each pooled and normalised."""
        x = local_response_normalisation(nnx.relu(self.conv1(x, _pool_same)))
        return _pool_same(local_response_normalisation(nnx.relu(self.conv2(x))))


def cifar_cnn(federation: Federation) -> Model:
    """The CNN of TensorFlow's CIFAR-10 tutorial on 24x24 crops, as FedAvg's experiments use it.

    Two 5x5 convolutions of 64 channels, two dense layers of 384 and 192 units, and a linear layer:
    1,068,298 parameters for ten classes. Pooling is 3x3 with stride 2; local response normalization
    follows the first pooling and precedes the second. Kernels start from normal distributions cut
    off at two standard deviations (0.05 for convolutions, 0.04 for dense layers, 1 / 192 for the
    last layer). Biases start from 0, 0.1, 0.1, 0.1 and 0. The tutorial's weight decay on the dense
    layers is left out, since the paper does not mention it.

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
    return CifarCNN.model("cifar-cnn", federation)


class WideLeNet(_SmallCNN):
    """Two 5x5 convolutions of 64 channels, each pooled 2x2, and layers of 384 and 192 units."""

    shape = (32, 32, 3)

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


def wide_lenet(federation: Federation) -> Model:
    """FedDyn's CNN for 32x32 colour images: LeNet's layout with more channels.

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
    return WideLeNet.model("wide-lenet", federation)


def _plain_conv(inputs: int, outputs: int, size: int, stride: int, rngs: nnx.Rngs) -> Conv:
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


class Block(nnx.Module):
    """Two 3x3 convolutions beside a shortcut (He et al. 2016, figure 2 and option B)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        *,
        norm: Literal["batch", "group"],
        rngs: nnx.Rngs,
    ) -> None:
        self.conv1 = _plain_conv(inputs, outputs, 3, stride, rngs)
        self.norm1 = _norm(norm, outputs, rngs)
        self.conv2 = _plain_conv(outputs, outputs, 3, 1, rngs)
        self.norm2 = _norm(norm, outputs, rngs)
        shortcut = []
        if stride > 1:
            shortcut = [_plain_conv(inputs, outputs, 1, stride, rngs), _norm(norm, outputs, rngs)]
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

    def __init__(
        self, channels: int, classes: int, *, norm: Literal["batch", "group"], rngs: nnx.Rngs
    ) -> None:
        self.conv = _plain_conv(channels, 64, 7, 2, rngs)
        self.norm = _norm(norm, 64, rngs)
        blocks = []
        for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
            blocks.append(Block(inputs, outputs, outputs // inputs, norm=norm, rngs=rngs))
            blocks.append(Block(outputs, outputs, 1, norm=norm, rngs=rngs))
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


def resnet18(federation: Federation, *, norm: Literal["batch", "group"] = "group") -> Model:
    """ResNet-18, with group normalization of two groups or with batch normalization.

    With group normalization it is the model of FedDyn's code, which keeps the strides for large
    images on 32x32 images too, so that the last blocks see one pixel. With batch normalization it
    is He et al.'s. It has 11,181,642 parameters on RGB images with ten classes. Convolutions start
    normal with variance 2 / (size^2 outputs), the dense layer as torch's.

    Args:
        federation: Clients with images of shape (H, W) or (H, W, C) and any number of classes.
        norm: The normalization after each convolution: "group" reads each image by itself; "batch"
            has running statistics, the model's state. They have a momentum of 0.9, the share of a
            statistic that stays in each step. The paper does not give it; PyTorch has the same.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are not images, the labels are not classes, or `norm` has
            another value.

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
    require_one_of("model.norm", norm, ("batch", "group"))
    return Model.from_nnx(lambda rngs: ResNet18(channels, classes, norm=norm, rngs=rngs))
