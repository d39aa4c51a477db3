"""A table's rows laid out client by client, and the features that become of them.

Rows are converted in blocks by several threads, each block's columns one after another while they
are in the processor's cache, and written to where the client's rows lie. So no Python object is
made for a row, and there is one copy beside the table: the features. Of a Parquet file's numbers
two row groups at a time are in memory.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedprox.columns import (
    FEW_CLASSES,
    INDICATOR,
    KINDS,
    MOST_CLASSES,
    NUMBERS,
    STANDARDIZE,
    Array,
    Column,
    Columns,
    Moments,
    Plain,
    Value,
    Words,
    features_of,
    joined,
    labels_of,
    moments_of,
    numbers_in,
    odd_word,
    scaling,
    standardized,
    wrong_value,
)
from fedprox.errors import (
    InputError,
    choices,
    distinct,
    require,
    require_number,
    require_one_of,
    require_share,
    shown,
)
from fedprox.streams import Purpose, Streams, chosen_rows
from fedprox.tables import MOST_WORDS, Stored, Table, read_table, require_columns

T = TypeVar("T")

ROWS_AT_A_TIME = 2**16
"""Rows of a block: a column of it and its features fit into a processor's cache."""

SPLITS = ("train", "test", "validation")
"""The values of a column that says which part a row belongs to; a part's number is its position."""

WITHOUT_VALUES = ("number", "boolean", "date")
"""Kinds that need no vocabulary, so that a column need not be read before features are made."""


@dataclass(frozen=True)
class Layout:
    """The rows of a table by client, before they are features.

    Attributes:
        source: The table.
        held: Its columns that are used, in memory; without values if they are read by stretches.
        columns: How they become features and labels.
        names: The clients' names.
        owners: The client of each row.
        parts: The part of each row, a position in `SPLITS`.
    """

    source: Table
    held: Mapping[str, Stored]
    columns: Columns
    names: Sequence[str]
    owners: Array
    parts: Array

    def by_blocks(self, work: Callable[[int, Plain], T]) -> list[T]:
        """The results of a function of (the first row, plain columns) for each block of rows.

        Threads work at the blocks of a stretch while the next one is read.
        """
        held = {name: stored for name, stored in self.held.items() if stored.values is not None}
        others = [name for name in self.held if name not in held]
        ends = self.source.stretches if others else (0, len(self.owners))

        def block(begin: int, read: dict[str, Stored], start: int, stop: int) -> T:
            plain = {name: stored.rows(start, stop) for name, stored in held.items()}
            plain |= {
                name: stored.rows(start - begin, stop - begin) for name, stored in read.items()
            }
            return work(start, plain)

        done: list[T] = []
        with ThreadPoolExecutor(_cores()) as pool:
            pending: list[Future[T]] = []
            for i, (begin, end) in enumerate(pairwise(ends)):
                read = self.source.stretch(i, others) if others else {}
                now = [pool.submit(block, begin, read, *span) for span in _spans(begin, end)]
                done += [each.result() for each in pending]
                pending = now
            return done + [each.result() for each in pending]


def lay_out(
    table: Any,
    *,
    client: str | None,
    client_name: str | None,
    label: str,
    features: Sequence[str] | None,
    test: str | float | None,
    kinds: Mapping[str, Any] | None,
    missing: Mapping[str, Value] | str | None,
    standardize: Any,
    seed: int,
) -> Layout:
    """The rows of a table by client; the arguments are those of `Federation.from_table`."""
    require(
        (client is None) != (client_name is None),
        "table: give either client, the column that names each row's client, or client_name, the "
        "name of the one client whose rows these are",
    )
    split = test if isinstance(test, str) else None
    own = [name for name in (client, split) if name is not None]
    if isinstance(features, str):
        features = [features]
    kinds = {} if kinds is None else kinds
    require(isinstance(kinds, Mapping), f"kinds = {shown(kinds)}; it must be a table by column")
    require(
        missing in (None, INDICATOR) or isinstance(missing, Mapping),
        f'missing = {shown(missing)}; it must be a table by column, or "column"',
    )
    given = {name: _stated(name, kind) for name, kind in kinds.items()}
    read = read_table(
        table,
        None if features is None else [*features, label, *own],
        [name for name, each in given.items() if are_texts(each.get("values"))],
    )
    if features is None:
        features = [name for name in read.names if name not in (label, *own)]
    require_columns([*features, label, *own], read.names)
    list(distinct("table: a column is used twice:", [*features, label, *own]))
    for what, entries in (("kinds", kinds), ("missing", missing)):
        for name in entries if isinstance(entries, Mapping) else ():
            require(
                name in features or (name == label and what == "kinds"),
                f"{what}: {name!r} is none of the columns that are used; "
                f"{choices(str(name), [*features, label])}",
            )
    require(read.rows, "table: no rows; at least one is needed")
    used = {label: read.column(label)}
    for name in features:
        stated = given.get(name, {}).get("kind", "number")
        kind = read.kind(name) if stated in WITHOUT_VALUES and missing != INDICATOR else None
        used[name] = Stored(kind, None) if kind else read.column(name)
    names: Sequence[str]
    if client is not None:
        names, owners = clients_of(client, read.column(client), read.rows)
    else:
        require(
            isinstance(client_name, str) and client_name,
            f"client_name = {client_name!r}; it must be a name",
        )
        names, owners = [str(client_name)], np.zeros(read.rows, np.int64)
    parts = np.zeros(read.rows, np.uint8)
    if split is not None:
        parts = _splits(split, read.column(split))
    elif test is not None:
        parts = _drawn(owners, names, test, seed)
    made = [_column(name, used[name], read.rows, given.get(name, {}), missing) for name in features]
    columns = Columns(tuple(made), _label(label, used[label], read.rows, given.get(label, {})))
    return Layout(read, used, _with_numbers(columns, standardize), names, owners, parts)


