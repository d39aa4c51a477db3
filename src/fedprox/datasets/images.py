"""Images: their check, their preparation, augmentations of training images, and rotations.

Images are bytes of shape (B, height, width, channels), or (B, height, width) if they are grey. An
augmentation is compiled inside the round. It takes a random key and a batch, and draws for each
image separately; its counterpart for evaluation takes the batch alone. Windows are cut by a gather,
which XLA fuses with the operations that follow. For 50 CIFAR images on one CPU core inside a
compiled loop it took 0.2 ms, slices of each image 0.3 ms, and products with selection matrices 0.6
ms.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, shown
from fedprox.features import Features, index_of, named_leaves, with_index
from fedprox.federation import Examples, Federation, with_rows

Channels = tuple[float, ...]

FEDAVG_SIDE = 24
"""Side of the crops that McMahan et al. 2017 train and test on."""


def require_images(
    where: object, x: NDArray[np.generic], y: NDArray[np.generic], classes: int
) -> None:
    """Raise `InputError` unless x holds images of 28 x 28 bytes and y their labels."""
    require(
        x.dtype == np.uint8
        and x.shape == (len(x), 28, 28)
        and y.dtype.kind in "iu"
        and y.shape == (len(x),)
        and len(y) > 0
        and y.min() >= 0
        and y.max() < classes,
        f"{where}: needs (n, 28, 28) bytes and n labels from 0 to {classes - 1}; it holds "
        f"{x.dtype} {x.shape} and labels of {y.dtype} {y.shape}",
    )


def unit(raw: jax.Array) -> jax.Array:
    """Bytes as numbers in [0, 1]."""
    return raw.astype(jnp.float32) * np.float32(1 / 255)


def dark_on_white(raw: jax.Array) -> jax.Array:
    """Bytes white on black -> pixels in [0, 1], dark on white."""
    return np.float32(1 / 255) * (255 - raw).astype(jnp.float32)


def fedavg_training(key: jax.Array, images: jax.Array) -> jax.Array:
    """Random crop, flip, brightness, contrast, then whitening (McMahan et al. 2017, section 3).

    The paper names the steps; sizes and ranges are those of the TensorFlow tutorial of its model. A
    window of 24 x 24 pixels is mirrored with probability 1/2. Its brightness is shifted by up to 63
    of 255, and its contrast multiplied by 0.2 to 1.8 about each channel's mean. Whitening subtracts
    an image's mean, so the shift of brightness has no effect on the result.

    Bytes (B, height, width, channels), at least 24 x 24, become float32 (B, 24, 24, channels).
    """
    count, height, width, _ = images.shape
    places, flips, shifts, factors = jax.random.split(key, 4)
    room = jnp.array([height, width]) - FEDAVG_SIDE
    top, left = jax.random.randint(places, (count, 2), 0, room + 1).T
    flip = jax.random.bernoulli(flips, shape=(count,))
    shift = jax.random.uniform(shifts, (count,), minval=-63, maxval=63)
    factor = jax.random.uniform(factors, (count,), minval=0.2, maxval=1.8)
    window = crop(images, top, left, flip, FEDAVG_SIDE).astype(jnp.float32)
    return whiten(contrast(window + shift[:, None, None, None], factor))


def fedavg_evaluation(images: jax.Array) -> jax.Array:
    """The middle 24 x 24 pixels, whitened: the evaluation counterpart of `fedavg_training`."""
    top, left = ((length - FEDAVG_SIDE) // 2 for length in images.shape[1:3])
    window = images[:, top : top + FEDAVG_SIDE, left : left + FEDAVG_SIDE]
    return whiten(window.astype(jnp.float32))


def feddyn_training(
    key: jax.Array, images: jax.Array, mean: Channels, deviation: Channels
) -> jax.Array:
    """Standardize, then flip and shift at random, as the code of Acar et al. 2021.

    With probability 1/2 an image is mirrored; independently with probability 1/2 it is padded by 4
    zeros on all sides and a random window of its own size is cut. Zero is the mean here, since
    padding comes after standardisation.

    Bytes (B, side, side, channels) become float32 of that shape; `mean` and `deviation` are those
    of each channel, in units of 255.
    """
    count, side = images.shape[:2]
    places, flips, crops = jax.random.split(key, 3)
    moved = jax.random.bernoulli(crops, shape=(count,))
    places = jax.random.randint(places, (2, count), -4, 5)
    top, left = jnp.where(moved, places, 0)
    flip = jax.random.bernoulli(flips, shape=(count,))
    # no byte represents the mean, so pixels outside the image are set afterwards
    window = standardise(crop(images, top, left, flip, side), mean, deviation)
    inside = _inside(top, side, side)[:, :, None] & _inside(left, side, side)[:, None, :]
    return jnp.where(inside[..., None], window, 0)


def standardise(images: jax.Array, mean: Channels, deviation: Channels) -> jax.Array:
    """(x / 255 - mean) / deviation, by channel."""
    return (images.astype(jnp.float32) * (1 / 255) - jnp.array(mean)) / jnp.array(deviation)


def crop(
    images: jax.Array, top: jax.Array, left: jax.Array, flip: jax.Array, side: int
) -> jax.Array:
    """A window of each image or of its mirror image.

    Pixels outside the image are those of the nearest pixel inside.

    `top` and `left` (B,), which may be negative, are the first rows and columns of the windows, in
    the mirror image of an image with `flip`.

    >>> image = jnp.arange(9).reshape(1, 3, 3, 1)
    >>> at = jnp.array([1])
    >>> crop(image, at, at, jnp.array([False]), 2)[0, ..., 0].tolist()
    [[4, 5], [7, 8]]
    >>> crop(image, at, at, jnp.array([True]), 2)[0, ..., 0].tolist()
    [[4, 3], [7, 6]]
    """
    count, height, width, _ = images.shape
    rows = jnp.clip(top[:, None] + jnp.arange(side), 0, height - 1)
    columns = jnp.clip(left[:, None] + jnp.arange(side), 0, width - 1)
    columns = jnp.where(flip[:, None], width - 1 - columns, columns)
    which = jnp.arange(count)[:, None, None]
    places = images.at[which, rows[:, :, None], columns[:, None, :]]
    return places.get(mode="promise_in_bounds")


def _inside(begin: jax.Array, side: int, length: int) -> jax.Array:
    """Whether each row (or column) of a window is inside the image, (B, side)."""
    rows = begin[:, None] + jnp.arange(side)
    return (rows >= 0) & (rows < length)


def contrast(images: jax.Array, factor: jax.Array) -> jax.Array:
    """Multiply each image's differences from its channels' means by the image's factor.

    >>> contrast(jnp.array([0.0, 2.0]).reshape(1, 1, 2, 1), jnp.array([3.0])).ravel().tolist()
    [-2.0, 4.0]
    """
    means = images.mean(axis=(1, 2), keepdims=True)
    return (images - means) * factor[:, None, None, None] + means


def whiten(images: jax.Array) -> jax.Array:
    """Scale each image to mean 0 and deviation 1 over its pixels and channels.

    The deviation counts as at least 1 / sqrt(n) for n numbers, so that a constant image stays
    finite.

    >>> whiten(jnp.array([1.0, 3.0]).reshape(1, 1, 2, 1)).ravel().tolist()
    [-1.0, 1.0]
    """
    axes = (1, 2, 3)
    least = images[0].size ** -0.5
    means = images.mean(axis=axes, keepdims=True)
    deviation = jnp.maximum(images.std(axis=axes, keepdims=True), least)
    return (images - means) / deviation


def rotated(federation: Federation, degrees: Sequence[int] = (0, 90, 180, 270)) -> Federation:
    """Turn each client's images by a multiple of 90 degrees, which makes known clusters.

    Client k's images are turned counter-clockwise by ``degrees[k % len(degrees)]``, its training,
    test and validation images alike. Labels stay. This is the rotated MNIST of clustered federated
    learning, but with each image at one angle, so that no client has the same image turned.

    Args:
        federation: Clients with square images, (rows, n, n) or (rows, n, n, channels), such as
            those of :func:`mnist`. They are turned as they are stored, before pixels are prepared.
        degrees: Multiples of 90.

    Returns:
        The federation with turned images, in memory.

    Raises:
        InputError: If a number is no multiple of 90, the features are not square images, or
            validation rows belong to no client.

    Example:
        >>> import fedprox as fp
        >>> image = [[1.0, 0.0], [0.0, 0.0]]
        >>> federation = fp.Federation.from_arrays([([image], [0]), ([image], [0])])
        >>> fp.datasets.rotated(federation, [0, 180]).train.x[1].tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        Ghosh et al., `An Efficient Framework for Clustered Federated Learning
        <https://arxiv.org/abs/2006.04088>`_, NeurIPS 2020, section 6.2.
    """
    turns = []
    for degree in degrees:
        whole = isinstance(degree, int | np.integer) and degree % 90 == 0
        require(whole, f"rotated: degrees = {shown(degrees)}; each must be a multiple of 90")
        turns.append(int(degree) // 90 % 4)
    require(len(turns) > 0, "rotated: degrees is empty; give one or several")
    of_client = np.resize(turns, len(federation))

    require(
        not isinstance(federation.validation, Examples),
        "rotated: validation rows belong to no client, so no angle is theirs; leave them out",
    )
    return with_rows(
        federation,
        lambda _, rows: replace(rows, x=_turned(rows.x, np.repeat(of_client, rows.sizes))),
    )


def _turned(x: Features, turns: NDArray[np.int64]) -> Features:
    """Images with each row turned by so many quarters."""
    require(
        len(named_leaves(x)) == 1,
        f"rotated: features are {', '.join(named_leaves(x))}; they must be one array of images",
    )
    images = np.array(index_of(x))
    square = images.ndim in (3, 4) and images.shape[1] == images.shape[2]
    require(
        square or not len(images),
        f"rotated: features of shape {images.shape[1:]}; they must be square images, (n, n) or "
        "(n, n, channels)",
    )
    for quarters in np.unique(turns):
        at = turns == quarters
        images[at] = np.rot90(images[at], quarters, axes=(1, 2))
    return with_index(x, images)
