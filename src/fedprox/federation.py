"""A federation: the examples of many clients in flat arrays with offsets.

Client k owns rows `offsets[k]:offsets[k + 1]` of `x` and `y`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, overload

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.columns import FEW_CLASSES, MOST_CLASSES, Columns, Value
from fedprox.errors import InputError, distinct, plural, require, require_share, require_whole
from fedprox.features import (
    Features,
    Vectors,
    arrays_at,
    at_leaf,
    formed,
    index_of,
    map_named,
    named_leaves,
    require_alike,
    row_shapes,
    rows_at,
    with_index,
)
from fedprox.files.mapping import copy_stretches, release_pages
from fedprox.streams import Purpose, Streams, chosen_rows, generator
from fedprox.table_layout import SPLITS, Layout, filled, lay_out
from fedprox.user_code import describe

Array = NDArray[Any]
Inputs = Any
"""Features as users give them: an array-like, or a dict or tuple of several, nested or not."""

Client = tuple[Inputs, ArrayLike]
T = TypeVar("T")


def offsets_of(sizes: Iterable[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """The begin of each of several consecutive stretches, and the end of the last one.

    >>> offsets_of([3, 1]).tolist()
    [0, 3, 4]
    """
    counts = sizes if isinstance(sizes, np.ndarray) else np.fromiter(sizes, np.int64)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True)
class Rows:
    """The examples of all clients, one client after another.

    Attributes:
        x: Features, shape (rows, ...): an array, `fedprox.Windows`, `Vectors` or `Prepared`; or a
            dict or tuple of several of these, nested or not, for a model of several inputs.
        y: Labels, shape (rows,), or (rows, ...) if a row has several: (rows, length) at the
            positions of a sequence, (rows, height, width) at the pixels of an image. -1 stands for
            no label there.
        offsets: First row of each client, and the number of rows, int64 (clients + 1,).

    Raises:
        InputError: If the arrays do not fit together.

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> rows = fp.Rows(np.zeros((4, 2)), np.array([0, 1, 1, 0]), np.array([0, 3, 4]))
        >>> rows.sizes.tolist(), rows.client(1)[1].tolist()
        ([3, 1], [0])
    """

    x: Features
    y: Array
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _stored(self.x, self.y, "rows"))
        for name, leaf in named_leaves(self.x).items():
            where = at_leaf("rows", name)
            require(
                len(leaf) == len(self.y) == self.offsets[-1] and self.offsets[0] == 0,
                f"{where}: {len(leaf)} features, {len(self.y)} labels and offsets that end at "
                f"{self.offsets[-1]}; all three must agree",
            )
            if isinstance(leaf, Vectors) and len(leaf):  # a look-up does not check
                least, greatest = int(leaf.ids.min()), int(leaf.ids.max())
                require(
                    least >= 0 and greatest < len(leaf.table),
                    f"{where}: ids {least} to {greatest}; the table has {len(leaf.table)} vectors",
                )
        require((np.diff(self.offsets) >= 0).all(), "rows: offsets must not decrease")

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each client, shape (clients,), read-only."""
        sizes = np.diff(self.offsets)
        sizes.flags.writeable = False
        return sizes

    @property
    def labels(self) -> NDArray[np.int64]:
        """Number of labels of each client, its rows or positions with a label, shape (clients,)."""
        if self.y.ndim == 1:
            return self.sizes
        counts = np.count_nonzero(self.y >= 0, axis=tuple(range(1, self.y.ndim)))
        return np.diff(offsets_of(counts)[self.offsets])

    def client(self, k: int) -> tuple[Features, Array]:
        """Views of client k's features and labels."""
        rows = slice(self.offsets[k], self.offsets[k + 1])
        return rows_at(self.x, rows), self.y[rows]

    def padded(
        self, clients: NDArray[np.int64], first: int, count: int
    ) -> tuple[Features, Array, NDArray[np.bool_]]:
        """Some rows of each client, beside each other.

        Args:
            clients: Indices of the clients, -1 for none.
            first: The first row of each client.
            count: How many.

        Returns:
            x and y (clients, count, ...), looked up, and whether there is such a row, bool
            (clients, count); where there is none, x and y are those of another row.

        Example:
            >>> import fedprox as fp
            >>> rows = fp.Rows(np.arange(3.0), np.arange(3), np.array([0, 1, 3]))
            >>> x, _, inside = rows.padded(np.array([1, 0]), 0, 2)
            >>> x[0].tolist(), inside.tolist()
            ([1.0, 2.0], [[True, True], [True, False]])
        """
        sizes, within = np.where(clients >= 0, self.sizes[clients], 0), first + np.arange(count)
        inside = within < sizes[:, None]
        at = np.where(inside, self.offsets[np.maximum(clients, 0)][:, None] + within, 0).ravel()
        x, y = jax.tree.map(
            lambda a: a.reshape(*inside.shape, *a.shape[1:]), arrays_at((self.x, self.y), at)
        )
        return x, y, inside

    def sample(self, most: int, *, seed: int, salt: int = 0) -> "Rows":
        """At most `most` rows of each client, drawn at random, in their order.

        Args:
            most: Most rows of a client.
            seed: Seed of the random draws.
            salt: A number; samples with different numbers are independent.

        Returns:
            The rows of the same clients.
        """
        chosen = [
            np.arange(first, last)
            if last - first <= most
            else first
            + np.sort(
                generator(seed, Purpose.SAMPLE, salt, k).choice(last - first, most, replace=False)
            )
            for k, (first, last) in enumerate(zip(self.offsets, self.offsets[1:], strict=False))
        ]
        rows = np.concatenate(chosen)
        return self._taken(rows, offsets_of(map(len, chosen)))

    def where(self, chosen: NDArray[np.bool_]) -> "Rows":
        """Copies of the chosen rows, in their order; `chosen` has shape (rows,)."""
        rows = np.flatnonzero(chosen)
        return self._taken(rows, np.searchsorted(rows, self.offsets))

    def _taken(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> "Rows":
        """Copies of some rows, given the offsets of the clients among them."""
        taken = Rows(rows_at(self.x, rows), self.y[rows], offsets)
        for array in jax.tree.leaves((index_of(self.x), self.y)):
            release_pages(array)
        return taken

    def of_clients(self, clients: NDArray[np.int64]) -> "Rows":
        """Copies of the rows of some clients, in their order."""
        first, sizes = self.offsets[clients], self.offsets[clients + 1] - self.offsets[clients]
        offsets = offsets_of(sizes)
        index, y = jax.tree.map(
            lambda array: copy_stretches(array, first, sizes, offsets[:-1], int(offsets[-1])),
            (index_of(self.x), self.y),
        )
        return Rows(with_index(self.x, index), y, offsets)


@dataclass(frozen=True)
class Examples:
    """Examples that belong to no client, such as validation data of the server.

    Attributes:
        x: Features, shape (rows, ...), as in `fedprox.Rows`.
        y: Labels, shape (rows,) or (rows, ...), as in `fedprox.Rows`.

    Raises:
        InputError: If the numbers of features and labels differ.

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> len(fp.Examples(np.zeros((3, 2)), np.array([0, 1, 1])))
        3
    """

    x: Features
    y: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _stored(self.x, self.y, "examples"))
        for name, leaf in named_leaves(self.x).items():
            require(
                len(leaf) == len(self.y),
                f"{at_leaf('examples', name)}: {len(leaf)} features and {len(self.y)} labels; both "
                "must agree",
            )

    def __len__(self) -> int:
        return len(self.y)