def _stated(name: str, given: Any) -> dict[str, Any]:
    """The fields of a column that an entry of `kinds` states."""
    if isinstance(given, Column):
        require(given.name == name, f"kinds: {name!r} is a column of the name {given.name!r}")
        return {k: v for k, v in asdict(given).items() if k != "name" and v not in ((), None, "")}
    if isinstance(given, str):
        given = {"kind": given}
    allowed = ("kind", "values", "missing", "unit")
    require(
        isinstance(given, Mapping) and set(given) <= set(allowed),
        f"kinds: {name!r}: {shown(given)}; it must be one of {', '.join(KINDS)}, or a table with "
        f"some of {', '.join(allowed)}",
    )
    return dict(given)


def are_texts(values: Any) -> bool:
    """Whether a vocabulary has words alone, so that a CSV file's column is read as texts."""
    return bool(values) and all(isinstance(value, str) for value in values)


def _column(
    name: str,
    stored: Stored,
    rows: int,
    given: Mapping[str, Any],
    missing: Mapping[str, Value] | str | None,
) -> Column:
    """A column of features: what is stated of it, else what its values are."""
    fields = dict(given)
    if "kind" not in given:
        require(
            stored.kind != "date",
            f'column {name!r}: dates; kinds = {{{name!r}: "date"}} makes numbers of them, days '
            "since 1970-01-01, or leave the column out of features",
        )
        fields["kind"] = "category" if stored.kind == "words" else stored.kind
        if isinstance(stored.values, Words):
            _require_words(name, stored.values)
    if fields["kind"] in ("category", "index") and not given.get("values"):
        fields["values"] = _vocabulary(name, stored, rows)
    if isinstance(missing, Mapping):
        both = name in missing and "missing" in given
        require(not both, f"column {name!r}: missing is stated twice, also in kinds")
        fields |= {"missing": missing[name]} if name in missing else {}
    elif missing == INDICATOR and "missing" not in given and _has_missing(stored, rows):
        fields["missing"] = missing
    return Column(name, **fields)


def _require_words(name: str, given: Words) -> None:
    """Raise `InputError` if a column has words among numbers, mostly, and no kind is stated."""
    used = [given.values[code] for code in np.unique(given.codes[given.codes >= 0])]
    if len(used) / 2 < numbers_in(used) < len(used):
        quoted = repr(name)
        why = (
            f'a word, where most are numbers; kinds = {{{quoted}: "number"}} asks for numbers '
            'alone, and "category" takes each value as a word'
        )
        raise wrong_value(name, given, odd_word(given), 0, why)


def _label(name: str, stored: Stored, rows: int, given: Mapping[str, Any]) -> Column:
    """The column of labels; whole numbers from 0 are classes, as in `Federation.from_arrays`."""
    if "kind" in given or stored.kind != "number":
        return _column(name, stored, rows, given, None)
    ends = by_blocks(rows, lambda *rows: _range(stored.rows(*rows)))
    least, most = min(each[0] for each in ends), max(each[1] for each in ends)
    floats = any(each[2] for each in ends)
    if any(not each[3] for each in ends) or (floats and not 0 <= least <= most < FEW_CLASSES):
        return Column(name, "number", **given)
    require(
        least >= 0 and most < MOST_CLASSES,
        f"column {name!r}: whole numbers from {least:g} to {most:g}; classes are 0 to "
        f'{MOST_CLASSES - 1}, and kinds = {{{name!r}: "number"}} makes numbers of them to predict',
    )
    return Column(name, "category", tuple(range(int(most) + 1)), **given)


