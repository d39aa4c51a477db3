"""The data of nodes as others know them: kinds, names and numbers of rows, but no rows.

The coordinator has no data. It draws cohorts from a stand-in, a federation with the clients' names
and sizes whose rows are views of a single number. Nodes and coordinator build the model from a
stand-in, so that all of them build the same one, also where a node lacks a class.
"""

import math
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from fedprox.deployment.messages import Clients, DataKind, Description
from fedprox.deployment.policy import REPORTS
from fedprox.errors import LARGEST, foreign, require, shown
from fedprox.features import index_of
from fedprox.federation import Examples, Federation, Rows, offsets_of

TYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)
"""The types that features and labels may have."""


def describe(
    name: str, version: str, federation: Federation, reports: list[str], *, sampled: bool
) -> Description:
    """What a node says of its clients.

    Args:
        name: The node's name.
        version: Version of fedprox.
        federation: The clients.
        reports: The measures that the node reports.
        sampled: Whether some rows stand for all in evaluations: each then has as many labels as the
            longest may have.
    """
    train, test, validation = federation.train, federation.test, federation.validation
    stored, features = index_of(train.x), federation.features
    symbols = np.issubdtype(features.dtype, np.integer) and stored is train.x
    parts = [part.x for part in federation.parts if len(part)]
    kind = DataKind(
        classes=federation.classes,
        features=list(features.shape),
        feature_type=np.dtype(features.dtype).name,
        label=list(train.y.shape[1:]),
        label_type=train.y.dtype.name,
        greatest=max(int(np.max(x)) for x in parts) if symbols else 0,
        augmented=federation.augment is not None,
    )
    clients = Clients(
        names=list(federation.names),
        train=train.sizes.tolist(),
        test=test.sizes.tolist(),
        labels=(test.sizes * math.prod(kind.label) if sampled else test.labels).tolist(),
        validation=validation.sizes.tolist() if isinstance(validation, Rows) else [],
    )
    return Description(
        name=name,
        version=version,
        kind=kind,
        clients=clients,
        central_validation=len(validation) if isinstance(validation, Examples) else 0,
        reports=reports,
    )


def declared_in_words(description: Description) -> str:
    """What a node says of its data, in one line."""
    clients, kind = description.clients, description.kind
    count = len(clients.names)
    parts = [f"{count:,} client{'s' * (count != 1)}"]
    parts += [f"{sum(clients.train):,} training rows", f"{sum(clients.test):,} test rows"]
    if kind.classes:
        parts.append(f"{kind.classes:,} classes, labels up to {kind.classes - 1}")
    return f"node {description.name}: {', '.join(parts)}"


def class_warning(descriptions: Sequence[Description]) -> str:
    """That labels of nodes may not mean the same; empty if nodes have as many classes.

    Which labels a node has, and how often, it does not say.
    """
    nodes: dict[int, list[str]] = {}
    for each in descriptions:
        nodes.setdefault(each.kind.classes, []).append(each.name)
    if len(nodes) == 1:
        return ""
    have = "; ".join(
        f"{classes:,} on {', '.join(names[:NAMED])}{', ...' * (len(names) > NAMED)}"
        for classes, names in sorted(nodes.items())
    )
    most = max(nodes)
    return (
        f"nodes differ in their number of classes: {have}. The run has {most:,}, labels 0 to "
        f"{most - 1}. A label must mean the same on all nodes, and labels that none of them has "
        "are classes all the same; each node shows which of its labels occur when it starts"
    )


NAMED, RANGES = 3, 10
"""Most nodes of a number of classes, and ranges of labels, that a line names."""


def labels_in_words(federation: Federation) -> str:
    """Which labels a node's training rows have, and how many; for the node's own log alone.

    >>> rows = [(np.zeros((4, 1), np.float32), np.array([5, 6, 6, 9]))]
    >>> labels_in_words(Federation.from_arrays(rows, names=["a"]))
    'labels of training rows: 5: 1, 6: 2, 9: 1; 7 of 10 classes have none: 0 to 4, 7 to 8'
    """
    if not federation.classes:
        return ""
    y = np.asarray(federation.train.y)
    counts = np.bincount(y[y >= 0].astype(np.int64), minlength=federation.classes)
    have, none = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    shown = [f"{label}: {counts[label]:,}" for label in have[: 2 * RANGES].tolist()]
    line = ", ".join(shown) + ", ..." * (len(have) > 2 * RANGES)
    line = f"labels of training rows: {line}"
    if not len(none):
        return line
    ends = np.split(none, np.flatnonzero(np.diff(none) > 1) + 1)
    ranges = [f"{a[0]} to {a[-1]}" if len(a) > 1 else str(a[0]) for a in ends[:RANGES]]
    missing = ", ".join(ranges) + ", ..." * (len(ends) > RANGES)
    return f"{line}; {len(none):,} of {federation.classes:,} classes have none: {missing}"


MOST_CLIENTS, MOST_CLASSES, MOST_NUMBERS, MOST_WEIGHTS = 10**6, 10**5, 10**7, 10**9
"""Most clients of a node, classes or symbols, numbers of an example or a label, and weights between
an example and its classes: what a node says determines the size of everybody's model."""

MOST_AXES, MOST_NAME = 8, 200
"""Most axes of an example or a label, and characters of a name."""


