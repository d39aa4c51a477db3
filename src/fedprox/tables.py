"""Tables: files, data frames, arrays by column and rows, laid out client by client.

A table is read whole, but for a Parquet file's numbers, of which two row groups at a time are in
memory. Its rows are converted in blocks by several threads, each block's
columns one after another while they are in the processor's cache, and written to where the client's
rows lie. So no Python object is made for a row, and there is one copy beside the table: the
features.
"""

import datetime
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

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
    scaling,
    standardized,
    wrong_value,
)
from fedprox.errors import (
    InputError,
    choices,
    distinct,
    foreign,
    installing,
    reason,
    require,
    require_number,
    require_one_of,
    require_share,
    shown,
)
from fedprox.streams import Purpose, Streams, chosen_rows

T = TypeVar("T")

ROWS_AT_A_TIME = 2**16
"""Rows of a block: a column of it and its features fit into a processor's cache."""

MOST_WORDS = 1_000
"""Most values of a vocabulary that is not stated."""

SPLITS = ("train", "test", "validation")
"""The values of a column that says which part a row belongs to; a part's number is its position."""

WITHOUT_VALUES = ("number", "boolean", "date")
"""Kinds that need no vocabulary, so that a column need not be read before features are made."""

ALLOWED = "they must be numbers, truth values, words or dates"


class Stored(NamedTuple):
    """A column as its table holds it: an array, `Words`, or an array of pyarrow in chunks."""

    kind: Literal["number", "boolean", "words", "date"]
    values: Any

    def rows(self, start: int, stop: int) -> Any:
        """Some rows as a plain column, see `fedprox.columns.Plain`."""
        if isinstance(self.values, Words):
            return Words(self.values.codes[start:stop], self.values.values)
        if isinstance(self.values, np.ndarray):
            return self.values[start:stop]
        return self.values.slice(start, stop - start).to_numpy()


class Table(NamedTuple):
    """A table of any kind.

    Attributes:
        names: The columns' names.
        rows: Number of rows.
        column: (a column's name) -> the column.
        stretches: Where stretches of rows begin that can be read by themselves, and the last row's
            end: the row groups of a Parquet file, which are not all in memory at once.
        stretch: (a stretch, columns' names) -> its rows of these columns, by name.
        kind: (a column's name) -> its kind if it can be read by stretches, else None.
    """

    names: Sequence[str]
    rows: int
    column: Callable[[str], Stored]
    stretches: Sequence[int] = ()
    stretch: Callable[[int, Sequence[str]], dict[str, Stored]] = lambda *_: {}
    kind: Callable[[str], Any] = lambda _: None


def read_table(
    table: Any, columns: Iterable[str] | None = None, texts: Iterable[str] = ()
) -> Table:
    """A table of a file, a data frame, a dict of arrays or a sequence of rows.

    Of a file, only some columns are read, and some are read as texts, also if they are numbers.
    """
    if isinstance(table, str | Path):
        return _of_file(Path(table), columns, texts)
    if isinstance(table, Mapping):
        return _of_arrays(table)
    if isinstance(table, Sequence) and not isinstance(table, bytes):
        return _of_rows(table)
    return _of_frame(table)


def _of_file(path: Path, columns: Iterable[str] | None, texts: Iterable[str]) -> Table:
    """A file as pyarrow reads it."""
    kinds = {".csv": "csv", ".parquet": "parquet", ".feather": "feather", ".arrow": "feather"}
    kind = kinds.get(Path(path.name.removesuffix(".gz")).suffix.lower())
    require(kind is not None, f"table: {path}: its name must end in {', '.join(kinds)} or .csv.gz")
    require(path.is_file(), f"table: no file {path}")
    try:
        import pyarrow as pa
        from pyarrow import csv, feather
    except ImportError:
        raise InputError(
            f"table: {path}: the package pyarrow is not installed: {installing('table')}; or give "
            "a data frame"
        ) from None
    wanted = None if columns is None else list(dict.fromkeys(columns))
    with _naming(path):
        if kind == "parquet":
            return _of_parquet(path, wanted)
        if kind == "feather":
            require_columns(wanted or (), pa.ipc.open_file(path).schema.names)
            return _of_frame(feather.read_table(path, wanted))
        require_columns(wanted or (), csv.open_csv(path).schema.names)
        text = pa.dictionary(pa.int32(), pa.string())
        options = csv.ConvertOptions(
            column_types=dict.fromkeys(texts, text),
            include_columns=wanted,
            strings_can_be_null=True,
            auto_dict_encode=True,
            auto_dict_max_cardinality=MOST_WORDS,
        )
        return _of_frame(csv.read_csv(path, convert_options=options))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise errors of pyarrow as `InputError` with the file's path."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"table: {path}: {foreign(reason(error))}") from None


