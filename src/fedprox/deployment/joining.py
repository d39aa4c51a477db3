"""Nodes join: what a node says of its data, and what the coordinator makes of it.

The coordinator has no data. It draws cohorts from a stand-in, a federation with the clients' names
and sizes whose rows are views of a single number. Nodes and coordinator build the model from a
stand-in, so that all of them build the same one, also where a node lacks a class.
"""

import json
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
from fedprox.deployment.conversation import (
    NO_ANSWER,
    NOT_CONNECTED,
    Answered,
    Conversation,
    Failed,
)
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
from fedprox.errors import MOST_QUOTED, InputError, distinct, foreign, plural, require
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
    parts = [
        plural(len(clients.names), "client"),
        plural(sum(clients.train), "training row"),
        plural(sum(clients.test), "test row"),
    ]
    if kind.classes:
        parts.append(f"{plural(kind.classes, 'class')}, labels up to {kind.classes - 1}")
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
    have = "; ".join(f"{classes:,} on {_named(names)}" for classes, names in sorted(nodes.items()))
    most = max(nodes)
    return (
        f"nodes differ in their number of classes: {have}. The run has {most:,}, labels 0 to "
        f"{most - 1}. A label must mean the same on all nodes, and labels that none of them has "
        "are classes all the same; each node shows which of its labels occur when it starts"
    )


NAMED, RANGES = 3, 10
"""Most nodes of a number of classes or of a unit, and ranges of labels or columns, that a line
names."""


def unit_warning(descriptions: Sequence[Description]) -> str:
    """That a unit of some nodes is compared with nothing; empty if all declare it, or none."""
    units: dict[str, dict[str, list[str]]] = {}
    for each in descriptions:
        columns = Columns.of_json(each.kind.columns) if each.kind.columns else None
        for column in (*columns.features, columns.label) if columns else ():
            units.setdefault(column.name, {}).setdefault(column.unit, []).append(each.name)
    found = [
        f"{name!r}: " + ", ".join(f"{unit or 'none'} on {_named(on)}" for unit, on in by.items())
        for name, by in units.items()
        if len(by) > 1
    ]
    if not found:
        return ""
    listed = "; ".join(found[:RANGES]) + "; ..." * (len(found) > RANGES)
    return f"a unit that only some nodes declare is compared with nothing: column {listed}"


def _named(nodes: Sequence[str]) -> str:
    return f"{', '.join(nodes[:NAMED])}{', ...' * (len(nodes) > NAMED)}"


def silence_in_words(descriptions: Sequence[Description], enough: int) -> str:
    """That no losses are known, since fewer nodes than are enough report them; empty if they are.

    It names the nodes that do not report them, and why.
    """
    silent: dict[str, list[str]] = {}
    for each in descriptions:
        if "loss" not in each.reports:
            silent.setdefault(foreign(each.silent) or "no reason given", []).append(each.name)
    count = len(descriptions) - sum(map(len, silent.values()))
    if count >= enough:
        return ""
    who = "no node reports" if not count else f"{count} of {len(descriptions)} nodes report"
    needed = f", and a secure sum needs those of {enough}" * (enough > 1)
    why = "; ".join(f"{_named(names)}: {why}" for why, names in silent.items())
    return f"{who} losses{needed}: a run that diverges cannot be told from one that learns ({why})"


def require_same_keys(descriptions: Sequence[Description]) -> None:
    """Raise `InputError` if a node knows another by a key that it has not, for secure sums."""
    own = {each.name: each.keys.get(each.name) for each in descriptions}
    for name, key in own.items():
        others = [
            repr(each.name) for each in descriptions if key and each.keys.get(name, key) != key
        ]
        require(
            not others,
            f"deployment.secure: node {name!r} has another key than the file of it among "
            f"policy.secure.peers on {', '.join(others)}; put its new .pub there, and start "
            f"{'that node' if len(others) == 1 else 'these nodes'} again",
        )


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

ORDER = "order of columns"
"""A difference that a line says how to mend."""


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
        ORDER: map(_listed, by_name),
        "standardize": (each.standardize or "none" for each in (own, other)),
        "mean": (_listed(mean) for mean, _ in numbers),
        "scale": (_listed(scale) for _, scale in numbers),
    }
    return [(what, one, two) for what, (one, two) in pairs.items() if one != two]


def _of_column(what: str, own: Column | None, other: Column | None) -> list[tuple[str, str, str]]:
    """In what two columns differ."""
    if own is None or other is None:
        first, second = (
            "no such column" if c is None else f"a column of kind {c.kind}" for c in (own, other)
        )
        return [(what, first, second)]
    pairs = {
        f"{what}, name": (own.name, other.name),
        f"{what}, kind": (own.kind, other.kind),
        f"{what}, values": (_listed(own.values), _listed(other.values)),
        f"{what}, missing": (_or_none(own.missing), _or_none(other.missing)),
        f"{what}, unit": (own.unit or other.unit, other.unit or own.unit),
    }
    return [(each, one, two) for each, (one, two) in pairs.items() if one != two]


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values)) or "none"


def _or_none(value: Any) -> str:
    return "none" if value is None else str(value)


