"""What a classifier's outputs are worth, in plain NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def losses(outputs: Any, y: Any) -> Vector:
    """The cross-entropy of each row; of a sequence the mean over the positions with a label."""
    z, y, known = np.asarray(outputs, float), np.maximum(y, 0), np.asarray(y) >= 0
    z = z - z.max(axis=-1, keepdims=True)
    of_labels = np.take_along_axis(z, y[..., None], axis=-1)[..., 0]
    found = np.log(np.exp(z).sum(axis=-1)) - of_labels
    rows = len(y), -1
    return np.asarray(
        np.average(found.reshape(rows), axis=1, weights=known.reshape(rows).astype(float))
    )


def met(outputs: Any, y: Any) -> Vector:
    """The labels of each row that have the largest output."""
    hits = np.asarray(outputs).argmax(axis=-1) == np.asarray(y)
    return np.asarray(hits.reshape(len(hits), -1).sum(axis=1))
