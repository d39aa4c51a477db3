"""What a model asks of a federation: classes, and images of the right shape."""

import math

from fedprox.errors import require
from fedprox.federation import Federation


def class_count(model: str, federation: Federation) -> int:
    """The number of classes C.

    Raises:
        InputError: The labels are not classes.
    """
    require(federation.classes > 0, f"model {model}: the labels must be classes, whole numbers")
    return federation.classes


def feature_count(federation: Federation) -> int:
    """Features d of an example, laid out in a row."""
    return math.prod(federation.features.shape)


def image_shape(
    model: str, federation: Federation, *, needed: tuple[int, int, int] | None = None
) -> tuple[int, int, int]:
    """Height, width and channels of the images; those of shape (H, W) have one channel.

    Args:
        model: For the message.
        federation: Its features are the images.
        needed: The one shape that the model takes; any where left out.

    Raises:
        InputError: The features are no images, or others than needed.
    """
    features = federation.features.shape
    height, width, channels = shape = (*features, 1, 1)[:3]
    size = "height x width" if needed is None else " x ".join(map(str, needed))
    require(
        len(features) in (2, 3) and needed in (None, shape),
        f"model {model}: features of shape {' x '.join(map(str, features))}; "
        f"it takes images of {size}",
    )
    return height, width, channels