def check_description(description: Description) -> None:
    """Raise `InputError` if a node's clients or the kind of its data cannot be."""
    kind, clients = description.kind, description.clients
    count = len(clients.names)
    require(count <= MOST_CLIENTS, f"{count:,} clients; at most {MOST_CLIENTS:,} are allowed")
    for what, names in (("name", [description.name]), ("client", clients.names)):
        for name in names:
            require(
                0 < len(name) <= MOST_NAME and name.isprintable(),
                f"{what} {foreign(repr(name))}; a name has 1 to {MOST_NAME} printable characters",
            )
    for key in ("feature_type", "label_type"):
        name, what = getattr(kind, key), key.replace("_", " ")
        require(name in TYPES, f"{what} {foreign(repr(name))}; it must be a number")
    require(len(set(clients.names)) == count, "two of its clients have the same name")
    columns = [clients.train, clients.test, clients.labels]
    columns += [clients.validation] if clients.validation else []
    require(
        count and all(len(column) == count for column in columns),
        f"{count} clients, and lists of other lengths",
    )
    numbers = [*kind.features, *kind.label, kind.classes, description.central_validation]
    require(
        all(0 <= n <= LARGEST for n in (*numbers, *(n for column in columns for n in column)))
        and all(clients.train),
        "a number of rows or classes, or a shape, that data cannot have",
    )
    for key in ("classes", "greatest"):
        value, most = getattr(kind, key), MOST_CLASSES
        require(value <= most, f"{key} = {shown(value)}; at most {most:,} are allowed")
    for key in ("features", "label"):
        shape = getattr(kind, key)
        require(
            len(shape) <= MOST_AXES and math.prod(shape) <= MOST_NUMBERS,
            f"{key} of {len(shape)} axes and {foreign(math.prod(shape))} numbers; at most "
            f"{MOST_AXES} axes and {MOST_NUMBERS:,} numbers are allowed",
        )
    weights = math.prod(kind.features) * kind.classes
    require(
        weights <= MOST_WEIGHTS,
        f"{math.prod(kind.features):,} numbers of an example and {kind.classes:,} classes; their "
        f"product may be at most {MOST_WEIGHTS:,}",
    )
    require(
        set(description.reports) <= set(REPORTS),
        f"it reports {foreign(description.reports)}; there are {', '.join(REPORTS)}",
    )


def check_fits(description: Description, others: Iterable[Description]) -> None:
    """Raise `InputError` if a node cannot join others: their data or the names of their clients.

    Args:
        description: What the node says of itself.
        others: What those have said that joined before it, and have the names that they gave.
    """
    mine, names = description.kind, set(description.clients.names)
    for other in others:
        theirs, known = other.kind, f"node {other.name!r}"
        taken = next((name for name in other.clients.names if name in names), None)
        require(
            taken is None,
            f"its client {taken!r} is on {known} too; names of clients must differ",
        )
        for key in ("features", "feature_type", "label", "label_type", "augmented"):
            have, needed = getattr(mine, key), getattr(theirs, key)
            require(
                have == needed,
                f"{key.replace('_', ' ')}: it has {foreign(have)}, and {known} {needed}; all nodes "
                "need data of one kind",
            )
        classes = bool(mine.classes)
        are, are_not = ("are", "are not") if classes else ("are not", "are")
        require(
            classes == bool(theirs.classes),
            f"its labels {are} classes, those of {known} {are_not}",
        )
        validated = bool(description.clients.validation)
        have, have_not = ("have", "have none") if validated else ("have no", "have some")
        require(
            validated == bool(other.clients.validation),
            f"its clients {have} validation rows, those of {known} {have_not}; all nodes or none "
            "must have them",
        )


def common_kind(descriptions: Sequence[Description]) -> DataKind:
    """What the data of all nodes have in common, of which `check_fits` was asked."""
    classes = max(each.kind.classes for each in descriptions)
    greatest = max(each.kind.greatest for each in descriptions)
    common = {"classes": classes, "greatest": greatest}
    return descriptions[0].kind.model_copy(update=common)


def one_client(kind: DataKind) -> Federation:
    """A stand-in with one client of one row, from which a model is built."""
    return _federation(kind, ["client"], [1], [1], None)


def stand_in(kind: DataKind, descriptions: Sequence[Description]) -> Federation:
    """A stand-in for the clients of all nodes, node by node."""
    clients = [each.clients for each in descriptions]

    def joined(parts: Iterable[Sequence[int]]) -> list[int]:
        return [number for part in parts for number in part]

    central = sum(each.central_validation for each in descriptions)
    validation: Sequence[int] | int | None = central or None
    if clients[0].validation:
        validation = joined(c.validation for c in clients)
    return _federation(
        kind,
        [name for c in clients for name in c.names],
        joined(c.train for c in clients),
        joined(c.test for c in clients),
        validation,
    )


def _federation(
    kind: DataKind,
    names: Sequence[str],
    train: Sequence[int],
    test: Sequence[int],
    validation: Sequence[int] | int | None,
) -> Federation:
    """A stand-in of these clients; a number of validation rows means rows of no client."""

    def x(rows: int) -> np.ndarray:
        filled = np.array(kind.greatest, kind.feature_type)
        return np.broadcast_to(filled, (rows, *kind.features))

    def y(rows: int) -> np.ndarray:
        return np.broadcast_to(np.array(0, kind.label_type), (rows, *kind.label))

    def rows_of(sizes: Sequence[int]) -> Rows:
        return Rows(x(sum(sizes)), y(sum(sizes)), offsets_of(sizes))

    held_out: Rows | Examples | None = None
    if isinstance(validation, int):
        held_out = Examples(x(validation), y(validation))
    elif validation is not None:
        held_out = rows_of(validation)
    return Federation(
        rows_of(train),
        rows_of(test),
        kind.classes,
        tuple(names),
        _same_rows if kind.augmented else None,
        held_out,
    )


def _same_rows(key: jax.Array, rows: jax.Array) -> jax.Array:
    """Stands for the augmentation of the nodes."""
    del key
    return rows
