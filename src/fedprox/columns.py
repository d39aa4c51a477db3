"""Columns of a table: how its rows become features and labels, and what standardizes them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, distinct, foreign, require, require_number, require_one_of

Array = NDArray[Any]
Kind = Literal["number", "boolean", "category", "index", "date"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NUMERIC = ("number", "date")
"""Kinds that are standardized."""

CLASSES = ("boolean", "category")
"""Kinds of labels that are classes."""

MOST_CLASSES = 10_000
"""Most classes of integer labels without a number of classes; a larger label is refused."""

FEW_CLASSES = 20
"""Most classes of floating-point labels without a number of classes; larger labels are numbers."""

Standardize = Literal["federation", "client", "given"]
STANDARDIZE: tuple[Standardize, ...] = get_args(Standardize)

NUMBERS = "numbers"
"""Name of the array of all columns that are no "index", where features are a dict."""

MOST_SHOWN = 20
"""Most values of a vocabulary in a message."""

INDICATOR = "column"
"""Value of `Column.missing` for a further column that says where a value is missing."""

Value = str | int | float
"""A value of a table: a word, a number, or True or False."""


@dataclass(frozen=True)
class Column:
    """A column of a table as a model reads it.

    Attributes:
        name: Name in the table.
        kind: "number"; "boolean", which is 0 or 1; or "category", a column of 0 and 1 for each of
            `values`. "index" is the position in `values` as a whole number, for embeddings, and
            "date" the days since 1970-01-01. A label is a "number", or it is a class: "boolean", or
            "category", whose classes are the positions in `values`.
        values: The vocabulary of a "category" or an "index", in order; other kinds have none.
        missing: The replacement of a missing value: a number, or one of the values. "column" is for
            0 after standardization and a further column, after this one, that is 1 there. None if a
            missing value is an error.
        unit: Unit in words, which the nodes of a deployment compare.

    Raises:
        InputError: If the fields do not fit together.

    Example:
        >>> import fedprox as fp
        >>> fp.Column("sex", "category", values=("f", "m"), missing="column").features
        ('sex=f', 'sex=m', 'sex missing')
    """

    name: str
    kind: Kind
    values: tuple[Value, ...] = ()
    missing: Value | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        require(isinstance(self.name, str), f"column: {self.name!r} is not a name")
        where = f"column {self.name!r}"
        require_one_of(f"{where}: kind", self.kind, KINDS)
        require(isinstance(self.unit, str), f"{where}: unit = {self.unit!r}; it must be a string")
        listed = isinstance(self.values, Sequence) and not isinstance(self.values, str)
        require(listed, f"{where}: values = {self.values!r}; they must be a list")
        object.__setattr__(self, "values", tuple(self.values))
        for value in self.values:
            require(
                isinstance(value, Value),
                f"{where}: values has {value!r}; a value is a word, a number, or true or false",
            )
        list(distinct(f"{where}: values:", map(str, self.values)))
        worded = self.kind in ("category", "index")
        require(self.values or not worded, f"{where}: no values; a {self.kind} needs at least one")
        require(worded or not self.values, f"{where}: values of a {self.kind}; leave them out")
        if self.missing is None:
            return
        if self.missing == INDICATOR:
            require(
                self.kind != "index",
                f'{where}: missing = "column"; an index has none: give one of its values',
            )
        elif worded:
            require(
                self.missing in self.values,
                f"{where}: missing = {self.missing!r}; it must be one of the values"
                + ', or "column"' * (self.kind == "category"),
            )
        elif self.kind == "boolean":
            require(
                self.missing in (0, 1),
                f'{where}: missing = {self.missing!r}; it must be true, false or "column"',
            )
        else:
            require(
                not isinstance(self.missing, str),
                f'{where}: missing = {self.missing!r}; it must be a number or "column"',
            )
            require_number(f"{where}: missing", self.missing, least=-np.inf)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns that it becomes; none for an "index"."""
        if self.kind == "index":
            return ()
        words = [f"{self.name}={value}" for value in self.values] or [self.name]
        return (*words, *[f"{self.name} missing"] * (self.missing == INDICATOR))


