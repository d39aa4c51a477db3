"""Partitions of a labelled data set over clients: pure functions of a seed.

Each takes the rows' labels and returns one array of row indices for each client; no row is given
twice. Sizes and labels are drawn from separate streams, so that they compose: with one seed,
clients have the same sizes whatever their labels.

| partition | a client's size | a client's labels |
|---|---|---|
| `iid` | equal or log-normal | the same distribution for all clients |
| `dirichlet_by_client` | equal or log-normal | class shares drawn for each client |
| `dirichlet_by_class` | random | client shares drawn for each class |
| `classes_per_client` | nearly equal | k classes in equal parts |
| `shards` | equal or log-normal | those of two shards of the rows sorted by label |
| `rotating_classes` | log-normal | k classes in turn |
| `two_class_power_law` | power law | two classes in turn |
| `natural` | given | given |
"""

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.errors import InputError, require, require_number, require_one_of, require_whole
from fedprox.features import Features, rows_at
from fedprox.federation import Rows, array_of, offsets_of
from fedprox.streams import Purpose, generator

Indices = NDArray[np.int64]


def sizes(rows: int, *, clients: int, spread: float = 0.0, seed: int) -> Indices:
    """The number of rows of each client, at least 1; they sum to `rows`.

    They are in proportion to draws of LogNormal(0, spread): Acar et al. 2021 (appendix A.2) call
    0.3 unbalanced. With spread 0 they differ by at most one row.

    Args:
        rows: Rows to divide.
        clients: Number of clients.
        spread: Standard deviation of the logarithm of a client's size.
        seed: Seed of the random draws.

    >>> sizes(11, clients=3, seed=0).tolist()
    [4, 4, 3]
    """
    require_whole("data.clients", clients)
    require(clients <= rows, f"data.clients = {clients}; it must be from 1 to {rows}")
    require_number("data.size_spread", spread, most=10)
    if spread == 0:
        return rows // clients + (np.arange(clients) < rows % clients)
    draws = generator(seed, Purpose.PARTITION, 1).lognormal(0, spread, clients)
    ends = np.rint(np.cumsum(draws) / draws.sum() * (rows - clients)).astype(np.int64)
    return 1 + np.diff(ends, prepend=0)


def _classes(labels: ArrayLike) -> NDArray[Any]:
    """The class of each row, shape (rows,)."""
    given = array_of(labels, "labels")
    one_hot = "; those of one-hot labels are labels.argmax(axis=1)" if given.ndim == 2 else ""
    require(
        given.ndim == 1,
        f"labels: shape {given.shape}; a class for each row is needed, shape (rows,){one_hot}",
    )
    require(
        given.dtype.kind != "f" or bool((given == np.floor(given)).all()),
        "labels: numbers that are not whole; classes are needed, or the partition iid",
    )
    return given


def _numbered(labels: ArrayLike, stream: np.random.Generator) -> list[Indices]:
    """The rows of each class 0, 1, ..., shuffled."""
    given = _classes(labels)
    require(len(given), "labels: no rows; at least one is needed")
    require(
        given.dtype.kind in "fiub" and (given >= 0).all(),
        "labels: the classes of this partition are whole numbers from 0",
    )
    return [stream.permutation(np.flatnonzero(given == c)) for c in range(int(given.max()) + 1)]


def iid(labels: ArrayLike, *, clients: int, spread: float = 0.0, seed: int) -> list[Indices]:
    """Shuffle the rows and deal them out (McMahan et al. 2017, section 3, "IID").

    Evenly, or with log-normal sizes; see `sizes`. Labels may have any shape (rows, ...) and need
    not be classes.

    >>> sorted(len(part) for part in iid(np.zeros(7), clients=3, seed=0))
    [2, 2, 3]
    """
    rows = len(array_of(labels, "labels"))
    counts = sizes(rows, clients=clients, spread=spread, seed=seed)
    order = generator(seed, Purpose.PARTITION).permutation(rows)
    return np.split(order, np.cumsum(counts)[:-1])


