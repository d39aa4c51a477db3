"""What a model asks of a federation: classes, images of the right shape, sequences of symbols."""

import math

import numpy as np

from fedprox.errors import require
from fedprox.features import Windows
from fedprox.federation import Examples, Federation, Rows


def class_count(model: str, federation: Federation, *, positions: int | None = None) -> int:
    """The number of classes C.

    Args:
        model: For the message.
        federation: Its labels are the classes.
        positions: Labels of an example, one for each position of a sequence; else one in all.

    Raises:
        InputError: The labels are not classes, or not as many.
    """
    require(federation.classes > 0, f"model {model}: the labels must be classes, whole numbers")
    needed = () if positions is None else (positions,)
    each = "example" if positions is None else f"of {positions} positions"
    for rows in federation.parts:
        require(
            rows.y.shape[1:] == needed,
            f"model {model}: labels of shape {rows.y.shape}; it takes one label for each {each}",
        )
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


def symbol_count(model: str, federation: Federation, *, every_position: bool) -> int:
    """How many symbols there are, where a model reads symbols and predicts the next.

    Args:
        model: For the message.
        federation: Its features are sequences of symbols 0, ..., C - 1, its classes the C symbols.
        every_position: Whether each position has a label, or each sequence.

    Raises:
        InputError: The features are no sequences of symbols, or have symbols that are no class, or
            the labels are not as asked.
    """
    length = sequence_length(model, federation)
    symbols = class_count(model, federation, positions=length if every_position else None)
    for rows in federation.parts:
        greatest = greatest_symbol(model, rows)
        require(
            greatest < symbols,
            f"model {model}: symbol {greatest} among the features; with {symbols} classes they are "
            f"0 to {symbols - 1}",
        )
    return symbols


def sequence_length(model: str, federation: Federation) -> int:
    """Length of the sequences of symbols that the features are.

    Raises:
        InputError: They are no integers, or of another shape than (length,).
    """
    features = federation.features
    require(
        np.issubdtype(features.dtype, np.integer) and len(features.shape) == 1,
        f"model {model}: features of type {features.dtype} and shape {features.shape}; it takes "
        "sequences of symbols, integers of shape (length,)",
    )
    return features.shape[0]


def greatest_symbol(model: str, rows: Rows | Examples) -> int:
    """The greatest symbol among the features of some rows; 0 where there are none.

    Raises:
        InputError: A symbol is negative.
    """
    symbols = rows.x.text if isinstance(rows.x, Windows) else np.asarray(rows.x)
    least = int(symbols.min(initial=0))
    require(least >= 0, f"model {model}: symbol {least} among the features; they count from 0")
    return int(symbols.max(initial=0))