def _of_parquet(path: Path, wanted: Sequence[str] | None) -> Table:
    """A Parquet file, of which a column or a stretch is read at a time."""
    import pyarrow as pa
    from pyarrow import parquet

    metadata, schema = parquet.read_metadata(path), parquet.read_schema(path)
    require_columns(wanted or (), schema.names)
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    def opened() -> Any:
        return parquet.ParquetFile(path, metadata=metadata, read_dictionary=words)

    def column(name: str) -> Stored:
        with _naming(path), opened() as file:
            return _of_frame(file.read([name])).column(name)

    def stretch(i: int, names: Sequence[str]) -> dict[str, Stored]:
        with _naming(path), opened() as file:
            table = _of_frame(file.read_row_group(i, list(names)))
        return {name: table.column(name) for name in names}

    def kind(name: str) -> Any:
        of, types = schema.field(name).type, pa.types
        if types.is_integer(of) or types.is_floating(of):
            return "number"
        if types.is_boolean(of):
            return "boolean"
        return "date" if types.is_date(of) or types.is_timestamp(of) else None

    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    return Table(wanted or schema.names, begins[-1], column, begins, stretch, kind)


def require_columns(wanted: Iterable[str], names: Sequence[str]) -> None:
    """Raise `InputError` unless a table has all columns that are wanted."""
    for name in wanted:
        require(name in names, f"table: no column {name!r}; {choices(str(name), names)}")


def _of_frame(table: Any) -> Table:
    """A data frame by narwhals."""
    import narwhals.stable.v2 as nw

    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError:
        raise InputError(
            f"table: an object of type {type(table).__name__}; it must be a path, a data frame of "
            "pandas, polars or pyarrow, a dict of arrays, or a list of rows, each a dict"
        ) from None
    except nw.exceptions.NarwhalsError as error:  # such as two columns of one name
        raise InputError(f"table: {foreign(reason(error))}") from None

    def column(name: str) -> Stored:
        series = frame[name]
        if series.dtype == nw.Categorical and series.implementation.is_pyarrow():
            native = series.to_native()
            if native.type.value_type not in ("string", "large_string"):
                series = nw.from_native(native.cast(native.type.value_type), series_only=True)
        kind, missing = series.dtype, series.null_count()
        if missing == len(series):
            return Stored("number", np.full(len(series), np.nan))
        if kind.is_decimal():
            kind, series = nw.Float64(), series.cast(nw.Float64)
        if kind.is_numeric():
            return Stored("number", _values(series))
        if kind == nw.Boolean:
            return Stored("boolean", _values(series.cast(nw.Int8) if missing else series))
        if kind in (nw.Date, nw.Datetime):
            return Stored("date", _values(series))
        if kind in (nw.String, nw.Categorical, nw.Enum):
            return Stored("words", _coded(series))
        require(kind == nw.Object, f"column {name!r}: values of type {kind}; {ALLOWED}")
        return _of_list(name, series.to_list())

    return Table(frame.columns, len(frame), column)


def _values(series: Any) -> Any:
    """A series as an array, without a copy where its library has one; chunks stay chunks."""
    return series.to_native() if series.implementation.is_pyarrow() else series.to_numpy()


def _coded(series: Any) -> Words:
    """A series of words by number."""
    import narwhals.stable.v2 as nw

    if series.implementation.is_pyarrow():
        native = series.to_native()
        if not hasattr(native.type, "index_type"):
            native = native.dictionary_encode()
        chunks = native.unify_dictionaries().chunks
        codes = np.concatenate([chunk.indices.fill_null(-1).to_numpy() for chunk in chunks])
        return Words(codes, chunks[0].dictionary.to_pylist())
    words = series.cast(nw.String)
    values = words.drop_nulls().unique().to_list()
    numbers = list(range(len(values)))
    codes = words.replace_strict(values, numbers, default=-1, return_dtype=nw.Int32)
    return Words(codes.to_numpy(), values)


def _of_arrays(table: Mapping[Any, Any]) -> Table:
    """A dict of arrays, lists or series."""
    for name, given in table.items():
        require(isinstance(name, str), f"table: {name!r} is not a column's name")
        sized = hasattr(given, "__len__") and not isinstance(given, str | bytes | Mapping)
        require(
            sized and getattr(given, "ndim", 1) == 1,
            f"column {name!r}: {shown(given)[:50]}; it must be an array or a list of values",
        )
    sizes = {name: len(given) for name, given in table.items()}
    first = next(iter(sizes), "")
    for name, size in sizes.items():
        require(
            size == sizes[first],
            f"table: {sizes[first]:,} rows of column {first!r} and {size:,} of {name!r}; all "
            "columns must have equally many",
        )
    return Table(list(table), sizes.get(first, 0), lambda name: _of_array(name, table[name]))


