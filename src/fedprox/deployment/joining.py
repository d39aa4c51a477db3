"""Nodes join: what a node says of its data, and what the coordinator makes of it.

The coordinator has no data. It draws cohorts from a stand-in, a federation with the clients' names
and sizes whose rows are views of a single number. Nodes and coordinator build the model from a
stand-in, so that all of them build the same one, also where a node lacks a class.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox import __version__
from fedprox.columns import Column, Columns
from fedprox.deployment.conversation import NO_ANSWER, NOT_CONNECTED, Answered, Conversation
from fedprox.deployment.policy import REPORTS
from fedprox.deployment.wire import (
    VERSION,
    ArrayKind,
    Clients,
    DataKind,
    Description,
    Request,
    in_one_line,
)
from fedprox.errors import InputError, distinct, foreign, require
from fedprox.features import Features, index_of, named_leaves
from fedprox.federation import Examples, Federation, Rows, offsets_of


def description_of(
    name: str, version: str, federation: Federation, reports: list[str], *, sampled: bool
) -> Description:
    """A node's description of its clients."""
    train, test, validation = federation.train, federation.test, federation.validation
    parts = [named_leaves(part.x) for part in federation.parts if len(part)]

    def array_kind(name: str, leaf: Features) -> ArrayKind:
        symbols = np.issubdtype(leaf.dtype, np.integer) and index_of(leaf) is leaf
        return ArrayKind(
            name=name,
            shape=list(leaf.shape[1:]),
            type=np.dtype(leaf.dtype).name,
            greatest=max(int(np.max(part[name])) for part in parts) if symbols else 0,
        )

    with in_one_line("the node's data"):
        kind = DataKind(
            classes=federation.classes,
            features=[array_kind(*each) for each in named_leaves(train.x).items()],
            label=list(train.y.shape[1:]),
            label_type=train.y.dtype.name,
            augmented=federation.augment is not None,
            columns=None if federation.columns is None else federation.columns.as_json(),
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
    """A node's description of its data, in one line."""
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


ALIKE = "label", "label_type", "augmented"
"""The properties that are equal on all nodes, beside columns and the arrays of features."""


def differences(mine: DataKind, theirs: DataKind) -> list[tuple[str, str, str]]:
    """In what the columns of two nodes differ: what it is, and the words of one and of the other.

    Units are compared where both give them.
    """
    if mine.columns == theirs.columns:  # as of each request of a run
        return []
    if mine.columns is None or theirs.columns is None:
        first, second = ("a table" if kind.columns else "no table" for kind in (mine, theirs))
        return [("data", first, second)]
    own, other = (Columns.of_json(kind.columns) for kind in (mine, theirs))
    by_name = [{column.name: column for column in each.features} for each in (own, other)]
    found = [
        difference
        for name in {**by_name[0], **by_name[1]}
        for difference in _of_column(f"column {name!r}", *(each.get(name) for each in by_name))
    ]
    found += _of_column("label", own.label, other.label)
    if found:
        return found
    numbers = [(each.mean or (), each.scale or ()) for each in (own, other)]
    pairs = {
        "order of columns": map(_listed, by_name),
        "standardize": (str(each.standardize) for each in (own, other)),
        "mean": (_listed(mean) for mean, _ in numbers),
        "scale": (_listed(scale) for _, scale in numbers),
    }
    return [(what, one, two) for what, (one, two) in pairs.items() if one != two]


def _of_column(what: str, own: Column | None, other: Column | None) -> list[tuple[str, str, str]]:
    """In what two columns differ."""
    if own is None or other is None:
        first, second = ("no such column" if c is None else c.kind for c in (own, other))
        return [(what, first, second)]
    pairs = {
        f"{what}, name": (own.name, other.name),
        f"{what}, kind": (own.kind, other.kind),
        f"{what}, values": (_listed(own.values), _listed(other.values)),
        f"{what}, missing": (str(own.missing), str(other.missing)),
        f"{what}, unit": (own.unit or other.unit, other.unit or own.unit),
    }
    return [(each, one, two) for each, (one, two) in pairs.items() if one != two]


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values)) or "none"