def natural(ids: ArrayLike) -> tuple[list[str], list[Indices]]:
    """A client for each value of `ids`, sorted; returns the clients' names and rows.

    >>> natural(np.array(["bob", "ann", "bob"]))
    (['ann', 'bob'], [array([1]), array([0, 2])])
    """
    ids = array_of(ids, "ids")
    require(ids.ndim == 1, f"ids: shape {ids.shape}; one for each row is needed, shape (rows,)")
    names, which, counts = np.unique(ids, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    return [str(name) for name in names], np.split(order, np.cumsum(counts)[:-1])


def dirichlet_by_client(
    labels: ArrayLike,
    *,
    clients: int,
    concentration: float,
    spread: float = 0.0,
    seed: int,
) -> list[Indices]:
    """Class shares of each client are drawn from a Dirichlet distribution; all rows are used.

    This is the generator of Acar et al. 2021 (appendix A.2). Client k's shares of the C classes are
    a draw of Dirichlet(a, ..., a), and its size is fixed beforehand; see `sizes`. Then, until no
    row is left, a client that is not full is picked at random. A class is drawn from its shares,
    and it gets a row of that class. A class without rows is not drawn, so clients that fill up last
    may deviate from their shares.

    It differs from the more common `dirichlet_by_class`, which makes sizes random too.

    Args:
        labels: Classes, shape (rows,).
        clients: Number of clients.
        concentration: a, above 0: the smaller, the fewer classes make up a client's rows.
        spread: Standard deviation of the logarithm of a client's size.
        seed: Seed of the random draws.

    >>> labels = np.repeat([0, 1, 2], 100)
    >>> parts = dirichlet_by_client(labels, clients=4, concentration=0.3, seed=0)
    >>> [len(part) for part in parts]
    [75, 75, 75, 75]
    """
    labels = _classes(labels)
    counts = sizes(len(labels), clients=clients, spread=spread, seed=seed).tolist()
    stream = generator(seed, Purpose.PARTITION)
    pools = _pools(labels, stream)
    shares = _dirichlet(stream, concentration, (clients, len(pools)))
    given: list[list[int]] = [[] for _ in range(clients)]
    waiting = list(range(clients))
    # exhausted classes have width 0, which amounts to drawing again until another class comes up
    ends = _ends(shares, pools)
    for which, level in stream.random((len(labels), 2)).tolist():
        place = int(which * len(waiting))
        k = waiting[place]
        c = bisect_right(ends[k], level)
        given[k].append(pools[c].pop())
        if len(given[k]) == counts[k]:
            waiting[place] = waiting[-1]
            waiting.pop()
        if not pools[c] and waiting:
            ends = _ends(shares, pools)
    return [np.array(rows, np.int64) for rows in given]


def _pools(labels: NDArray[Any], stream: np.random.Generator) -> list[list[int]]:
    """The rows of each class that occurs, shuffled."""
    _, parts = natural(labels)
    return [stream.permutation(part).tolist() for part in parts]


def _dirichlet(
    stream: np.random.Generator, concentration: float, shape: tuple[int, int]
) -> NDArray[np.float64]:
    require_number("data.concentration", concentration)
    require(
        concentration >= 1e-3, f"data.concentration = {concentration}; it must be at least 0.001"
    )
    count, length = shape
    return stream.dirichlet(np.full(length, concentration), count)


def _ends(shares: NDArray[np.float64], pools: list[list[int]]) -> list[list[float]]:
    """For each client, the ends in [0, 1] of the classes' shares, among classes with rows left."""
    left = np.array([len(pool) for pool in pools], float)
    open_shares = shares * (left > 0)
    # a client whose shares of the open classes underflow takes them in proportion to their rows
    open_shares[open_shares.sum(axis=1) < 1e-200] = left
    ends = np.cumsum(open_shares, axis=1)
    return (ends / ends[:, -1:]).tolist()


def dirichlet_by_class(
    labels: ArrayLike,
    *,
    clients: int,
    concentration: float,
    seed: int,
) -> list[Indices]:
    """Each class is divided over the clients by a draw from a Dirichlet distribution.

    This is the partition of Yurochkin et al. 2019, which most benchmarks call "Dirichlet". Client k
    gets the share p_ck of the rows of class c, where p_c is a draw of Dirichlet(a, ..., a) over the
    clients. The division is drawn again until every client has a row. All rows are used; sizes
    differ much if a is small.

    Args:
        labels: Classes, shape (rows,).
        clients: Number of clients.
        concentration: a, above 0: the smaller, the fewer clients hold a class.
        seed: Seed of the random draws.

    Raises:
        InputError: If a thousand divisions leave a client without a row.

    >>> labels = np.repeat([0, 1, 2], 100)
    >>> parts = dirichlet_by_class(labels, clients=4, concentration=0.3, seed=0)
    >>> sum(len(part) for part in parts)
    300
    """
    require_whole("data.clients", clients)
    stream = generator(seed, Purpose.PARTITION)
    pools = _pools(_classes(labels), stream)
    lengths = np.array([len(pool) for pool in pools])
    for _ in range(1000):
        shares = _dirichlet(stream, concentration, (len(pools), clients))
        ends = np.rint(np.cumsum(shares, axis=1) * lengths[:, None]).astype(np.int64)
        ends[:, -1] = lengths
        if np.diff(ends, axis=1, prepend=0).sum(axis=0).all():
            pieces = [
                np.split(np.array(pool), cuts[:-1]) for pool, cuts in zip(pools, ends, strict=True)
            ]
            return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]
    raise InputError(
        f"data.concentration = {concentration}; in 1,000 draws some client of {clients} was left "
        "without a row; it must be larger, or data.clients smaller"
    )


