"""How evenly a model serves the clients: the distribution of their accuracies."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprox.errors import require


class Fairness(NamedTuple):
    """The distribution of a measure over clients, each of which counts once; see `fairness`.

    Attributes:
        mean: Mean over the clients.
        std: Standard deviation over the clients, the root of the mean squared deviation.
        worst: Mean of the lowest tenth of the clients.
        best: Mean of the highest tenth of the clients.

    Example:
        >>> Fairness(mean=0.8, std=0.1, worst=0.6, best=0.9).worst
        0.6
    """

    mean: float
    std: float
    worst: float
    best: float


def fairness(accuracies: ArrayLike) -> Fairness:
    """The distribution of the clients' accuracies.

    A tenth of N clients are N / 10 clients, rounded up: 1 of 10, 2 of 11, and at least 1.

    Args:
        accuracies: The accuracy of each client, shape (clients,). NaN stands for a client without
            test rows, which is left out.

    Returns:
        Mean, standard deviation, and means of the worst and of the best tenth; NaN without clients.

    Raises:
        InputError: If the accuracies are not a list of numbers, one for each client.

    Example:
        >>> import fedprox as fp
        >>> found = fp.fairness([0.5, 1.0, float("nan"), 0.75])
        >>> found.mean, found.worst, found.best
        (0.75, 0.5, 1.0)

    References:
        Li et al., `Fair Resource Allocation in Federated Learning
        <https://arxiv.org/abs/1905.10497>`_, ICLR 2020, Table 1.
    """
    values = np.asarray(accuracies)
    require(
        values.ndim == 1 and (not values.size or values.dtype.kind in "iuf"),
        f"accuracies: shape {values.shape}, type {values.dtype}; it must have one number for each "
        "client",
    )
    known = np.sort(values[~np.isnan(values)].astype(np.float64))
    if not len(known):
        return Fairness(*[math.nan] * 4)
    tenth = -(-len(known) // 10)
    return Fairness(
        mean=float(known.mean()),
        std=float(known.std()),
        worst=float(known[:tenth].mean()),
        best=float(known[-tenth:].mean()),
    )