class Names(Sequence[str]):
    """Names by numbers or an array, created on demand: a million strings take 60 MB.

    Example:
        >>> Names(range(10**6))[-1], list(Names(np.array(["ann", "bob"]))[:1])
        ('999999', ['ann'])
    """

    def __init__(self, of: range | NDArray[np.str_]) -> None:
        self.of = of

    def __len__(self) -> int:
        return len(self.of)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> "Names": ...
    def __getitem__(self, at: int | slice) -> "str | Names":
        return Names(self.of[at]) if isinstance(at, slice) else str(self.of[at])


@dataclass(frozen=True)
class Federation:
    r"""Clients with their training and test rows.

    Methods minimize the objective

    .. math:: f(w) = \sum_k p_k F_k(w), \qquad p_k = \frac{n_k}{n}, \qquad
        F_k(w) = \frac{1}{n_k} \sum_i \mathrm{loss}(w; x_i, y_i),

    where client :math:`k` has :math:`n_k` of :math:`n` training rows. `from_arrays` makes a
    federation from each client's arrays.

    Attributes:
        train: Training rows; every client has at least one.
        test: Test rows of the same clients; a client may have none.
        classes: Number of classes, or 0 if labels are not classes.
        names: The clients' names, shape (clients,).
        augment: (random key, stored rows (B, ...)) -> features (B, ...), in JAX: what the model
            reads in a training mini-batch. It gets and returns all features, as a dict or a tuple
            where they are one. Evaluations read the features themselves. The key depends on (seed,
            round, client, mini-batch). None for no augmentation.
        validation: Rows for targets and the selection among rounds, so that test rows serve the
            report alone: rows of the same clients, or `fedprox.Examples` of no client. None for no
            validation.
        columns: How rows of a table became the features and labels, see `from_table`. None if they
            did not.

    Raises:
        InputError: If the parts do not fit together, or a client has no training rows.

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> clients = [(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [0])]
        >>> fp.Federation.from_arrays(clients)
        Federation: 2 clients, 4 training rows (1 to 3 a client), 0 test rows, 2 classes,
        features float32[2]

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, equation 1.
    """

    train: Rows
    test: Rows
    classes: int
    names: Sequence[str]
    augment: Callable[[jax.Array, Any], Any] | None = None
    validation: Rows | Examples | None = None
    columns: Columns | None = None

    def __post_init__(self) -> None:
        counts = {len(self.names), len(self.train.sizes), len(self.test.sizes)}
        require(len(counts) == 1, f"federation: names, train and test disagree: {counts} clients")
        if isinstance(self.validation, Rows):
            count = len(self.validation.sizes)
            require(
                count == len(self),
                f"federation: validation rows of {plural(count, 'client')}; there are {len(self)}",
            )
        require(len(self.names) > 0, "federation: no clients; at least one is needed")
        empty = np.flatnonzero(self.train.sizes == 0)
        if len(empty):
            raise InputError(f"client {self.names[empty[0]]!r}: no training rows; one is needed")
        names = list(named_leaves(self.train.x))
        for part, rows in (("test", self.test), ("validation", self.validation)):
            if rows is not None:
                require_alike(part, named_leaves(rows.x), names, "those to train on")

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        least, most = int(self.train.sizes.min()), int(self.train.sizes.max())
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return (
            f"Federation: {plural(len(self), 'client')}, "
            f"{plural(len(self.train), 'training row')} ({each} a client), "
            f"{plural(len(self.test), 'test row')}, "
            + (f"{plural(len(self.validation), 'validation row')}, " if self.validation else "")
            + (f"{plural(self.classes, 'class')}, " if self.classes else "")
            + f"features {describe(self.features)}"
        )

    @property
    def shares(self) -> NDArray[np.float64]:
        """The clients' shares of the training rows, p_k = n_k / n, shape (clients,)."""
        return self.train.sizes / len(self.train)

    @property
    def parts(self) -> tuple[Rows | Examples, ...]:
        """Training rows, test rows and, if there are any, validation rows."""
        return self.train, self.test, *([self.validation] if self.validation else [])

    @property
    def features(self) -> Any:
        """Shape and type of one example as a model sees it, a `jax.ShapeDtypeStruct`.

        Several inputs have one each, in a dict or a tuple.
        """
        return row_shapes(self.train.x)

    def sample(self, rows: int, *, seed: int = 0) -> "Federation":
        """A federation with at most `rows` rows of each part of each client, drawn at random.

        Validation rows that belong to no client all stay.

        Args:
            rows: Most rows of a client, for training, testing and validation each.
            seed: Seed of the random draws. To sample from a sample, use another seed.

        Returns:
            The federation of the same clients.

        Raises:
            InputError: If `rows` is not a whole number of at least 1.

        Example:
            >>> clients = [(np.arange(5.0)[:, None], np.zeros(5, int)), (np.ones((1, 1)), [0])]
            >>> Federation.from_arrays(clients).sample(2).train.sizes.tolist()
            [2, 1]
        """
        require_whole("rows", rows)
        return with_rows(
            self, lambda part, given: given.sample(rows, seed=seed, salt=SPLITS.index(part))
        )

    def hold_out(self, share: float, *, seed: int = 0) -> "Federation":
        """Move a share of each client's training rows to validation.

        The rows are drawn at random, and both parts stay in order. Their number is share * n_k,
        rounded up or down at random so that the share is right on average; a client always retains
        one training row. Both parts are copied to memory, also from mapped files.

        Args:
            share: Share of each client's training rows, above 0 and below 1.
            seed: Seed of the random draws. The choice of a client's rows depends only on the seed
                and the client.

        Returns:
            The federation of the same clients with validation rows.

        Raises:
            InputError: If the share is out of range, there are validation rows already, or no
                client has a row to spare.

        Example:
            >>> clients = [(np.arange(10.0)[:, None], np.zeros(10, int)), (np.ones((1, 1)), [0])]
            >>> held_out = Federation.from_arrays(clients).hold_out(0.2)
            >>> held_out.train.sizes.tolist(), held_out.validation.sizes.tolist()
            ([8, 1], [2, 0])
        """
        require_share("share", share)
        require(
            self.validation is None,
            f"share = {share}: the federation has validation rows already; leave it out",
        )
        streams = Streams(seed, Purpose.VALIDATION)
        each = (streams.at(0, k) for k in range(len(self)))
        held_out = chosen_rows(self.train.sizes, share, each)
        require(
            held_out.any(),
            f"share = {share}: no client has a training row to spare; give a larger share",
        )
        train, validation = (self.train.where(chosen) for chosen in (~held_out, held_out))
        return replace(self, train=train, validation=validation)

    def with_validation(self, x: Inputs, y: ArrayLike) -> "Federation":
        """Add validation rows that belong to no client.

        Evaluations read all of them, even if they sample clients and rows.

        Args:
            x: Features, shape (rows, ...), with rows shaped as the clients'; a dict or a tuple
                where theirs are one.
            y: Labels, shape (rows,) or (rows, ...), shaped as the clients'.

        Returns:
            The federation of the same clients with validation rows.

        Raises:
            InputError: If there are validation rows already, the rows do not fit the clients', or
                the clients' features are `fedprox.Windows`, `Vectors` or `Prepared`.

        Example:
            >>> federation = Federation.from_arrays([(np.zeros((3, 2)), [0, 1, 1])])
            >>> len(federation.with_validation(np.ones((5, 2)), [0, 1, 0, 1, 0]).validation)
            5
        """
        train, part = self.train, "validation"
        require(self.validation is None, f"{part}: the federation has validation rows already")
        for name, leaf in named_leaves(train.x).items():
            require(
                isinstance(leaf, np.ndarray),
                f"{at_leaf(part, name)}: the clients' features are fedprox.{type(leaf).__name__}; "
                "give dataclasses.replace(federation, validation=fedprox.Examples(x, y)) of the "
                "same kind",
            )
        x, y = _client_arrays((x, y), part)
        require(len(y), f"{part}: no rows; at least one is needed")
        _require_shaped(x, y, _shapes(train.x, train.y), part, "the clients'")
        if train.y.dtype.kind != "f" and (y == np.floor(y)).all():
            y = y.astype(np.int32, copy=False)
        require(
            (y.dtype.kind == "f") == (train.y.dtype.kind == "f"),
            f"{part}: labels of type {y.dtype}; the clients' are of {train.y.dtype}",
        )
        if self.classes:
            _check_labels(y, self.classes, lambda _: part)
        return replace(self, validation=Examples(_as_trained_on(x, train.x, part), y))

    def drawn(self, clients: int, *, seed: int = 0) -> NDArray[np.int64]:
        """The indices of the clients that `sample_clients` draws, ascending.

        Args:
            clients: Most clients, at least 1.
            seed: Seed of the random draws.

        Returns:
            int64, shape (clients,) or fewer.

        Raises:
            InputError: If `clients` is not a whole number of at least 1.
        """
        require_whole("clients", clients)
        if clients >= len(self):
            return np.arange(len(self))
        return np.sort(generator(seed, Purpose.EVALUATED).choice(len(self), clients, False))

    def sample_clients(self, clients: int, *, seed: int = 0) -> "Federation":
        """A federation of at most `clients` clients, drawn uniformly at random, in their order.

        Args:
            clients: Most clients, at least 1.
            seed: Seed of the random draws.

        Returns:
            The federation of the drawn clients.

        Raises:
            InputError: If `clients` is not a whole number of at least 1.

        Example:
            >>> many = Federation.from_arrays([([[float(k)]], [0]) for k in range(1000)])
            >>> few = many.sample_clients(10)
            >>> len(few), list(few.names) == [f"{x:.0f}" for x in few.train.x[:, 0]]
            (10, True)
        """
        chosen = self.drawn(clients, seed=seed)
        if len(chosen) == len(self):
            return self
        return self.of_clients(chosen)

    def of_clients(self, clients: NDArray[np.int64]) -> "Federation":
        """A federation of some of the clients, with all validation rows that belong to no client.

        Args:
            clients: Indices of the clients, int64, ascending.

        Returns:
            The federation.
        """
        names = tuple(self.names[k] for k in clients.tolist())
        return with_rows(self, lambda _, rows: rows.of_clients(clients), names=names)

    @classmethod
    def from_arrays(
        cls,
        train: Iterable[Client],
        test: Iterable[Client] | None = None,
        *,
        classes: int | None = None,
        names: Iterable[str] | None = None,
    ) -> "Federation":
        """A federation from each client's own arrays.

        Args:
            train: A pair (x, y) for each client, in a list or from a generator: x of shape
                (n_k, ...), y of shape (n_k,), or (n_k, ...) if a row has several labels, such as
                one at every position of a sequence or at every pixel; -1 stands for no label there.
                For a model of several inputs, x is a dict or a tuple of arrays, nested or not, such
                as ``{"image": (n_k, 28, 28), "table": (n_k, 5)}``; a list is rows of one array.
            test: Pairs of test rows likewise, in the same order; None for no test rows.
            classes: Number of classes, 0 for labels that are not classes. None for the largest
                label plus one, at most 10,000, if labels are integers. Floating-point labels are
                classes if `classes` is given, or if all are single whole numbers from 0 to 19, as
                in a table of 0.0 and 1.0.
            names: The clients' names, all different; None for "0", "1", ...

        Returns:
            The federation, with numbers of 32 bits.

        Raises:
            InputError: If a client has no rows, or inputs of other names or rows of another shape
                than the first client's. Also if it has unequal numbers of features and labels,
                numbers that are not finite, or labels outside `range(classes)`. The message names
                the client.

        Example:
            >>> import numpy as np
            >>> clients = [(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [0])]
            >>> federation = Federation.from_arrays(clients)
            >>> federation.train.sizes.tolist(), federation.classes
            ([3, 1], 2)
        """
        train = _several("train", train, "clients' (x, y)")
        require(len(train) > 0, "train: no clients; at least one is needed")
        if names is None:
            names = map(str, range(len(train)))
        names = _several("names", names, "names")
        require(
            len(names) == len(train),
            f"names: {len(names)} names for {len(train)} clients; one each is needed",
        )
        for name in names:
            require(isinstance(name, str), f"names: {name!r} is not a string")
        names = tuple(distinct("names:", names))
        train_rows = _concatenate(train, names, "train")
        test_rows = no_rows(train_rows)
        if test is not None:
            test = _several("test", test, "clients' (x, y)")
            require(
                len(test) == len(train),
                f"test: {len(test)} clients where train has {len(train)}; the same are needed",
            )
            test_rows = _concatenate(test, names, "test", like=train_rows)
        require(
            train_rows.y.dtype.kind == test_rows.y.dtype.kind,
            "test: labels of train and test differ in kind: whole numbers in one, not in the other",
        )
        train_rows, test_rows = _as_classes(train_rows, test_rows, classes)
        if classes == 0 or train_rows.y.dtype.kind == "f":
            return cls(train_rows, test_rows, 0, names)
        for rows, part in ((train_rows, "train"), (test_rows, "test")):
            _check_labels(rows.y, classes, partial(_owner, rows, names, part))
        if classes is None:
            classes = int(max(train_rows.y.max(), test_rows.y.max(initial=0))) + 1
        return cls(train_rows, test_rows, classes, names)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        client: str | None = None,
        client_name: str | None = None,
        label: str,
        features: Sequence[str] | None = None,
        test: str | float | None = None,
        kinds: Mapping[str, Any] | None = None,
        missing: Mapping[str, Value] | Literal["column"] | None = None,
        standardize: Literal["federation", "client"] | Mapping[str, Any] | None = "federation",
        seed: int = 0,
    ) -> "Federation":
        """A federation from a table in which each row is an example.

        Features are one array of numbers: a number or a truth value is a column, a word a column of
        0 and 1 for each word of its vocabulary. `Federation.columns` says which, see `Columns`.

        Args:
            table: A file, .csv, .parquet, .feather or .arrow, which pyarrow reads; a data frame of
                pandas, polars or pyarrow; a dict of arrays; or a list of rows, each a dict.
            client: The column that names each row's client, by a word or a whole number.
            client_name: In place of `client`, the name of the one client whose rows these are.
            label: The column to predict. Words, truth values and whole numbers from 0 are classes;
                so are floating-point numbers that are all whole and below 20. Other numbers are
                regression targets.
            features: The columns to predict it from; None for all others.
            test: The column that says "train", "test" or "validation"; or the share of each
                client's rows, above 0 and below 1, to test on. They are drawn by the seed and the
                client's name, and a client retains a row to train on. None for no test rows.
            kinds: Kinds of columns, by name, where the values do not tell: a `Column`, a table of
                its fields without the name, or its kind alone. Without a stated vocabulary, it is
                the sorted values of all rows, at most 1,000. Whole numbers are a "number"; a label
                of whole numbers is one only if its kind is stated. A column of dates is refused
                unless its kind is "date".
            missing: Replacements of missing values, by column, see `Column`; "column" for all
                columns that have some; None if a missing value is an error.
            standardize: How numbers are standardized: "federation" by the mean and standard
                deviation of all clients' training rows, "client" by those of each client's own. A
                table of [mean, scale] by column gives them. None for no standardization.
            seed: Seed of the rows to test on.

        Returns:
            The federation, with clients sorted by name and each client's rows in the table's order.

        Raises:
            InputError: If a column is missing, a value cannot be used, or a client has no training
                row. The message names the column, the row, counted from 1, and the value.

        Example:
            >>> patients = {
            ...     "hospital": ["a", "a", "b"],
            ...     "age": [40, 60, 50],
            ...     "sex": ["f", "m", "f"],
            ...     "ill": [False, True, True],
            ... }
            >>> federation = Federation.from_table(patients, client="hospital", label="ill")
            >>> print(federation.train.x.round(2))
            [[-1.22  1.    0.  ]
             [ 1.22  0.    1.  ]
             [ 0.    1.    0.  ]]
            >>> federation.columns.names, federation.columns.mean
            (('age', 'sex=f', 'sex=m'), (50.0,))
        """
        layout = lay_out(
            table,
            client=client,
            client_name=client_name,
            label=label,
            features=features,
            test=test,
            kinds=kinds,
            missing=missing,
            standardize=standardize,
            seed=seed,
        )
        return of_layout(layout)