def classes_per_client(
    labels: ArrayLike, *, clients: int, classes: int, seed: int
) -> list[Indices]:
    """A few classes for each client, in equal parts; all rows are used.

    The classes form a circle in random order, and each client in turn takes the next few, so the
    classes' numbers of holders differ by at most one. The rows of a class are dealt evenly to its
    holders.

    Args:
        labels: Classes, shape (rows,).
        clients: Number of clients.
        classes: Classes of each client.
        seed: Seed of the random draws.

    >>> labels = np.repeat([0, 1, 2, 3], 100)
    >>> parts = classes_per_client(labels, clients=6, classes=2, seed=0)
    >>> [len(np.unique(labels[part])) for part in parts]
    [2, 2, 2, 2, 2, 2]
    """
    require_whole("data.clients", clients)
    require_whole("data.classes_per_client", classes)
    stream = generator(seed, Purpose.PARTITION)
    pools = _pools(_classes(labels), stream)
    require(
        classes <= len(pools),
        f"data.classes_per_client = {classes}; there are {len(pools)} classes",
    )
    require(
        clients * classes >= len(pools),
        f"data.clients = {clients}; {clients} times {classes} classes leave some of the "
        f"{len(pools)} classes without a client",
    )
    turns = np.arange(clients * classes) % len(pools)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for place, c in enumerate(stream.permutation(len(pools))):
        holders, pool = np.flatnonzero(turns == place) // classes, pools[c]
        require(
            len(pool) >= len(holders),
            f"data.clients = {clients}; class {c} has {len(pool)} rows for {len(holders)} clients",
        )
        for k, rows in zip(holders, np.array_split(pool, len(holders)), strict=True):
            parts[k].append(rows)
    return [np.concatenate(part) for part in parts]


def like(parts: list[Indices], labels: ArrayLike, others: ArrayLike, *, seed: int) -> list[Indices]:
    """Divide the rows of a second set so that each client has the class shares of the first.

    Client k's share of the second set's rows of class c is its share of the first set's. Rows of
    classes that no client holds are dealt in proportion to the clients' rows. So central test rows
    go to clients that train on their classes, none is lost, and accuracy over all clients' test
    rows is accuracy on the central test set.

    Args:
        parts: Each client's rows of the first set.
        labels: The first set's classes, shape (rows,).
        others: The second set's classes, shape (other rows,).
        seed: Seed of the random draws.

    >>> labels = np.array([0, 0, 1, 1])
    >>> like([np.array([0, 1]), np.array([2, 3])], labels, np.array([1, 0, 1]), seed=0)
    [array([1]), array([0, 2])]
    """
    labels, others = _classes(labels), _classes(others)
    stream = generator(seed, Purpose.PARTITION, 2)
    clients = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    held = labels[np.concatenate(parts)]
    dealt: list[list[Indices]] = [[] for _ in parts]

    def deal(rows: NDArray[np.bool_], holders: Indices) -> None:
        chosen = stream.permutation(np.flatnonzero(rows))
        counts = np.bincount(holders, minlength=len(parts))
        # in random order, so that rounding favours no client
        order = stream.permutation(len(parts))
        ends = np.rint(np.cumsum(counts[order]) / counts.sum() * len(chosen)).astype(int)
        for k, own in zip(order, np.split(chosen, ends[:-1]), strict=True):
            dealt[k].append(own)

    for c in np.unique(held):
        deal(others == c, clients[held == c])
    deal(~np.isin(others, held), clients)
    return [np.sort(np.concatenate(own)) for own in dealt]