def _range(block: Array) -> tuple[float, float, bool, bool]:
    """The least and the greatest number, whether they are floats, and whether all are whole."""
    known = block[~np.isnan(block)] if block.dtype.kind == "f" else block
    floats = block.dtype.kind == "f"
    whole = not floats or bool((known == np.floor(known)).all())
    return float(known.min(initial=0)), float(known.max(initial=0)), floats, whole


def _vocabulary(name: str, stored: Stored, rows: int) -> tuple[Value, ...]:
    """The values of a column in order."""
    values = _different(stored, rows)
    require(
        len(values) <= MOST_WORDS,
        f"column {name!r}: {len(values):,} different values; state them, kinds = {{{name!r}: "
        '{"kind": ..., "values": [...]}}, or leave the column out of features',
    )
    require(values, f"column {name!r}: no values; leave the column out of features")
    return tuple(values)


def _different(stored: Stored, rows: int) -> list[Any]:
    """The different values of a column that are not missing, sorted; whole numbers as such."""
    if isinstance(stored.values, Words):
        codes, values = stored.values
        used = np.bincount(codes[codes >= 0], minlength=len(values))
        return sorted(value for value, count in zip(values, used.tolist(), strict=True) if count)
    found = np.unique(np.concatenate(by_blocks(rows, lambda *r: np.unique(stored.rows(*r)))))
    known = found[~_absent(found)]
    return [int(v) if known.dtype.kind == "f" and v == int(v) else v for v in known.tolist()]


def _has_missing(stored: Stored, rows: int) -> bool:
    """Whether a column has a missing value."""
    if isinstance(stored.values, Words):
        return bool((stored.values.codes < 0).any())
    return any(by_blocks(rows, lambda *rows: bool((_absent(stored.rows(*rows))).any())))


def _absent(block: Array) -> Array:
    """Where an array's values are missing."""
    return block != block  # NaN and NaT


def _with_numbers(columns: Columns, standardize: Any) -> Columns:
    """Columns that are standardized as `standardize` says."""
    if not isinstance(standardize, Mapping):
        require_one_of("standardize", standardize, STANDARDIZE[:2], optional=True)
        return replace(columns, standardize=standardize)
    names = [column.name for column in columns.numeric]
    for name, pair in standardize.items():
        require(
            name in names,
            f"standardize: {name!r} is no column of numbers; {choices(str(name), names)}",
        )
        require(
            isinstance(pair, Sequence) and len(pair) == 2,
            f"standardize: {name!r}: {shown(pair)}; it must be [mean, scale]",
        )
        require_number(f"standardize: {name!r}: mean", pair[0], least=-np.inf)
        require_number(f"standardize: {name!r}: scale", pair[1], positive=True)
    pairs = [standardize.get(name, (0.0, 1.0)) for name in names]
    mean, scale = (tuple(float(pair[i]) for pair in pairs) for i in range(2))
    return replace(columns, standardize="given", mean=mean, scale=scale)


def clients_of(name: str, stored: Stored, rows: int) -> tuple[list[str], Array]:
    """The clients' names, sorted, and the client of each row."""
    absent = by_blocks(rows, lambda *rows: _first_missing(stored.rows(*rows)))
    for block, row in enumerate(absent):
        if row is not None:
            at = block * ROWS_AT_A_TIME + row + 1
            raise InputError(
                f"column {name!r}, row {at}: a missing value; each row needs its client"
            )
    wrong = f"column {name!r}: the clients' names must be words or whole numbers"
    require(stored.kind in ("number", "words"), wrong)
    values = _different(stored, rows)
    require(all(isinstance(value, str | int) for value in values), wrong)
    if isinstance(stored.values, Words):
        places = {value: i for i, value in enumerate(values)}
        numbers = np.array([places.get(value, -1) for value in stored.values.values], np.int32)
        return values, numbers[stored.values.codes]
    known = np.array(values)
    found = by_blocks(rows, lambda *rows: np.searchsorted(known, stored.rows(*rows)))
    return list(map(str, values)), np.concatenate(found).astype(np.int32)


def _first_missing(block: Array | Words) -> int | None:
    absent = block.codes < 0 if isinstance(block, Words) else _absent(block)
    return int(np.argmax(absent)) if absent.any() else None


def _splits(name: str, stored: Stored) -> Array:
    """The part of each row, of a column that says it."""
    allowed = f"it must be one of {', '.join(SPLITS)}"
    require(stored.kind == "words", f"column {name!r}: no words; {allowed}")
    codes, values = stored.values
    numbers = np.array([*(SPLITS.index(v) if v in SPLITS else 255 for v in values), 255], np.uint8)
    parts = numbers[codes]
    if (parts == 255).any():
        raise wrong_value(name, stored.values, int(np.argmax(parts == 255)), 0, allowed)
    return parts