def of_layout(layout: Layout) -> Federation:
    """The federation of a table whose rows are laid out by client."""
    columns, parts = filled(layout)
    train, test, validation = (Rows(*part) for part in parts)
    held_out = validation if len(validation) else None
    names = tuple(layout.names)
    return Federation(train, test, columns.classes, names, validation=held_out, columns=columns)


def with_rows(
    federation: Federation, change: Callable[[str, Rows], Rows], **others: Any
) -> Federation:
    """A federation whose clients have other rows in each part; rows of no client all stay."""
    parts = {part: getattr(federation, part) for part in SPLITS}
    rows: Any = {k: change(k, part) for k, part in parts.items() if isinstance(part, Rows)}
    return replace(federation, **rows, **others)


def _as_classes(train: Rows, test: Rows, classes: int | None) -> tuple[Rows, Rows]:
    """Rows with floating-point labels that are classes, see `from_arrays`, as integers."""
    require_whole("classes", classes, least=0, optional=True)
    if train.y.dtype.kind != "f" or classes == 0:
        return train, test
    parts = train, test
    whole = all((rows.y == np.floor(rows.y)).all() for rows in parts)
    require(whole or classes is None, "classes: given, but labels are not whole numbers")
    few = all(((rows.y >= 0) & (rows.y < FEW_CLASSES)).all() for rows in parts)
    if whole and (classes or (few and train.y.ndim == 1)):
        train, test = (replace(rows, y=rows.y.astype(np.int32)) for rows in parts)
    return train, test