def _difference_in_words(what: str, have: str, needed: str, known: str, theirs: DataKind) -> str:
    """In what a node differs from one that is known, and what to write into its file."""
    if what != ORDER:
        return f"{what}: it has {foreign(have)}, and {known} has {foreign(needed)}"
    names = [column.name for column in Columns.of_json(theirs.columns).features]
    listed = json.dumps(names, ensure_ascii=False)
    if len(listed) > 2 * MOST_QUOTED:
        listed = "[...], in its order"
    return f"{what}: not that of {known}; [data] of its file needs features = {listed}"


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
        lines = [_difference_in_words(*each, known, theirs) for each in differences(mine, theirs)]
        if lines:
            raise DifferentColumnsError(lines)
        for key in {**mine.arrays, **theirs.arrays, **dict.fromkeys(ALIKE)}:
            have, needed = (
                getattr(kind, key) if key in ALIKE else kind.arrays.get(key, "no such array")
                for kind in (mine, theirs)
            )
            require(
                have == needed,
                f"{foreign(key.replace('_', ' '))}: it has {foreign(have)}, and {known} has "
                f"{needed}; all nodes need data of one kind",
            )
        classes = bool(mine.classes)
        are, are_not = ("are", "are not") if classes else ("are not", "are")
        require(
            classes == bool(theirs.classes),
            f"its labels {are} classes, and those of {known} {are_not}",
        )
        validated = bool(description.clients.validation)
        have, have_not = ("have", "have none") if validated else ("have no", "have some")
        require(
            validated == bool(other.clients.validation),
            f"its clients {have} validation rows, and those of {known} {have_not}; all nodes or "
            "none must have them",
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

    A node that cannot join, or does not fit those that joined before it, is left out in one line,
    which the node is told too. It is asked again until the others are there.
    """
    names = list(distinct("deployment.names:", names))
    log = logging.getLogger(__name__)
    described: dict[int, Description] = {}
    problems: dict[int, str] = {}
    left_out: dict[int, str] = {}
    shown, wanted = -1, len(names) or nodes
    wait, end = DESCRIBE_WAIT, time.monotonic() + conversation.patience
    while True:
        new = [node for node in conversation.network.nodes() if node not in described]
        requests = {node: _describe(left_out.get(node, "")) for node in new}
        patience = max(0.0, min(wait, end - time.monotonic()))
        answers = conversation.answers(conversation.begin_all(requests, patience=patience))
        for node, answer in answers.items():
            try:
                described[node] = _checked(conversation, answer, node, names, described)
                problems.pop(node, None)
                left_out.pop(node, None)
            except InputError as error:
                problems[node] = str(error)
                if problems[node] not in (*SILENT, left_out.get(node)):
                    left_out[node] = problems[node]
                    _log_left_out(conversation.network.name_of(node) or node, error)
        silent = any(problems.get(node) == NO_ANSWER for node in new)
        wait = 2 * wait if silent else DESCRIBE_WAIT
        if len(described) != shown:
            shown = len(described)
            waiting([each.name for each in described.values()])
        over = time.monotonic() >= end
        if over or len(described) >= wanted:
            _tell(conversation, left_out)
        if len(described) >= wanted:
            break
        have = [each.name for each in described.values()]
        known = {node: conversation.network.name_of(node) or str(node) for node in problems}
        missing = [f"{name} is missing" for name in names if name not in (*have, *known.values())]
        others = [f"{known[each]}: {why}" for each, why in sorted((problems | left_out).items())]
        setting = f"names = {list(names)}" if names else f"nodes = {nodes}"
        require(
            not over,
            f"deployment.{setting}: {len(have)} joined within {conversation.patience:g} s "
            f"({', '.join([*have, *missing, *others]) or 'none'})",
        )
        time.sleep(min(DESCRIBE_EVERY, conversation.patience / 10))
    ordered = sorted(described, key=lambda node: described[node].name)
    joined = Joined(tuple(ordered), tuple(described[node] for node in ordered))
    for warning in (class_warning, unit_warning):
        if line := warning(joined.descriptions):
            log.warning("%s", line)
    return joined


def _describe(left_out: str) -> Request:
    """A request that a node describe itself, which tells it why the run may go on without it."""
    number = f"describe {secrets.token_hex(4)}"
    return Request(version=VERSION, id=number, kind="describe", left_out=left_out)


def _log_left_out(node: str | int, error: InputError) -> None:
    """Log why a node is left out, with a line for each difference of columns."""
    lines = error.lines if isinstance(error, DifferentColumnsError) else [str(error)]
    for line in lines:
        logging.getLogger(__name__).warning("node %r: %s; left out", node, line)


def _tell(conversation: Conversation, left_out: Mapping[int, str]) -> None:
    """Tell nodes why the run goes on without them; one that does not answer soon may not know."""
    online = set(conversation.network.nodes())
    requests = {node: _describe(why) for node, why in left_out.items() if node in online}
    patience = min(DESCRIBE_WAIT, conversation.patience)
    conversation.answers(conversation.begin_all(requests, patience=patience))


def _checked(
    conversation: Conversation,
    answer: Answered | Failed,
    node: int,
    names: Sequence[str],
    described: Mapping[int, Description],
) -> Description:
    """The description that a node answered; `InputError` if the node cannot join."""
    if isinstance(answer, Failed):
        raise InputError(answer.why)
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
    require(conversation.network.may_be(node, name), f"it has not the key of node {name!r}")
    for other, each in described.items():
        require(
            each.name != name or other == node,
            f"its name {name!r} is that of node {other}; names of nodes must differ",
        )
    check_fits(description, described.values())
    return description
