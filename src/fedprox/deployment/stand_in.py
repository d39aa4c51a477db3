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
from fedprox.errors import LARGEST, InputError, foreign, require, shown
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


def common_kind(descriptions: Sequence[Description]) -> DataKind:
    """What the data of all nodes have in common.

    Raises:
        InputError: If the nodes' data cannot train one model. The message names two nodes.
    """
    first = descriptions[0]
    for each in descriptions[1:]:
        for key in ("features", "feature_type", "label", "label_type", "augmented"):
            ours, theirs = getattr(first.kind, key), getattr(each.kind, key)
            require(
                ours == theirs,
                f"nodes {first.name!r} and {each.name!r} differ in {key.replace('_', ' ')}: {ours} "
                f"and {theirs}; all nodes need data of one kind",
            )
        require(
            bool(first.kind.classes) == bool(each.kind.classes),
            f"nodes {first.name!r} and {each.name!r}: labels are classes in one, not in the other",
        )
    classes = max(each.kind.classes for each in descriptions)
    greatest = max(each.kind.greatest for each in descriptions)
    return first.kind.model_copy(update={"classes": classes, "greatest": greatest})


def one_client(kind: DataKind) -> Federation:
    """A stand-in with one client of one row, from which a model is built."""
    return _federation(kind, ["client"], [1], [1], None)


def stand_in(kind: DataKind, descriptions: Sequence[Description]) -> Federation:
    """A stand-in for the clients of all nodes, node by node.

    Raises:
        InputError: If two clients have the same name, or only some nodes have validation rows.
    """
    clients = [each.clients for each in descriptions]
    owners: dict[str, str] = {}
    for each in descriptions:
        for name in each.clients.names:
            require(
                name not in owners,
                f"client {name!r} is on node {owners.get(name)!r} and on node {each.name!r}; names "
                "of clients must differ",
            )
            owners[name] = each.name
    validated = {each.name: bool(each.clients.validation) for each in descriptions}
    central = sum(each.central_validation for each in descriptions)
    have, lack = ([name for name, has in validated.items() if has is one] for one in (True, False))
    if have and lack:
        raise InputError(
            f"clients of node {have[0]!r} have validation rows, those of node {lack[0]!r} have "
            "none; all nodes or none must have them"
        )

    def joined(parts: Iterable[Sequence[int]]) -> list[int]:
        return [number for part in parts for number in part]

    validation: Sequence[int] | int | None = central or None
    if have:
        validation = joined(c.validation for c in clients)
    return _federation(
        kind,
        list(owners),
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