def _drawn(owners: Array, names: Sequence[str], share: Any, seed: int) -> Array:
    """The part of each row, test rows being drawn by (seed, the client's name)."""
    require_share("test", share)
    keys = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) for name in names]
    streams = Streams(seed, Purpose.SPLIT)
    chosen = chosen_rows(np.bincount(owners), share, (streams.at(0, key) for key in keys))
    require(chosen.any(), f"test = {share}: no client has a row to spare; give a larger share")
    parts = np.zeros(len(owners), np.uint8)
    parts[np.argsort(owners, kind="stable")[chosen]] = SPLITS.index("test")
    return parts


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spans(begin: int, end: int) -> list[tuple[int, int]]:
    """The first row and the end of each block of rows."""
    return [(at, min(at + ROWS_AT_A_TIME, end)) for at in range(begin, end, ROWS_AT_A_TIME)]


def by_blocks(rows: int, work: Callable[[int, int], T]) -> list[T]:
    """The results of a function of (first row, end) for each block of rows, by threads."""
    with ThreadPoolExecutor(_cores()) as pool:
        return list(pool.map(lambda span: work(*span), _spans(0, rows)))


def training_moments(layout: Layout, *, by_client: bool = False) -> Moments:
    """The moments of all training rows, or of each client's."""
    columns, training = layout.columns, layout.parts == SPLITS.index("train")
    if by_client:
        rows = len(training)
        whole = {}
        for name in (column.name for column in columns.numeric):
            stored = layout.held[name]
            held = stored if stored.values is not None else layout.source.column(name)
            whole[name] = held.rows(0, rows)
        clients = len(layout.names)
        return moments_of(columns, whole, chosen=training, owners=layout.owners, clients=clients)

    def of(start: int, block: Plain) -> Moments:
        chosen = training[start : start + len(block[columns.label.name])]
        return moments_of(columns, block, first=start, chosen=None if chosen.all() else chosen)

    return joined(Moments(*map(np.concatenate, zip(*layout.by_blocks(of), strict=True))))


def _whole_rows(array: Array) -> Array:
    """The rows of an array as one value each, which NumPy moves faster than rows of numbers."""
    if array.ndim == 1 or not array.shape[1]:
        return array
    return array.view(np.dtype((np.void, array.itemsize * array.shape[1])))[:, 0]


def _places(keys: Array, most: int) -> Array:
    """Where each row lies when rows are sorted by keys below a number, otherwise in their order."""
    places = np.empty(len(keys), np.int64)
    small = keys.astype(np.uint16) if most <= 2**16 else keys  # of 16 bits: in linear time
    places[np.argsort(small, kind="stable")] = np.arange(len(keys))
    return places


class Part(NamedTuple):
    """The rows of one part, client by client: the fields of `fedprox.Rows`."""

    x: Any
    y: Array
    offsets: NDArray[np.int64]


def filled(layout: Layout) -> tuple[Columns, list[Part]]:
    """The columns, with the numbers that standardize them, and the rows of each of `SPLITS`."""
    columns, numbers = layout.columns, None
    if columns.standardize == "client":
        numbers = scaling(training_moments(layout, by_client=True))
    elif columns.standardize == "federation" and columns.mean is None:
        columns = standardized(columns, training_moments(layout))
    rows, clients = len(layout.owners), len(layout.names)
    key = layout.parts * np.int64(clients) + layout.owners
    place = _places(key, clients * len(SPLITS))
    x = np.empty((rows, len(columns.names)), np.float32)
    indices = {column.name: np.empty(rows, np.int32) for column in columns.indices}
    y = np.empty(rows, np.int32 if columns.classes else np.float32)

    def write(start: int, block: Plain) -> None:
        labels = labels_of(columns, block, first=start)
        rows = slice(start, start + len(labels))
        at, of = place[rows], layout.owners[rows]
        y[at] = labels
        own = None if numbers is None else (numbers[0][of], numbers[1][of])
        features = features_of(columns, block, first=start, numbers=own)
        inputs = features if indices else {NUMBERS: features}
        for name, array in {NUMBERS: x, **indices}.items():
            _whole_rows(array)[at] = _whole_rows(inputs[name])

    layout.by_blocks(write)
    sizes = np.bincount(key, minlength=clients * len(SPLITS)).reshape(len(SPLITS), clients)
    ends = np.cumsum(sizes.sum(axis=1))
    parts = []
    for end, of_clients in zip(ends.tolist(), sizes, strict=True):
        own = slice(end - int(of_clients.sum()), end)
        inputs = {name: each[own] for name, each in indices.items()}
        offsets = np.concatenate([[0], np.cumsum(of_clients)])
        features = {NUMBERS: x[own], **inputs} if inputs else x[own]
        parts.append(Part(features, y[own], offsets))
    return columns, parts
