"""Columns of a table: how its rows become features and labels, and what standardizes them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, distinct, require, require_number, require_one_of

Array = NDArray[Any]
Kind = Literal["number", "boolean", "category", "index", "date"]
KINDS: tuple[Kind, ...] = get_args(Kind)

NUMERIC = ("number", "date")
"""Kinds that are standardized."""

CLASSES = ("boolean", "category")
"""Kinds of labels that are classes."""

Standardize = Literal["federation", "client", "given"]
STANDARDIZE: tuple[Standardize, ...] = get_args(Standardize)

INDICATOR = "column"
"""Value of `Column.missing` for a further column that says where a value is missing."""

Value = str | int | float
"""A value of a table: a word, a number, or True or False."""


@dataclass(frozen=True)
class Column:
    """A column of a table as a model reads it.

    Attributes:
        name: Name in the table.
        kind: "number"; "boolean", which is 0 or 1; "category", a column of 0 and 1 for each of
            `values`; "index", the position in `values` as a whole number, for embeddings; "date",
            days since 1970-01-01. A label is a "number", or it is a class: "boolean", or
            "category", whose classes are the positions in `values`.
        values: The vocabulary of a "category" or an "index", in order; other kinds have none.
        missing: What stands for a missing value: a number, or one of the values; "column" for 0
            after standardization and a further column, after this one, that is 1 there; None if a
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
        """Names of the columns of features that it becomes, none for an "index"."""
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
        standardize: Whose numbers standardize: those of all clients' training rows, "federation";
            of each client's own, "client", which are not here; "given" ones; None for none.
        mean: A number for each column that is standardized, see `numeric`; None if there are none.
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
        if any(column.kind == "index" for column in self.features):
            for column in self.features:
                if column.kind == "index":
                    require(
                        column.name.isidentifier() and column.name != "numbers",
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
            except TypeError:
                raise InputError(f"{what}: a key is missing, or a value of a wrong type") from None

        try:
            require(isinstance(given, Mapping), "it must be a table")
            listed = given.get("features", [])
            require(isinstance(listed, list), "features: it must be a list of tables")
            features = [made(Column, each, f"features.{i}") for i, each in enumerate(listed)]
            label = made(Column, given.get("label"), "label")
            return made(cls, {**given, "features": features, "label": label}, "columns")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


class Words(NamedTuple):
    """A column of values by number: value `values[codes[i]]` in row i, missing where it is -1."""

    codes: Array
    values: Sequence[Any]


Plain = Mapping[str, "Array | Words"]
"""Columns of a table by name: arrays of numbers, truth values, dates or words, or `Words`.

NaN, NaT and None are missing values.
"""


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
    count = moments.counts.sum(axis=0, keepdims=True)
    known = moments.counts > 0
    first = np.take_along_axis(moments.means, known.argmax(axis=0)[None], axis=0)
    apart = np.where(known, moments.means - first, 0)  # exactly 0 for a constant column
    mean = first + (moments.counts * apart).sum(axis=0) / np.maximum(count, 1)
    between = moments.counts * np.where(known, moments.means - mean, 0) ** 2
    squares = (moments.squares + between).sum(axis=0, keepdims=True)
    return Moments(count, mean, squares)


def scaled(columns: Columns, moments: Moments) -> Columns:
    """Columns with mean and standard deviation of rows, given all clients' moments."""
    mean, scale = scaling(joined(moments))
    return replace(columns, mean=tuple(mean[0].tolist()), scale=tuple(scale[0].tolist()))


def scaling(moments: Moments) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each client's columns, 1 where a column is constant."""
    deviation = np.sqrt(moments.squares / np.maximum(moments.counts, 1))
    return moments.means, np.where(deviation > 0, deviation, 1)
