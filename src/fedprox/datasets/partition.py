"""Partitions of a labelled data set over clients: pure functions of a seed.

Each returns one array of row indices per client; no row is given twice, unless an option says so.
"""

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_whole
from fedprox.streams import Purpose, generator

Indices = NDArray[np.int64]


def iid(rows: int, *, clients: int, seed: int) -> list[Indices]:
    """Shuffle the rows and deal them out evenly (McMahan et al. 2017, section 3, "IID").

    >>> sorted(len(part) for part in iid(7, clients=3, seed=0))
    [2, 2, 3]
    """
    require(1 <= clients <= rows, f"data.clients = {clients}; it must be from 1 to {rows}")
    order = generator(seed, Purpose.PARTITION).permutation(rows)
    return np.array_split(order, clients)


def shards(
    labels: NDArray[np.generic], *, clients: int, shards_per_client: int = 2, seed: int
) -> list[Indices]:
    """Sort by label, cut into equal shards, give each client some (McMahan et al. 2017, "Non-IID").

    Which shards a client gets depends on the seed and the number of shards alone, so training and
    test rows partitioned with the same seed have the same mix of labels.

    >>> parts = shards(np.repeat([0, 1, 2, 3], 5), clients=2, seed=0)
    >>> [len(part) for part in parts]
    [10, 10]
    """
    count = clients * shards_per_client
    require(
        1 <= count <= len(labels),
        f"data.clients = {clients}; {len(labels)} rows cannot be cut into {count} shards",
    )
    pieces = np.array_split(np.argsort(labels, kind="stable"), count)
    order = generator(seed, Purpose.PARTITION).permutation(count)
    return [np.concatenate([pieces[s] for s in order[k::clients]]) for k in range(clients)]


def two_class_power_law(
    labels: NDArray[np.generic], *, clients: int = 1000, seed: int
) -> list[Indices]:
    """Two classes to a client, with sizes that follow a power law.

    The MNIST federation of Li et al. 2020 (appendix C.1), by the authors' generator. With C
    classes, client u holds classes u mod C and (u + 1) mod C. It first gets 5 rows of each. Then
    what is left of each class is divided in proportion to LogNormal(0, 2) draws, rounded down; a
    share that would take a class's last row is left out.

    Args:
        labels: Classes 0 to C - 1, shape (rows,).
        clients: Number of clients, a multiple of C.
        seed: Seed.
    """
    classes = int(labels.max()) + 1
    require(
        clients >= 1 and clients % classes == 0,
        f"data.clients = {clients}; it must be a multiple of the {classes} classes",
    )
    stream = generator(seed, Purpose.PARTITION)
    pools = [stream.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    sizes = np.array([len(pool) for pool in pools])
    minimum, groups = 5, clients // classes
    require(
        (sizes > 2 * groups * minimum).all(),
        f"data.clients = {clients}; the smallest class has {sizes.min()} rows and "
        f"{2 * groups * minimum} would be given out before the rest is divided",
    )
    shares = stream.lognormal(0, 2, (classes, groups, 2))
    shares *= ((sizes - 2 * groups * minimum) / shares.sum((1, 2)))[:, None, None]
    used = np.zeros(classes, int)
    parts: list[list[Indices]] = [[] for _ in range(clients)]

    def give(u: int, c: int, count: int) -> None:
        parts[u].append(pools[c][used[c] : used[c] + count])
        used[c] += count

    for u in range(clients):
        for j in range(2):
            give(u, (u + j) % classes, minimum)
    for u in range(clients):
        for j in range(2):
            c = (u + j) % classes
            extra = int(shares[c, u // classes, j])
            if used[c] + extra < sizes[c]:
                give(u, c, extra)
    return [np.concatenate(part) for part in parts]


def rotating_classes(
    labels: NDArray[np.generic],
    *,
    clients: int = 200,
    classes_per_client: int = 5,
    mean: float = 4.0,
    deviation: float = 1.0,
    overlap: bool = False,
    seed: int,
) -> list[Indices]:
    """Some classes to a client, in turn, with log-normal sizes.

    The FEMNIST federation of Li et al. 2020 (appendix C.1), by the authors' generator. With C
    classes, client u asks for n_u = int(LogNormal(mean, deviation)) + 5 rows: the m-th part of
    them, and at least 2, of each of the m classes u mod C, ..., (u + m - 1) mod C.

    Where a class has fewer rows than are asked for, each client that asks gets one row, and the
    rest is divided in proportion to what each asked for beyond it, rounded down.

    Args:
        labels: Classes 0 to C - 1, shape (rows,).
        clients: Number of clients.
        classes_per_client: m.
        mean: Mean of log(n_u - 5).
        deviation: Standard deviation of log(n_u - 5).
        overlap: The authors' generator gives the first rows of class c to every client with class
            c, by a reversed inequality. With True ours does so too: rows are then given to many
            clients, and one client's training rows are another's test rows.
        seed: Seed.

    >>> labels = np.repeat([0, 1, 2], 400)
    >>> parts = rotating_classes(labels, clients=6, classes_per_client=2, seed=0)
    >>> np.unique(labels[parts[2]]).tolist()
    [0, 2]
    """
    classes = int(labels.max()) + 1
    require_whole("data.clients", clients)
    require_whole("data.classes_per_client", classes_per_client)
    require(
        classes_per_client <= classes,
        f"data.classes_per_client = {classes_per_client}; there are {classes} classes",
    )
    stream = generator(seed, Purpose.PARTITION)
    sizes = stream.lognormal(mean, deviation, clients).astype(int) + 5
    pools = [stream.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    asked = np.maximum(sizes // classes_per_client, 2)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for c, pool in enumerate(pools):
        holders = [u for u in range(clients) if (c - u) % classes < classes_per_client]
        wanted = asked[holders]
        require(
            len(holders) <= len(pool),
            f"data.clients = {clients}; class {c} has {len(pool)} rows for {len(holders)} clients",
        )
        if overlap:
            given = [pool[:count] for count in wanted]
        else:
            if wanted.sum() > len(pool):
                wanted = 1 + (wanted - 1) * (len(pool) - len(holders)) // (wanted - 1).sum()
            ends = np.cumsum(wanted)
            given = [pool[end - count : end] for end, count in zip(ends, wanted, strict=True)]
        for u, rows in zip(holders, given, strict=True):
            parts[u].append(rows)
    return [np.concatenate(part) for part in parts]


def split(
    parts: list[Indices], *, train_share: float, seed: int
) -> tuple[list[Indices], list[Indices]]:
    """Divide each client's rows at random into training and test rows, at least one to train on.

    >>> train, test = split([np.arange(10)], train_share=0.8, seed=0)
    >>> len(train[0]), len(test[0])
    (8, 2)
    """
    require(0 < train_share < 1, f"data.train_share = {train_share}; it must be between 0 and 1")
    train, test = [], []
    for k, part in enumerate(parts):
        order = generator(seed, Purpose.SPLIT, 0, k).permutation(len(part))
        cut = max(1, int(train_share * len(part)))
        train.append(part[order[:cut]])
        test.append(part[order[cut:]])
    return train, test