def _of_array(name: str, given: Any) -> Stored:
    """A column of an array, a list or a series."""
    if np.ma.isMaskedArray(given):
        given = np.ma.asarray(given).tolist()  # with None for what is masked
    if isinstance(given, list | tuple):
        return _of_list(name, list(given))
    array = np.asarray(given)
    if array.dtype.kind in "iuf":
        return Stored("number", array)
    if array.dtype.kind == "b":
        return Stored("boolean", array)
    if array.dtype.kind == "M":
        return Stored("date", array)
    require(array.dtype.kind in "OU", f"column {name!r}: values of type {array.dtype}; {ALLOWED}")
    return _of_list(name, array.tolist())


def _of_rows(rows: Sequence[Any]) -> Table:
    """Rows, each a dict of its values by column."""
    names: list[str] = list(rows[0]) if rows and isinstance(rows[0], Mapping) else []
    for i, row in enumerate(rows, 1):
        require(
            isinstance(row, Mapping),
            f"table: row {i} is of type {type(row).__name__}; it must be a dict",
        )
        for name in [*names, *row]:
            require(
                name in row and name in names,
                f"table: row {i}: {'no' if name not in row else 'a new'} column {name!r}; all rows "
                "must have those of the first, None where a value is missing",
            )
    return _of_arrays({name: [row[name] for row in rows] for name in names})


def _of_list(name: str, given: list[Any]) -> Stored:
    """A column of Python's objects, all of one kind or missing: None, NaN and the like."""
    kinds = [_kind(value) for value in given]
    first = next((i for i, kind in enumerate(kinds) if kind), 0)
    for i, kind in enumerate(kinds):
        if kind == "other" or kind not in ("", kinds[first]):
            why = ALLOWED if kind == "other" else f"row {first + 1} has {shown(given[first])}"
            raise InputError(f"column {name!r}, row {i + 1}: {foreign(shown(given[i]))}: {why}")
    values = [value if kind else None for value, kind in zip(given, kinds, strict=True)]
    if not values or kinds[first] in ("", "number"):
        whole = all(isinstance(v, Integral) and abs(int(v)) < 2**63 for v in values)
        if whole and values:
            return Stored("number", np.array(values, np.int64))
        return Stored("number", np.array([np.nan if v is None else float(v) for v in values]))
    if kinds[first] == "words":
        seen: dict[str, int] = {}
        codes = [-1 if v is None else seen.setdefault(str(v), len(seen)) for v in values]
        return Stored("words", Words(np.array(codes), list(seen)))
    if kinds[first] == "date":
        return Stored("date", np.array([_without_zone(v) for v in values], "datetime64[us]"))
    if None in values:
        return Stored("boolean", np.array([np.nan if v is None else float(v) for v in values]))
    return Stored("boolean", np.array(values, bool))


def _kind(value: Any) -> str:
    """The kind of a value, "" if it is missing, "other" if it cannot be used."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return ""
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, Real | Decimal):
        return "" if value != value else "number"
    if isinstance(value, np.datetime64):
        return "" if np.isnat(value) else "date"
    if isinstance(value, datetime.date):
        return "date"
    return "words" if isinstance(value, str) else "other"


def _without_zone(value: Any) -> Any:
    """A time in UTC without a time zone, as NumPy has it."""
    zoned = isinstance(value, datetime.datetime) and value.tzinfo is not None
    return value.astimezone(datetime.UTC).replace(tzinfo=None) if zoned else value


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
        """What a function of (the first row, plain columns) returns for each block of rows.

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
        names, owners = _clients(client, read.column(client), read.rows)
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
    if fields["kind"] in ("category", "index") and not given.get("values"):
        fields["values"] = _vocabulary(name, stored, rows)
    if isinstance(missing, Mapping):
        both = name in missing and "missing" in given
        require(not both, f"column {name!r}: missing is stated twice, also in kinds")
        fields |= {"missing": missing[name]} if name in missing else {}
    elif missing == INDICATOR and "missing" not in given and _has_missing(stored, rows):
        fields["missing"] = missing
    return Column(name, **fields)


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


def _clients(name: str, stored: Stored, rows: int) -> tuple[list[str], Array]:
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
    """What a function of (first row, end) returns for each block of rows, by threads."""
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