def with_test_set(
    partition: str,
    labels: ArrayLike,
    test_labels: ArrayLike,
    *,
    clients: int,
    concentration: float | None = None,
    size_spread: float = 0.0,
    seed: int,
) -> tuple[list[Indices], list[Indices]]:
    """Divide a central training set and its test set (Acar et al. 2021, appendix A.2).

    Args:
        partition: "iid" or "dirichlet": `dirichlet_by_client`.
        labels: Training classes, shape (rows,).
        test_labels: Test classes; the rows are dealt `iid` as well, or `like` the training rows.
        clients: Number of clients.
        concentration: Concentration of "dirichlet"; None for 0.6.
        size_spread: Standard deviation of the logarithm of a client's size.
        seed: Seed of the random draws.
    """
    require_one_of("data.partition", partition, ("iid", "dirichlet"))
    if partition == "iid":
        require(
            concentration is None,
            f'data.concentration = {concentration}; partition "iid" has none',
        )
        train, test = (
            iid(rows, clients=clients, spread=size_spread, seed=seed)
            for rows in (labels, test_labels)
        )
        return train, test
    train = dirichlet_by_client(
        labels,
        clients=clients,
        concentration=0.6 if concentration is None else concentration,
        spread=size_spread,
        seed=seed,
    )
    return train, like(train, labels, test_labels, seed=seed)


def shards(labels: ArrayLike, *, clients: int, spread: float = 0.0, seed: int) -> list[Indices]:
    """Sort by label, cut into shards, and deal two to each (McMahan et al. 2017, "Non-IID").

    Shards are equal, or of log-normal sizes; see `sizes`. The shards of a client depend only on the
    seed and the number of shards, so training and test rows partitioned with one seed have nearly
    the same class shares.

    >>> parts = shards(np.repeat([0, 1, 2, 3], 5), clients=2, seed=0)
    >>> [len(part) for part in parts]
    [10, 10]
    """
    labels = _classes(labels)
    count = 2 * clients
    require(
        1 <= count <= len(labels),
        f"data.clients = {clients}; {len(labels)} rows cannot be cut into {count} shards",
    )
    counts = sizes(len(labels), clients=count, spread=spread, seed=seed)
    pieces = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    order = generator(seed, Purpose.PARTITION).permutation(count)
    return [np.concatenate([pieces[s] for s in order[k::clients]]) for k in range(clients)]