def _several(name: str, given: Iterable[T], what: str) -> list[T]:
    """The items of an argument that is a list or a generator."""
    require(
        isinstance(given, Iterable) and not isinstance(given, str | Mapping),
        f"{name}: an argument of type {type(given).__name__}; it must be a list of {what}",
    )
    return list(given)


def _concatenate(
    clients: Sequence[Client], names: Sequence[str], part: str, like: Rows | None = None
) -> Rows:
    """All clients' rows together; their shapes are those of `like` if it is given."""
    known = _shapes(like.x, like.y) if like else None
    xs, ys, sizes = [], [], []
    for client, name in zip(clients, names, strict=True):
        where = f"client {name!r}, {part}"
        x, y = _client_arrays(client, where)
        require(len(y) or part == "test", f"{where}: no rows; at least one is needed")
        sizes.append(len(y))
        if len(y):
            known = known or _shapes(x, y)
            _require_shaped(x, y, known, where, "other clients'")
            xs.append(x)
            ys.append(y)
    if like and not xs:
        return no_rows(like)
    x = jax.tree.map(lambda *parts: _joined(parts), *xs)
    x = _as_trained_on(x, like.x, part) if like else x
    return Rows(x, _joined(ys), offsets_of(sizes))


Shape = tuple[int, ...]
Shapes = tuple[dict[str, Shape], Shape]
"""The shape of each of a row's features by name, and that of its labels."""