class DifferentColumnsError(InputError):
    """A node's columns are not those of another, which has a line for each difference."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def check_fits(description: Description, others: Iterable[Description]) -> None:
    """Raise `InputError` if a node cannot join others: their data or the names of their clients.

    For columns it is a `DifferentColumnsError`, with a line for each difference.
    """
    mine, names = description.kind, set(description.clients.names)
    for other in others:
        theirs, known = other.kind, f"node {other.name!r}"
        taken = next((name for name in other.clients.names if name in names), None)
        require(
            taken is None,
            f"its client {taken!r} is on {known} too; names of clients must differ",
        )
        lines = [
            f"{what}: it has {foreign(have)}, and {known} {foreign(needed)}"
            for what, have, needed in differences(mine, theirs)
        ]
        if lines:
            raise DifferentColumnsError(lines)
        for key in {**mine.arrays, **theirs.arrays, **dict.fromkeys(ALIKE)}:
            have, needed = (
                getattr(kind, key) if key in ALIKE else kind.arrays.get(key, "no such array")
                for kind in (mine, theirs)
            )
            require(
                have == needed,
                f"{foreign(key.replace('_', ' '))}: it has {foreign(have)}, and {known} {needed}; "
                "all nodes need data of one kind",
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


def one_client(kind: DataKind) -> Federation:
    """A stand-in with one client of one row, from which a model is built."""
    return _federation(kind, ["client"], [1], [1], None)


def stand_in(kind: DataKind, descriptions: Sequence[Description]) -> Federation:
    """A stand-in for the clients of all nodes, node by node."""
    names, train, test, validation = (
        [each for node in descriptions for each in getattr(node.clients, column)]
        for column in ("names", "train", "test", "validation")
    )
    central = sum(each.central_validation for each in descriptions)
    return _federation(kind, names, train, test, validation or central or None)


def _federation(
    kind: DataKind,
    names: Sequence[str],
    train: Sequence[int],
    test: Sequence[int],
    validation: Sequence[int] | int | None,
) -> Federation:
    """A stand-in of these clients; a number of validation rows means rows of no client."""

    def x(rows: int) -> Features:
        return kind.tree(
            lambda each: np.broadcast_to(np.array(each.greatest, each.type), (rows, *each.shape))
        )

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
        None if kind.columns is None else Columns.of_json(kind.columns),
    )


def _same_rows(key: jax.Array, rows: Any) -> Any:
    """Stands for the augmentation of the nodes."""
    del key
    return rows


DESCRIBE_EVERY = 2.0
"""Seconds between looks for nodes that have joined."""

DESCRIBE_WAIT = 10.0
"""Seconds of a wait for descriptions, so that a silent node does not hold up others that come
later. Each further wait for silent nodes is twice as long, since they may be slow."""

SILENT = NO_ANSWER, NOT_CONNECTED
"""Problems that wait for the node, without a word."""


class Joined(NamedTuple):
    """The nodes of a deployment, in the order of their names.

    Attributes:
        nodes: The identifier of each on the network.
        descriptions: Each node's description of itself.
    """

    nodes: tuple[int, ...]
    descriptions: tuple[Description, ...]

    @property
    def kind(self) -> DataKind:
        """The kind of data that all nodes share."""
        kinds = [each.kind for each in self.descriptions]  # `check_fits` was asked of them
        arrays = zip(*(kind.features for kind in kinds), strict=True)
        features = [
            same[0].model_copy(update={"greatest": max(each.greatest for each in same)})
            for same in arrays
        ]
        classes = max(kind.classes for kind in kinds)
        return kinds[0].model_copy(update={"classes": classes, "features": features})

    @property
    def owner(self) -> NDArray[np.int64]:
        """The index of each client's node, shape (clients,)."""
        counts = [len(each.clients.names) for each in self.descriptions]
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def reports(self) -> set[str]:
        """The measures that at least one node reports."""
        return {measure for each in self.descriptions for measure in each.reports}

    @property
    def clients(self) -> dict[str, dict[str, int]]:
        """The training rows of each client, by node and client, in their order."""
        return {
            each.name: dict(zip(each.clients.names, each.clients.train, strict=True))
            for each in self.descriptions
        }


