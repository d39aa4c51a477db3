"""Tables of any kind: files, data frames, arrays by column and rows.

A table is read whole, but for a Parquet file's numbers, which are read by row groups.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedprox.columns import (
    Words,
)
from fedprox.errors import (
    InputError,
    choices,
    foreign,
    installing,
    reason,
    require,
    shown,
)

MOST_WORDS = 1_000
"""Most values of a vocabulary that is not stated."""

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
            end. They are the row groups of a Parquet file, which are not all in memory at once.
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