def _shapes(x: Features, y: Array) -> Shapes:
    return {name: leaf.shape[1:] for name, leaf in named_leaves(x).items()}, y.shape[1:]


def _require_shaped(x: Features, y: Array, known: Shapes, where: str, whose: str) -> None:
    """Raise `InputError` unless features have the names of others, and rows the shapes."""
    if (shapes := _shapes(x, y)) == known:
        return
    (of_x, of_y), (known_x, known_y) = shapes, known
    require_alike(where, of_x, known_x, whose)
    rows = [(at_leaf(where, name), "rows", of_x[name], known_x[name]) for name in of_x]
    for place, what, shape, other in [*rows, (where, "labels", of_y, known_y)]:
        require(shape == other, f"{place}: {what} of shape {shape}; {whose} have {other}")


def _as_trained_on(x: Features, like: Features, part: str) -> Features:
    """Features in the types of the training features, which must represent them."""

    def converted(name: str, given: Array, like: Array) -> Array:
        array = given.astype(like.dtype, copy=False)
        require(
            array.dtype.kind == "f" or (array == given).all(),
            f"{at_leaf(part, name)}: features of type {given.dtype}; those to train on are of "
            f"{like.dtype}",
        )
        return array

    return map_named(converted, x, like)


def _joined(parts: Sequence[Array]) -> Array:
    """All clients' numbers in 32 bits, also if some are whole and some are not."""
    joined = np.concatenate(parts)
    return joined.astype(np.float32) if joined.dtype == np.float64 else joined


