"""Checks that a federation has what a model needs: classes, images, sequences of symbols."""

import math

import jax
import numpy as np

from fedprox.errors import require
from fedprox.features import Windows
from fedprox.federation import Examples, Federation, Rows
from fedprox.user_code import describe


def class_count(model: str, federation: Federation, positions: tuple[int, ...] = ()) -> int:
    """The number of classes C, where each example, or each of some positions of it, has a label."""
    require(federation.classes > 0, f"model {model}: the labels must be classes, whole numbers")
    each = f"of {positions[0]} positions" if positions else "example"
    for rows in federation.parts:
        require(
            rows.y.shape[1:] == positions,
            f"model {model}: labels of shape {rows.y.shape}; it takes one label for each {each}",
        )
    return federation.classes


def one_input(model: str, federation: Federation) -> jax.ShapeDtypeStruct:
    """Shape and type of an example of features that are one array."""
    features = federation.features
    require(
        isinstance(features, jax.ShapeDtypeStruct),
        f"model {model}: features are {describe(features)}; it takes one array: "
        "numpy.stack(list(x.values()), axis=1) joins the columns of a table",
    )
    one: jax.ShapeDtypeStruct = features
    return one


def feature_count(model: str, federation: Federation) -> int:
    """The numbers d of an example, whatever its shape."""
    return math.prod(one_input(model, federation).shape)


def image_shape(
    model: str, federation: Federation, *, needed: tuple[int, ...] = ()
) -> tuple[int, int, int]:
    """Height, width and channels of the images; images of shape (H, W) have one channel.

    `needed` is the only shape that the model takes.
    """
    features = one_input(model, federation).shape
    height, width, channels = shape = (*features, 1, 1)[:3]
    size = " x ".join(map(str, needed)) or "height x width"
    require(
        len(features) in (2, 3) and needed in ((), shape),
        f"model {model}: features of shape {' x '.join(map(str, features))}; "
        f"it takes images of {size}",
    )
    return height, width, channels


def symbol_count(model: str, federation: Federation, *, every_position: bool) -> int:
    """The number of symbols C of a model that reads symbols and predicts the next one."""
    length = sequence_length(model, federation)
    symbols = class_count(model, federation, (length,) if every_position else ())
    for rows in federation.parts:
        greatest = greatest_symbol(model, rows)
        require(
            greatest < symbols,
            f"model {model}: symbol {greatest} among the features; with {symbols} classes they are "
            f"0 to {symbols - 1}",
        )
    return symbols


def sequence_length(model: str, federation: Federation) -> int:
    """The length of the sequences of symbols, integers of shape (length,)."""
    features = one_input(model, federation)
    require(
        np.issubdtype(features.dtype, np.integer) and len(features.shape) == 1,
        f"model {model}: features of type {features.dtype} and shape {features.shape}; it takes "
        "sequences of symbols, integers of shape (length,)",
    )
    return features.shape[0]


def greatest_symbol(model: str, rows: Rows | Examples) -> int:
    """The greatest symbol among the features of some rows; 0 without rows."""
    symbols = rows.x.text if isinstance(rows.x, Windows) else np.asarray(rows.x)
    least = int(symbols.min(initial=0))
    require(least >= 0, f"model {model}: symbol {least} among the features; they count from 0")
    return int(symbols.max(initial=0))
