"""Feature skew: images of a federation that each client sees in its own way."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_number, require_one_of
from fedprox.features import Features, Prepared
from fedprox.federation import Examples, Federation, Rows, with_rows
from fedprox.streams import Purpose, Streams, check_seed
from fedprox.table_layout import SPLITS

Skew = Literal["noise", "rotation", "contrast"]
"""The kind of difference between clients."""

STRENGTHS: dict[str, float] = {"noise": 0.1, "rotation": 45.0, "contrast": 0.5}
"""The strength of each kind unless it is given."""

Images = NDArray[np.float32]
"""Images of one client, float32 (rows, n, n, channels)."""


def skewed_features(
    federation: Federation, kind: Skew, strength: float | None = None, *, seed: int = 0
) -> Federation:
    r"""Make each client's images differ from others' in noise, rotation or contrast.

    Client :math:`k` draws its own :math:`u_k`, uniform on [0, 1), and all its images change alike,
    those to train on, to test on and to validate with. With strength :math:`s`, an image :math:`x`
    becomes

    * "noise": :math:`x + \mathrm{Gau}(s\, u_k)`, Gaussian noise with variance :math:`s\, u_k` in
      each number of each image. Li et al. deal out :math:`u_k = k / N` to :math:`N` clients; here
      it is drawn, so that it does not depend on the other clients.
    * "rotation": :math:`x` turned counter-clockwise by :math:`s (2 u_k - 1)` degrees about its
      centre, interpolated linearly between four pixels; beyond its border, pixels are those of the
      border.
    * "contrast": :math:`m + c_k (x - m)` with :math:`c_k = 1 + s (2 u_k - 1)`, where :math:`m` is
      the mean of the image's channel.

    Labels stay. The features change as a model sees them, for instance standardized, so the
    variance of noise is in the square of their unit; no value is clipped. The result is stored as
    32-bit numbers, in memory.

    Args:
        federation: Clients with square images, of shape (rows, n, n), (rows, n, n, channels) or
            (rows, n * n), as bytes or as floating-point numbers.
        kind: "noise", "rotation" or "contrast".
        strength: :math:`s`, at least 0: a variance; degrees, at most 180; or the largest change of
            the contrast, at most 1. None for 0.1, 45 degrees or 0.5.
        seed: Seed of the draws. A client's draw depends only on the seed, its index and its number
            of rows.

    Returns:
        The federation of the same clients with changed images.

    Raises:
        InputError: If `kind` or `strength` is none of the allowed ones, or features are not such
            images. Also if validation rows belong to no client, or `augment` reads other rows than
            the features, such as bytes.

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> image = np.array([[[0.0, 1.0], [0.0, 1.0]]])
        >>> federation = fp.Federation.from_arrays([(image, [0])] * 3)
        >>> skewed = fp.datasets.skewed_features(federation, "contrast", 1.0)
        >>> [f"{white - black:.2f}" for black, white in skewed.train.x[:, 0]]
        ['0.60', '0.69', '1.24']

    References:
        Li et al., `Federated Learning on Non-IID Data Silos: An Experimental Study
        <https://arxiv.org/abs/2102.02079>`_, ICDE 2022, noise-based feature imbalance. Rotations by
        client as in Ghosh et al., `An Efficient Framework for Clustered Federated Learning
        <https://arxiv.org/abs/2006.04088>`_, NeurIPS 2020, section 6.2.
    """
    require_one_of("skewed_features: kind", kind, get_args(Skew))
    s = STRENGTHS[kind] if strength is None else strength
    most = {"noise": math.inf, "rotation": 180, "contrast": 1}[kind]
    require_number("skewed_features: strength", s, most=most)
    check_seed(seed, "skewed_features: seed")
    require(
        not isinstance(federation.validation, Examples),
        "skewed_features: validation rows belong to no client, so no skew is theirs; leave them "
        "out, or hold some of the clients' rows out afterwards",
    )
    require(
        federation.augment is None or isinstance(federation.train.x, np.ndarray),
        "skewed_features: the federation's augmentation reads stored rows, in place of which there "
        'will be features; leave it out, such as by augmentation = "none"',
    )
    streams = Streams(seed, Purpose.SKEW)
    drawn = [streams.at(0, k).random() for k in range(len(federation))]

    def changed(part: str, rows: Rows) -> Rows:
        images = _images(rows.x)
        of_part = 1 + SPLITS.index(part)
        for k, u in enumerate(drawn):
            at = slice(rows.offsets[k], rows.offsets[k + 1])
            images[at] = CHANGES[kind](images[at], s, u, streams.at(of_part, k))
        return replace(rows, x=images.reshape(rows.x.shape))

    return with_rows(federation, changed)


def _images(x: Features) -> Images:
    """A copy of features as images."""
    require(hasattr(x, "shape"), "skewed_features: several inputs; features must be one array")
    shape, stored = x.shape[1:], isinstance(x, np.ndarray | Prepared)
    side = math.isqrt(math.prod(shape))
    flat = len(shape) == 1 and side * side == shape[0] and side > 1
    square = len(shape) in (2, 3) and shape[0] == shape[1] > 1
    numbers = x.dtype.kind == "f" or x.dtype == np.uint8
    require(
        stored and (flat or square) and numbers,
        f"skewed_features: features of type {x.dtype} and shape {shape}; they must be square "
        "images, (n, n), (n, n, channels) or (n * n), as bytes or floating-point numbers",
    )
    form = (side, side, 1) if flat else (*shape, 1)[:3]
    return np.asarray(x).astype(np.float32).reshape(len(x), *form)


def noisy(images: Images, strength: float, u: float, stream: np.random.Generator) -> Images:
    """Images with Gaussian noise of variance strength u."""
    noise = stream.standard_normal(images.shape, np.float32)
    return images + np.float32(math.sqrt(strength * u)) * noise


def turned(images: Images, strength: float, u: float, _: Any = None) -> Images:
    """Images turned counter-clockwise by strength (2 u - 1) degrees.

    >>> turned(np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1), 90, 1)[0, ..., 0].tolist()
    [[1.0, 3.0], [0.0, 2.0]]
    """
    from scipy import ndimage  # here, since it is slow to import

    angle, axes = strength * (2 * u - 1), (2, 1)
    found = ndimage.rotate(images, angle, axes, reshape=False, order=1, mode="nearest")
    return np.asarray(found, np.float32)


def contrasted(images: Images, strength: float, u: float, _: Any = None) -> Images:
    """Images whose differences from the mean of their channel are 1 + strength (2 u - 1) times."""
    mean = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    found: Images = (mean + (1 + strength * (2 * u - 1)) * (images - mean)).astype(np.float32)
    return found


CHANGES: dict[str, Callable[[Images, float, float, np.random.Generator], Images]] = {
    "noise": noisy,
    "rotation": turned,
    "contrast": contrasted,
}
"""(images, strength, u, stream) -> changed images, for each kind."""