def _of_type(client: Any) -> str:
    length = f" of length {len(client)}" if hasattr(client, "__len__") else ""
    return f"an object of type {type(client).__name__}{length}"


def array_of(given: ArrayLike, what: str) -> Array:
    """An array with rows."""
    require_unmasked(given, what)
    if isinstance(given, list | tuple):
        for row in given:
            require_unmasked(row, what)
    try:
        array = np.asarray(given)
    except ValueError:
        raise InputError(f"{what}: ragged rows; all must be alike") from None
    hint = "; a sparse matrix's toarray() makes one" if hasattr(given, "toarray") else ""
    require(
        array.ndim > 0,
        f"{what}: an object of type {type(given).__name__}; an array of numbers with a row for "
        f"each example is needed{hint}",
    )
    return array


def require_unmasked(given: object, what: str) -> None:
    """Raise `InputError` if an array has a mask, which would be lost."""
    require(
        not np.ma.isMaskedArray(given),
        f"{what}: a masked array, whose mask would be lost; leave out the rows with masked entries "
        "or give them a value by its filled()",
    )


def pair_of(client: Client, where: str) -> tuple[Array, Array]:
    """A client's features and labels as arrays."""
    require(
        isinstance(client, Sequence | np.ndarray) and len(client) == 2,
        f"{where}: {_of_type(client)}; each client must be a pair (x, y)",
    )
    x, y = client
    return formed(x, array_of, f"{where}: features"), array_of(y, f"{where}: labels")


