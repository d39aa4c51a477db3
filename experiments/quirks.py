"""Differences between the papers' code and the papers.

The items name these functions as "experiments.quirks:NAME", so that the library's methods and data
sets need no options for them.
"""

from pathlib import Path

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, ClientContext, HParams
from fedprox.algorithms.fedprox import fedprox
from fedprox.datasets.handwriting import by_letters, letters
from fedprox.datasets.partition import Indices, rotating_requests
from fedprox.federation import Federation
from fedprox.model import Params
from fedprox.parts.systems import Straggler, StragglerEpochs
from fedprox.solver import HParam
from fedprox.streams import Purpose, generator
from fedprox.subproblem import Subproblem

WITHOUT_QUADRATIC = f"{__name__}:fedprox_without_quadratic"
OVERLAPPING_FEMNIST = f"{__name__}:overlapping_femnist"
EPOCHS_AFTER_RESET = f"{__name__}:epochs_after_reset"


def fedprox_without_quadratic(mu: HParam) -> Algorithm:
    r"""FedProx without the quadratic part of its proximal term, :math:`\frac{\mu}{2} \|w\|^2`.

    Client :math:`k` minimizes :math:`F_k(w) - \mu \langle w^t, w \rangle`. The released code of
    Acar et al. overwrote the quadratic part until January 2022, so their tables were most likely
    made without it. The linear part alone does not hold a client back: it makes weights grow.

    Args:
        mu: Proximal weight, at least 0. A sequence sweeps over its values.

    Returns:
        A variant of `fedprox.fedprox`.

    Raises:
        InputError: If mu is negative or not finite.

    Example:
        >>> fedprox_without_quadratic(mu=0.1).variant
        'without the quadratic'

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021.
    """
    return fedprox(mu)._replace(subproblem=linear_part, variant="without the quadratic")


def linear_part(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) - mu <w^t, w>, from w^t."""
    del context
    return Subproblem(params, linear=jax.tree.map(lambda w: -hparams["mu"] * w, params))


def epochs_after_reset() -> StragglerEpochs:
    """Stragglers' epochs as drawn by the code of Li et al. 2020.

    It draws them from {1, ..., E - 1}, with a generator that the training of the previous client in
    the cohort has reset: a straggler performs the same number of epochs whenever it follows the
    same client.

    Returns:
        A function for `fedprox.Systems(straggler_epochs=...)`.
    """
    return _after_reset


def _after_reset(straggler: Straggler) -> int:
    seed, round_, cohort, slot, epochs = straggler
    place = (0, cohort[slot - 1]) if slot > 0 else (round_, cohort[0])
    return int(generator(seed, Purpose.WORK, *place).integers(1, epochs))


def overlapping_femnist(
    *,
    classes_per_client: int = 3,
    train_share: float = 0.8,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """FEMNIST as drawn by the code of Li et al. 2020, in which clients share images.

    Because of a reversed inequality, the code gives the first images of a letter to every client
    that has the letter. Test images of one client are training images of another.

    Args:
        classes_per_client: Letters of each client, out of ten; 5 in the paper, 3 in the code.
        train_share: Fraction of each client's rows for training.
        seed: Seed of the partition.
        data_dir: Folder with the files, see `fedprox.datasets.femnist`.

    Returns:
        200 clients with the letters a to j.

    Raises:
        InputError: If a file is missing or broken, or an argument is out of range.
    """
    images, labels = letters(10, data_dir)
    parts = overlapping_classes(
        labels, clients=200, classes_per_client=classes_per_client, seed=seed
    )
    return by_letters(images, labels, parts, classes=10, train_share=train_share, seed=seed)


def overlapping_classes(
    labels: NDArray[np.generic], *, clients: int, classes_per_client: int, seed: int
) -> list[Indices]:
    """As `rotating_classes`, but every client with a class gets the first rows of its pool."""
    requests = rotating_requests(
        labels,
        clients=clients,
        classes_per_client=classes_per_client,
        mean=4.0,
        deviation=1.0,
        seed=seed,
    )
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for pool, holders, counts in requests:
        for u, count in zip(holders, counts, strict=True):
            parts[u].append(pool[:count])
    return [np.concatenate(part) for part in parts]