def join(
    conversation: Conversation,
    nodes: int,
    waiting: Callable[[Sequence[str]], None] = lambda _: None,
    *,
    names: Sequence[str] = (),
) -> Joined:
    """Wait for nodes to join.

    A node that cannot join, or does not fit those that joined before it, is left out, in one line,
    and asked again until the others are there.
    """
    names = list(distinct("deployment.names:", names))
    log = logging.getLogger(__name__)
    described: dict[int, Description] = {}
    problems: dict[int, str] = {}
    shown, wanted = -1, len(names) or nodes
    wait, end = DESCRIBE_WAIT, time.monotonic() + conversation.patience
    while True:
        new = [node for node in conversation.network.nodes() if node not in described]
        requests = {
            node: Request(version=VERSION, id=f"describe {secrets.token_hex(4)}", kind="describe")
            for node in new
        }
        patience = max(0.0, min(wait, end - time.monotonic()))
        answers = conversation.answers(conversation.begin_all(requests, patience=patience))
        for node, answer in answers.items():
            if isinstance(answer, Answered):
                try:
                    described[node] = _checked(conversation, answer, node, names, described)
                    problems.pop(node, None)
                    continue
                except DifferentColumnsError as error:
                    problem, lines = str(error), error.lines
                except InputError as error:
                    problem, lines = str(error), [str(error)]
            else:
                problem, lines = answer.why, [answer.why]
            if problem not in SILENT and problems.get(node, NO_ANSWER) in SILENT:
                for line in lines:
                    log.warning("node %s: %s; left out", node, line)
            problems[node] = problem
        silent = any(problems.get(node) == NO_ANSWER for node in new)
        wait = 2 * wait if silent else DESCRIBE_WAIT
        if len(described) != shown:
            shown = len(described)
            waiting([each.name for each in described.values()])
        if len(described) >= wanted:
            break
        have = [each.name for each in described.values()]
        missing = [f"{name} is missing" for name in names if name not in have]
        others = [f"{node}: {problem}" for node, problem in sorted(problems.items())]
        setting = f"names = {list(names)}" if names else f"nodes = {nodes}"
        require(
            time.monotonic() < end,
            f"deployment.{setting}: {len(have)} joined within {conversation.patience:g} s "
            f"({', '.join([*have, *missing, *others]) or 'none'})",
        )
        time.sleep(min(DESCRIBE_EVERY, conversation.patience / 10))
    ordered = sorted(described, key=lambda node: described[node].name)
    joined = Joined(tuple(ordered), tuple(described[node] for node in ordered))
    if "loss" not in joined.reports:
        log.warning(
            "no node reports losses: a run that diverges cannot be told from one that learns"
        )
    if line := class_warning(joined.descriptions):
        log.warning("%s", line)
    return joined


def _checked(
    conversation: Conversation,
    answer: Answered,
    node: int,
    names: Sequence[str],
    described: Mapping[int, Description],
) -> Description:
    """The description that a node answered; `InputError` if the node cannot join."""
    description = answer.head.description
    if description is None:
        raise InputError("it does not describe itself")
    require(
        description.version == __version__,
        f"it has fedprox {foreign(description.version)}; the coordinator has {__version__}, and "
        "results are the same only with the same version",
    )
    require(
        set(description.reports) <= set(REPORTS),
        f"it reports {foreign(description.reports)}; there are {', '.join(REPORTS)}",
    )
    name = description.name
    require(not names or name in names, f"its name {name!r} is not one of {', '.join(names)}")
    for other, each in described.items():
        require(
            each.name != name or other == node,
            f"its name {name!r} is that of node {other}; names of nodes must differ",
        )
    check_fits(description, described.values())
    require(conversation.network.may_be(node, name), f"it has not the key of node {name!r}")
    return description