def _stored(x: Features, y: Array, where: str) -> Features:
    """Features of rows as dicts and tuples of arrays or compact features without masks."""

    def checked(leaf: Any, what: str) -> Any:
        require_unmasked(index_of(leaf), what)
        require(
            getattr(index_of(leaf), "shape", ()),
            f"{what}: an object of type {type(leaf).__name__}; an array with a row for each "
            "example is needed",
        )
        return leaf

    require_unmasked(y, f"{where}: labels")
    return formed(x, checked, f"{where}: features")


def _client_arrays(client: Client, where: str) -> tuple[Features, Array]:
    """A client's features and labels, checked: numbers, as many labels as rows, all finite."""
    x, y = pair_of(client, where)
    for name, leaf in named_leaves(x).items():
        require(
            len(leaf) == len(y),
            f"{at_leaf(where, name)}: features of shape {leaf.shape} and labels of shape "
            f"{y.shape}; one label for each row is needed",
        )
    if not len(y):
        return x, y
    x = map_named(lambda name, leaf: _in_32_bits(leaf, at_leaf(where, name)), x)
    how = "; number the classes alike for all clients: numpy.searchsorted(sorted_words, labels)"
    require(
        y.dtype.kind in "fiub",
        f"{where}: labels of type {y.dtype}; they must be numbers{how}",
    )
    require(y[0].size > 0, f"{where}: labels of shape {y.shape[1:]}; one label is needed")
    if y.dtype.kind == "f":
        y = y.astype(np.float32, copy=False)
        require(np.isfinite(y).all(), f"{where}: a label is NaN or infinite")
    else:
        require(
            y.max() < 2**31 and y.min() >= -(2**31),
            f"{where}: label {y.flat[np.argmax(np.abs(y.astype(float)))]}; labels are 32-bit",
        )
        y = y.astype(np.int32, copy=False)
    return x, y


