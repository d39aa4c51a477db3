"""Estimates for all clients from a sample of them."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mean_error(values: ArrayLike, weights: ArrayLike, population: int) -> NDArray[np.float64]:
    """The standard error of a weighted mean over m clients drawn from N.

    The clients were drawn uniformly without replacement, and R = sum_k w_k v_k / sum_k w_k over the
    drawn clients estimates the same ratio over all N. To first order

        se^2 = (1 - m / N) m / (m - 1) sum_k (w_k (v_k - R))^2 / (sum_k w_k)^2

    (Cochran 1977, Sampling Techniques, 6.3). For f(w) = sum_k p_k F_k, v_k = F_k and w_k = n_k; for
    accuracy, w_k counts the client's test labels. Unequal sizes cost little precision unless values
    depend on sizes.

    Args:
        values: v_k, shape (m, points).
        weights: w_k, shape (m,) or (m, points), at least 0.
        population: N.

    Returns:
        Shape (points,): 0 if all clients were drawn; NaN if one of several was, or if all weights
        are 0.

    >>> mean_error([[1.0], [3.0]], [1, 1], population=4).tolist() == [math.sqrt((1 - 2 / 4) * 1)]
    True
    >>> mean_error([[1.0], [3.0]], [1, 1], population=2).tolist()
    [0.0]
    """
    v, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    w = w.reshape(len(w), -1)
    drawn, total = len(v), w.sum(axis=0)
    if drawn == 1 < population:
        return np.full(v.shape[1], math.nan)
    with np.errstate(all="ignore"):  # a model may have diverged, and weights may be 0
        apart = w * (v - (w * v).sum(axis=0) / total)
        scatter = (apart**2).sum(axis=0) * drawn / max(drawn - 1, 1)
        error: NDArray[np.float64] = np.sqrt((1 - drawn / population) * scatter) / total
    return error