def two_class_power_law(labels: ArrayLike, *, clients: int = 1000, seed: int) -> list[Indices]:
    """Two classes for each client, with sizes that follow a power law.

    This is the MNIST federation of Li et al. 2020 (appendix C.1), by the authors' generator. With C
    classes, client u holds classes u mod C and (u + 1) mod C. It gets 5 rows of each. The rest of
    each class is then divided in proportion to LogNormal(0, 2) draws, rounded down; a share that
    would take the last row of a class is left out.

    Args:
        labels: Classes 0 to C - 1, shape (rows,).
        clients: Number of clients, a multiple of C.
        seed: Seed of the random draws.
    """
    stream = generator(seed, Purpose.PARTITION)
    pools = _numbered(labels, stream)
    classes = len(pools)
    require(
        clients >= 1 and clients % classes == 0,
        f"data.clients = {clients}; it must be a multiple of the {classes} classes",
    )
    sizes = np.array([len(pool) for pool in pools])
    minimum, groups = 5, clients // classes
    require(
        (sizes > 2 * groups * minimum).all(),
        f"data.clients = {clients}; the smallest class has {sizes.min()} rows and "
        f"{2 * groups * minimum} would be dealt before the rest is divided",
    )
    shares = stream.lognormal(0, 2, (classes, groups, 2))
    shares *= ((sizes - 2 * groups * minimum) / shares.sum((1, 2)))[:, None, None]
    used = np.zeros(classes, int)
    parts: list[list[Indices]] = [[] for _ in range(clients)]

    # first the fewest rows for everyone, then the shares
    for counts in (np.full_like(shares, minimum), shares):
        for u, j in np.ndindex(clients, 2):
            c = (u + j) % classes
            count = int(counts[c, u // classes, j])
            if used[c] + count < sizes[c]:
                parts[u].append(pools[c][used[c] : used[c] + count])
                used[c] += count
    return [np.concatenate(part) for part in parts]


def rotating_classes(
    labels: ArrayLike,
    *,
    clients: int = 200,
    classes_per_client: int = 5,
    mean: float = 4.0,
    deviation: float = 1.0,
    seed: int,
) -> list[Indices]:
    """Some classes for each client, in turn, with log-normal sizes.

    This is the FEMNIST federation of Li et al. 2020 (appendix C.1), by the authors' generator but
    without its mistake, by which clients share rows. With C classes, client u asks for n_u =
    int(LogNormal(mean, deviation)) + 5 rows. It asks for a share 1 / m of them, and at least 2, of
    each of the m classes u mod C, ..., (u + m - 1) mod C.

    If a class has fewer rows than are asked for, each client that asks gets one row. The rest is
    divided in proportion to what each asks for beyond it, rounded down.

    Args:
        labels: Classes 0 to C - 1, shape (rows,).
        clients: Number of clients.
        classes_per_client: m.
        mean: Mean of log(n_u - 5).
        deviation: Standard deviation of log(n_u - 5).
        seed: Seed of the random draws.

    >>> labels = np.repeat([0, 1, 2], 400)
    >>> parts = rotating_classes(labels, clients=6, classes_per_client=2, seed=0)
    >>> np.unique(labels[parts[2]]).tolist()
    [0, 2]
    """
    requests = rotating_requests(
        labels,
        clients=clients,
        classes_per_client=classes_per_client,
        mean=mean,
        deviation=deviation,
        seed=seed,
    )
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for pool, holders, counts in requests:
        if counts.sum() > len(pool):
            counts = 1 + (counts - 1) * (len(pool) - len(holders)) // (counts - 1).sum()
        ends = np.cumsum(counts)
        for u, count, end in zip(holders, counts, ends, strict=True):
            parts[u].append(pool[end - count : end])
    return [np.concatenate(part) for part in parts]


def rotating_requests(
    labels: ArrayLike,
    *,
    clients: int,
    classes_per_client: int,
    mean: float,
    deviation: float,
    seed: int,
) -> list[tuple[Indices, list[int], NDArray[np.int64]]]:
    """The rows that clients of `rotating_classes` ask for, class by class.

    For each class: its rows in random order, the clients that hold it, and how many rows each asks
    for.
    """
    require_whole("data.clients", clients)
    require_whole("data.classes_per_client", classes_per_client)
    stream = generator(seed, Purpose.PARTITION)
    sizes = stream.lognormal(mean, deviation, clients).astype(int) + 5
    pools = _numbered(labels, stream)
    classes = len(pools)
    require(
        classes_per_client <= classes,
        f"data.classes_per_client = {classes_per_client}; there are {classes} classes",
    )
    asked = np.maximum(sizes // classes_per_client, 2)
    requests = []
    for c, pool in enumerate(pools):
        holders = [u for u in range(clients) if (c - u) % classes < classes_per_client]
        require(
            len(holders) <= len(pool),
            f"data.clients = {clients}; class {c} has {len(pool)} rows for {len(holders)} clients",
        )
        requests.append((pool, holders, asked[holders]))
    return requests


def split(
    parts: list[Indices], *, train_share: float, seed: int
) -> tuple[list[Indices], list[Indices]]:
    """Divide each client's rows at random into test rows and at least one training row.

    >>> train, test = split([np.arange(10)], train_share=0.8, seed=0)
    >>> len(train[0]), len(test[0])
    (8, 2)
    """
    require(0 < train_share < 1, f"data.train_share = {train_share}; it must be between 0 and 1")
    train, test = [], []
    for k, part in enumerate(parts):
        order = generator(seed, Purpose.SPLIT, 0, k).permutation(len(part))
        # 0.29 * 100 is 28.999999999999996
        cut = max(1, int(round(train_share * len(part), 6)))
        train.append(part[order[:cut]])
        test.append(part[order[cut:]])
    return train, test


def take(x: Features, labels: NDArray[np.generic], parts: list[Indices]) -> Rows:
    """Each client's rows of a labelled set, one client after another.

    Args:
        x: Features, shape (rows, ...), or a tree of them.
        labels: Labels, shape (rows,): classes, or float32 if they are not classes.
        parts: Each client's rows.
    """
    order = np.concatenate(parts)
    y = labels[order] if labels.dtype.kind == "f" else labels[order].astype(np.int32)
    return Rows(rows_at(x, order), y, offsets_of(map(len, parts)))