def _in_32_bits(x: Array, where: str) -> Array:
    """Features of a client, checked, as numbers of at most 32 bits."""
    require(x.dtype.kind in "fiub", f"{where}: features of type {x.dtype}; they must be numbers")
    require(x[0].size > 0, f"{where}: rows of shape {x.shape[1:]}; one feature is needed")
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        require(np.isfinite(x).all(), f"{where}: a feature is NaN or infinite as a 32-bit number")
    elif x.dtype.itemsize > 4:
        narrow = x.astype(np.int32)  # JAX would convert too, and wrap around
        require((narrow == x).all(), f"{where}: a feature is a whole number beyond 32 bits")
        x = narrow
    return x


def no_rows(like: Rows) -> Rows:
    """No rows of the clients of others."""
    return Rows(rows_at(like.x, slice(0)), like.y[:0], np.zeros_like(like.offsets))


def _owner(rows: Rows, names: Sequence[str], part: str, row: int) -> str:
    """The owner of a row, for a message."""
    client = int(np.searchsorted(rows.offsets, row, side="right")) - 1
    return f"client {names[client]!r}, {part}"


def _check_labels(y: Array, classes: int | None, owner: Callable[[int], str]) -> None:
    """Raise `InputError` if a label is no class; `owner` names the owner of a row."""
    least = 0 if y.ndim == 1 else -1  # -1: no label at that position
    top, hint = (MOST_CLASSES, "; for more, give classes") if classes is None else (classes, "")
    bad = (y < least) | (y >= top)
    if bad.any():
        row = int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0])
        raise InputError(
            f"{owner(row)}: label {y[bad][0]}; labels are 0 to {top - 1}"
            f"{', and -1 where a row has no label' * (y.ndim > 1)}{hint}"
        )