@dataclass(frozen=True)
class Columns:
    r"""How rows of a table become features and labels.

    The columns of `features` that are no "index" make one array, float32 (rows, d), in their order.
    If there is an "index", features are a dict: this array as "numbers", and int32 (rows,) for each
    index under its column's name. A value :math:`v` of a "number" or a "date" is standardized as
    :math:`(v - \mathrm{mean}) / \mathrm{scale}`.

    Attributes:
        features: The columns of the features.
        label: The column of the label.
        standardize: How numbers are standardized: "federation" by all clients' training rows;
            "client" by each client's own, whose means are not stored here; "given" by given
            numbers; None not at all.
        mean: The mean of each column that is standardized, in the order of `numeric`; None if not
            stored.
        scale: Likewise, above 0: the standard deviation, 1 for a constant column.

    Raises:
        InputError: If the fields do not fit together.

    Example:
        >>> import fedprox as fp
        >>> columns = fp.Columns(
        ...     (fp.Column("age", "number"), fp.Column("sex", "category", values=("f", "m"))),
        ...     fp.Column("ill", "boolean"), "given", mean=(50.0,), scale=(20.0,),
        ... )
        >>> fp.Columns.of_json(columns.as_json()) == columns
        True
    """

    features: tuple[Column, ...]
    label: Column
    standardize: Standardize | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        require(self.features, "features: no columns; at least one is needed")
        list(distinct("column", (column.name for column in (*self.features, self.label))))
        require_one_of("standardize", self.standardize, STANDARDIZE, optional=True)
        where = f"label {self.label.name!r}"
        require(
            self.label.kind in ("number", *CLASSES),
            f"{where}: kind = {self.label.kind!r}; it must be one of number, boolean, category",
        )
        require(self.label.missing is None, f"{where}: missing; a label is never made up")
        for column in self.indices:
            require(
                column.name.isidentifier() and column.name != NUMBERS,
                f"column {column.name!r}: the name of an index is that of a model's input: "
                'letters, digits and _, and not "numbers"',
            )
        for name, numbers in (("mean", self.mean), ("scale", self.scale)):
            if numbers is not None:
                object.__setattr__(self, name, tuple(map(float, numbers)))
                require(
                    len(numbers) == len(self.numeric),
                    f"{name}: {len(numbers)} numbers; {len(self.numeric)} columns are numbers",
                )
                for column, number in zip(self.numeric, numbers, strict=True):
                    least = -np.inf if name == "mean" else 0
                    where = f"{name} of column {column.name!r}"
                    require_number(where, number, least=least, positive=name == "scale")
        require((self.mean is None) == (self.scale is None), "mean and scale: give both or neither")

    @property
    def numeric(self) -> tuple[Column, ...]:
        """The columns that are standardized: numbers and dates."""
        return tuple(column for column in self.features if column.kind in NUMERIC)

    @property
    def indices(self) -> tuple[Column, ...]:
        """The columns that are inputs of their own."""
        return tuple(column for column in self.features if column.kind == "index")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the features' array, shape (d,)."""
        return tuple(name for column in self.features for name in column.features)

    @property
    def classes(self) -> int:
        """Number of classes, 0 if labels are numbers."""
        return 2 if self.label.kind == "boolean" else len(self.label.values)

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON and TOML hold them; those without a value are left out."""

        def column(of: Column) -> dict[str, Any]:
            given = {k: v for k, v in asdict(of).items() if v not in ((), None, "")}
            return given | ({"values": list(of.values)} if of.values else {})

        numbers = {"mean": self.mean, "scale": self.scale}
        return {
            "features": [column(each) for each in self.features],
            "label": column(self.label),
            **({"standardize": self.standardize} if self.standardize else {}),
            **{name: list(each) for name, each in numbers.items() if each is not None},
        }

    @classmethod
    def of_json(cls, given: Any, where: str = "columns") -> "Columns":
        """The columns that `as_json` wrote; `where` begins the message of an error."""

        def made(kind: Any, table: Any, what: str) -> Any:
            known = [field.name for field in fields(kind)]
            require(
                isinstance(table, Mapping) and set(table) <= set(known),
                f"{what}: it must be a table with some of {', '.join(known)}",
            )
            try:
                return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})
            except (TypeError, InputError) as error:
                raise InputError(f"{what}: {error}") from None

        try:
            require(isinstance(given, Mapping), "it must be a table")
            listed = given.get("features", [])
            require(isinstance(listed, list), "features: it must be a list of tables")
            features = [made(Column, each, f"features.{i}") for i, each in enumerate(listed)]
            label = made(Column, given.get("label"), "label")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        columns: Columns = made(cls, {**given, "features": features, "label": label}, where)
        return columns


class Words(NamedTuple):
    """A column of values by number: value `values[codes[i]]` in row i, missing where it is -1."""

    codes: Array
    values: Sequence[Any]

    def __len__(self) -> int:
        return len(self.codes)


Plain = Mapping[str, "Array | Words"]
"""Columns by name: `Words`, or arrays of numbers, truth values or dates; NaN and NaT are missing.

