"""Planted clusters: the same images, turned for some clients and not for others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, shown
from fedprox.features import Features, Prepared
from fedprox.federation import Examples, Federation, with_rows


def rotated(federation: Federation, degrees: Sequence[int] = (0, 90, 180, 270)) -> Federation:
    """The same clients, whose images are turned: clusters that are known.

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
    stored = isinstance(x, Prepared)
    images = np.array(x.index if isinstance(x, Prepared) else x)
    square = images.ndim in (3, 4) and images.shape[1] == images.shape[2]
    require(
        square or not len(images),
        f"rotated: features of shape {images.shape[1:]}; they must be square images, (n, n) or "
        "(n, n, channels)",
    )
    for quarters in np.unique(turns):
        at = turns == quarters
        images[at] = np.rot90(images[at], quarters, axes=(1, 2))
    return x.with_index(images) if stored else images