`Stored.rows` makes them of a table.
"""

Numbers = tuple[Any, Any]
"""Mean and scale of the numeric columns, (columns,) or (rows, columns)."""


def features_of(
    columns: Columns, table: Plain, *, first: int = 0, numbers: Numbers | None = None
) -> Any:
    """The features of rows of a table: an array, or a dict of inputs, see `Columns`.

    Errors count rows from `first`, the number of rows before these. `numbers` standardize in place
    of those of the columns.

    >>> age, ill = Column("age", "number"), Column("ill", "boolean")
    >>> columns = Columns((age, ill), Column("y", "number"))
    >>> features_of(columns, {"age": np.array([41, 58]), "ill": np.array([True, False])}).tolist()
    [[41.0, 1.0], [58.0, 0.0]]
    """
    rows = len(table[columns.features[0].name])
    array = np.empty((rows, len(columns.names)), np.float32)
    indices = {}
    if numbers is None and columns.mean is not None:
        numbers = np.array(columns.mean), np.array(columns.scale)
    require(
        numbers is not None or columns.standardize is None,
        f"columns: standardize = {columns.standardize!r} without mean and scale; give the numbers: "
        "dataclasses.replace(columns, mean=..., scale=...)",
    )
    at = numeric = 0
    for column in columns.features:
        given = table[column.name]
        if column.kind == "index":
            indices[column.name] = _positions(column, given, first).astype(np.int32)
            continue
        width = len(column.features)
        part = array[:, at : at + width]
        if column.kind == "category":
            codes = _positions(column, given, first)
            part[:] = 0
            part[np.arange(len(codes)), codes] = 1  # a missing value's code is -1, its indicator's
        else:
            values, missing = _values(column, given, first)
            with np.errstate(over="ignore"):
                if column.kind in NUMERIC and numbers is not None:
                    mean, scale = (each[..., numeric] for each in numbers)
                    np.divide(values - mean, scale, out=part[:, 0], casting="same_kind")
                else:
                    part[:, 0] = values
            numeric += column.kind in NUMERIC
            if column.missing == INDICATOR:
                part[:, 1] = 0 if missing is None else missing
                if missing is not None:
                    part[missing, 0] = 0
        at += width
    finite = np.isfinite(array)
    if not finite.all():
        row, at = (int(each[0]) for each in np.nonzero(~finite))
        name = columns.names[at]
        raise wrong_value(name, table[name], row, first, "it is not finite as a 32-bit number")
    return {NUMBERS: array, **indices} if indices else array


def labels_of(columns: Columns, table: Plain, *, first: int = 0) -> Array:
    """The labels of rows of a table: float32 numbers, or int32 classes."""
    label = columns.label
    if label.kind == "category":
        return _positions(label, table[label.name], first).astype(np.int32)
    values, _ = _values(label, table[label.name], first)
    with np.errstate(over="ignore"):
        y = values.astype(np.int32 if label.kind == "boolean" else np.float32)
    finite = np.isfinite(y)
    if not finite.all():
        row = int(np.argmin(finite))
        raise wrong_value(label.name, values, row, first, "it is not finite as a 32-bit number")
    return y


def _values(column: Column, given: Array | Words, first: int) -> tuple[Array, Array | None]:
    """The values of a number, a boolean or a date, and where they are missing; None for nowhere.

    A stated value stands for a missing one.
    """
    kind = column.kind
    if isinstance(given, Words):
        values = _dates(column, given, first) if kind == "date" else _no_word(column, given, first)
    elif given.dtype.kind == "M":
        if kind != "date":
            raise wrong_value(
                column.name, given, 0, first, f'a date; its kind is {kind!r}, not "date"'
            )
        values = (given - np.datetime64(0, "D")) / np.timedelta64(1, "D")
    else:
        values = given.astype(np.float64, copy=False)
        known = ~np.isnan(values) if kind == "date" else np.False_
        if known.any():
            why = "a number; a date is a date, or a text such as 2026-01-31"
            raise wrong_value(column.name, given, int(np.argmax(known)), first, why)
    bad = ~np.isfinite(values) if values.dtype.kind == "f" else None
    missing = None
    if bad is not None and bad.any():
        missing = np.isnan(values)
        if (infinite := bad & ~missing).any():
            raise wrong_value(
                column.name, given, int(np.argmax(infinite)), first, "it must be finite"
            )
        if column.missing is None:
            raise _missing(column, int(np.argmax(missing)), first)
        values = np.where(missing, 0.0 if column.missing == INDICATOR else column.missing, values)
    if kind == "boolean":
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            raise wrong_value(column.name, given, int(np.argmax(wrong)), first, "it must be 0 or 1")
    return values, missing


def _no_word(column: Column, given: Words, first: int) -> Array:
    """The values of a column of words that should be numbers: all must be missing."""
    if (given.codes >= 0).any():
        why = f'a word; the kind {column.kind!r} needs numbers, "category" takes words'
        raise wrong_value(column.name, given, odd_word(given), first, why)
    return np.full(len(given), np.nan)


def _is_number(value: Any) -> bool:
    """Whether a value reads as a number.

    >>> [_is_number(value) for value in ("39", "4.5e1", "<0.5", "")]
    [True, True, False, False]
    """
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def numbers_in(values: Sequence[Any]) -> int:
    """How many words of a vocabulary read as numbers."""
    return sum(map(_is_number, values))


def odd_word(given: Words) -> int:
    """The first row with a word that does not read as a number; without one the first word."""
    words = given.codes >= 0
    odd = words & ~np.array([*map(_is_number, given.values), True])[given.codes]
    return int(np.argmax(odd if odd.any() else words))


def _dates(column: Column, given: Words, first: int) -> Array:
    """Dates in words, such as 2026-01-31, as days."""
    days = np.full(len(given.values) + 1, np.nan)
    for i, value in enumerate(given.values):
        try:
            days[i] = (np.datetime64(value) - np.datetime64(0, "D")) / np.timedelta64(1, "D")
        except (ValueError, TypeError):
            at = np.flatnonzero(given.codes == i)
            if len(at):
                why = "no date; one is written as 2026-01-31, or 2026-01-31T08:30"
                raise wrong_value(column.name, given, int(at[0]), first, why) from None
    return days[given.codes]


def _positions(column: Column, given: Array | Words, first: int) -> Array:
    """The positions of a column's values in its vocabulary, -1 where a value is missing.

    A stated value stands for a missing one.
    """
    position: dict[Any, int] = {value: i for i, value in enumerate(column.values)}
    if isinstance(given, Words):
        found = np.array([*(position.get(value, -2) for value in given.values), -1])
        codes = found[given.codes]
    else:
        numeric = [value for value in column.values if not isinstance(value, str)]
        known = np.sort(np.array(numeric, np.float64))
        place = np.array([position[value] for value in sorted(numeric)], np.int64)
        values = given.astype(np.float64, copy=False)
        at = np.minimum(np.searchsorted(known, values), len(known) - 1)
        codes = np.where(known[at] == values, place[at], -2) if len(known) else at * 0 - 2
        codes[np.isnan(values)] = -1
    unknown = codes == -2
    if unknown.any():
        shown = ", ".join(map(repr, column.values[:MOST_SHOWN]))
        more = f", ... ({len(column.values):,} in all)" * (len(column.values) > MOST_SHOWN)
        why = f"not in its vocabulary: {shown}{more}"
        raise wrong_value(column.name, given, int(np.argmax(unknown)), first, why)
    missing = codes == -1
    if column.missing != INDICATOR and missing.any():
        if column.missing is None:
            raise _missing(column, int(np.argmax(missing)), first)
        codes[missing] = position[column.missing]
    return codes


def wrong_value(name: str, given: Array | Words, row: int, first: int, why: str) -> InputError:
    """The error of a value of a column."""
    if isinstance(given, Words):
        value = given.values[given.codes[row]]
    else:
        value = given[row] if given.dtype.kind == "M" else given[row].item()
    text = str(value) if isinstance(value, np.datetime64) else repr(value)
    return InputError(f"column {name!r}, row {first + row + 1}: {foreign(text)}: {why}")


def _missing(column: Column, row: int, first: int) -> InputError:
    """The error of a missing value."""
    return InputError(
        f"column {column.name!r}, row {first + row + 1}: a missing value; say in missing, of "
        'the table that is trained on, what stands for it, a value or "column", or leave out the '
        "rows"
    )


class Moments(NamedTuple):
    """Counts, means and squared deviations of numeric columns, float64 (clients, columns).

    Attributes:
        counts: Rows that have a value.
        means: Their mean, 0 if there are none.
        squares: The sum of their squared deviations from it.
    """

    counts: NDArray[np.float64]
    means: NDArray[np.float64]
    squares: NDArray[np.float64]


def moments_of(
    columns: Columns,
    table: Plain,
    *,
    first: int = 0,
    chosen: Array | None = None,
    owners: Array | None = None,
    clients: int = 1,
) -> Moments:
    """The moments of each client's rows.

    A missing value with a column of its own is not counted; one that a value stands for is. Errors
    count rows from `first`. Only `chosen` rows count, bool (rows,), and `owners` are the clients of
    rows; None for all, and for one client.

    >>> columns = Columns((Column("age", "number"),), Column("y", "number"))
    >>> [each.item() for each in moments_of(columns, {"age": np.array([40.0, 44.0])})]
    [2.0, 42.0, 8.0]
    """
    parts = [np.empty((3, clients, 0))]
    for column in columns.numeric:
        values, missing = _values(column, table[column.name], first)
        counted = chosen
        if missing is not None and column.missing == INDICATOR:
            counted = ~missing if chosen is None else chosen & ~missing
        of = owners
        if counted is not None:
            values, of = values[counted], None if owners is None else owners[counted]
        parts.append(np.stack(_column_moments(values, of, clients))[..., None])
    return Moments(*np.concatenate(parts, axis=2))


def _column_moments(values: Array, owners: Array | None, clients: int) -> Moments:
    """The moments of one column's values, shape (clients,), in one pass.

    Values are taken relative to one of the client's own, so a constant column's deviations are
    exactly 0. Of the others' no more than a share of n times the rounding of a number is lost,
    since the squares are at least (mean - this value)^2.
    """
    if not len(values):
        return Moments(*np.zeros((3, clients)))
    if owners is None:
        counts, base = np.array([float(len(values))]), values[-1:]
        apart = values - base
        sums = apart.sum(keepdims=True)
        squares = np.square(apart, out=apart).sum(keepdims=True)
    else:
        counts, base = np.bincount(owners, minlength=clients).astype(np.float64), np.zeros(clients)
        base[owners] = values
        apart = values - base[owners]
        sums = np.bincount(owners, apart, clients)
        squares = np.bincount(owners, np.square(apart, out=apart), clients)
    means = sums / np.maximum(counts, 1)
    return Moments(counts, base + means, np.maximum(squares - sums * means, 0))


def joined(moments: Moments) -> Moments:
    r"""The moments of all clients' rows together, shape (1, columns).

    .. math:: \bar v = \frac{1}{n} \sum_k n_k \bar v_k, \qquad
        M = \sum_k M_k + \sum_k n_k (\bar v_k - \bar v)^2

    Example:
        >>> two = Moments(*np.array([[[1], [3]], [[2], [4]], [[0], [6]]], float))
        >>> [float(x) for x in np.ravel(joined(two))]
        [4.0, 3.5, 9.0]

    References:
        Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample
        Variances, 1979, equation 2.1.
    """
    counts, known = moments.counts.sum(axis=0, keepdims=True), moments.counts > 0
    base = np.take_along_axis(moments.means, known.argmax(axis=0)[None], axis=0)
    apart = np.where(known, moments.means - base, 0)  # exactly 0 for a constant column
    means = base + (moments.counts * apart).sum(axis=0) / np.maximum(counts, 1)
    between = moments.counts * np.where(known, moments.means - means, 0) ** 2
    return Moments(counts, means, (moments.squares + between).sum(axis=0, keepdims=True))


def scaling(moments: Moments) -> Numbers:
    """Mean and standard deviation of each client's columns, 1 where a column is constant."""
    deviation = np.sqrt(moments.squares / np.maximum(moments.counts, 1))
    return moments.means, np.where(deviation > 0, deviation, 1)


def standardized(columns: Columns, moments: Moments) -> Columns:
    """Columns with the mean and the standard deviation of all clients' rows, given moments."""
    (mean,), (scale,) = scaling(joined(moments))
    return replace(columns, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))
