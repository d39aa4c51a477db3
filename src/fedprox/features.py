"""Features: an array, compact features that are looked up, or a tree of several of these.

A federation's features are an array, unless that would be many times larger than the data. Examples
are overlapping windows of a text, a vector of 300 numbers for each word, and images as 32-bit
numbers. Then they are one of the classes here: an index with a row for each example, and a function
that looks up features. It runs inside compiled programs when a mini-batch is read. All are JAX
pytrees.

A model of several inputs, such as an image and a table, has a dict or a tuple of them. Whoever
reads features calls the functions at the end of this file, which treat one array as a tree of one
leaf.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.errors import InputError, foreign, require
from fedprox.precision import in_shape
from fedprox.user_code import call

T = TypeVar("T")

Array = Any
"""A NumPy array on the host, a JAX array inside a program."""


class _Stored(ABC):
    """Features with a row for each entry of an index, read through `look_up`."""

    indexed: ClassVar[str]
    """The name of the field with the index."""

    @property
    def index(self) -> Array:
        """The stored entry of each example, shape (rows, ...)."""
        return getattr(self, self.indexed)

    def with_index(self, index: Array) -> Self:
        """The same features with other rows of the index."""
        changed: Any = replace(self, **{self.indexed: index})  # type: ignore[type-var]
        return cast("Self", changed)

    @abstractmethod
    def look_up(self, index: Array) -> jax.Array:
        """Look up the features of some rows of the index."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> Any:
        return self.with_index(self.index[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # features are looked up, so they are always new
        return np.asarray(_all_features(self), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the features, (rows, ...)."""
        return (len(self), *_looked_up(self).shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes of the features."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the features."""
        return np.dtype(_looked_up(self).dtype)


@jax.jit
def _all_features(stored: _Stored) -> jax.Array:
    return stored.look_up(stored.index)


def _looked_up(stored: _Stored) -> jax.ShapeDtypeStruct:
    """Shape and type of one example, with a leading axis of 1."""
    shapes = jax.tree.map(lambda a: in_shape(a.shape, a.dtype), stored)
    row = in_shape((1, *shapes.index.shape[1:]), shapes.index.dtype)
    return jax.eval_shape(lambda stored, row: stored.look_up(row), shapes, row)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Windows(_Stored):
    """Windows of one text, which may overlap: row i is text[starts[i] : starts[i] + width].

    Attributes:
        text: Symbols, integers of shape (length,).
        starts: First symbol of each row, int32 (rows,), at most length - width.
        width: Symbols of a row.

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> windows = fp.Windows(np.arange(10, dtype=np.uint8), np.array([0, 5], np.int32), width=3)
        >>> windows.shape, np.asarray(windows).tolist()
        ((2, 3), [[0, 1, 2], [5, 6, 7]])
    """

    text: Array
    starts: Array
    width: int = field(metadata={"static": True})
    indexed = "starts"

    def look_up(self, index: Array) -> jax.Array:
        """Starts (B,) -> symbols, int32 (B, width)."""
        text = jnp.asarray(self.text)
        read = jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(text, start, self.width))
        return read(jnp.asarray(index)).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Vectors(_Stored):
    """Sequences of vectors from a table that is not trained: row i is table[ids[i]].

    Attributes:
        ids: Indices into the table, int32 (rows, length).
        table: Vectors, float32 (words, d).

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> vectors = fp.Vectors(np.array([[1, 0]], np.int32), np.array([[0.0, 0.0], [1.0, 2.0]]))
        >>> vectors.shape, np.asarray(vectors).tolist()
        ((1, 2, 2), [[[1.0, 2.0], [0.0, 0.0]]])
    """

    ids: Array
    table: Array
    indexed = "ids"

    def look_up(self, index: Array) -> jax.Array:
        """Ids (B, length) -> vectors (B, length, d)."""
        return jnp.asarray(self.table).at[jnp.asarray(index)].get(mode="promise_in_bounds")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared(_Stored):
    """Raw rows that become features when they are read: row i is prepare(raw[i]).

    Attributes:
        raw: Raw rows such as bytes of images, shape (rows, ...).
        prepare: (raw rows (B, ...)) -> features (B, ...), in JAX. Use one function object for all
            rows of a federation: programs are compiled for it.

    Example:
        >>> import numpy as np
        >>> import fedprox as fp
        >>> def unit(raw):
        ...     return raw / 255
        >>> prepared = fp.Prepared(np.array([[0, 255]], np.uint8), unit)
        >>> prepared.dtype, np.asarray(prepared).tolist()
        (dtype('float32'), [[0.0, 1.0]])
    """

    raw: Array
    prepare: Callable[[jax.Array], jax.Array] = field(metadata={"static": True})
    indexed = "raw"

    def look_up(self, index: Array) -> jax.Array:
        """Raw rows (B, ...) -> features (B, ...)."""
        raw = jnp.asarray(index)
        return call("Prepared.prepare(raw)", self.prepare, raw, given={"raw": raw})


Features = Any
"""Features of all rows: an array, an instance of one of the classes above, or a tree of these.

A tree is a dict or a tuple, nested or not, whose leaves have equally many rows. Keys are
identifiers, so names such as "views.0" or "image" are unique; the name of one array is "".
"""


def formed(given: Any, leaf: Callable[[Any, str], Any], name: str = "features") -> Features:
    """Features as dicts and tuples, with leaf(array, its name) in place of each array.

    A tuple without an array in it, such as one of numbers or lists, is one array, as in NumPy.

    >>> formed({"b": (np.zeros(2), [1, 2]), "a": (1, 2)}, lambda array, name: name)
    {'a': 'features.a', 'b': ('features.b.0', 'features.b.1')}
    """
    if not _holds_several(given):
        return leaf(given, name)
    require(given, f"{name}: an empty {type(given).__name__}; it must have an array at least")
    if isinstance(given, Mapping):
        for key in given:
            require(
                isinstance(key, str) and key.isidentifier(),
                f"{name}: the key {foreign(repr(key))}; keys must be names as in Python, letters, "
                "digits and _",
            )
        return {key: formed(given[key], leaf, f"{name}.{key}") for key in sorted(given)}
    require(
        type(given) is tuple,
        f"{name}: a {type(given).__name__}; several arrays must be a dict or a plain tuple",
    )
    return tuple(formed(part, leaf, f"{name}.{i}") for i, part in enumerate(given))


def _holds_several(given: Any) -> bool:
    """Whether features are a tree: a mapping, or a tuple with an array in it."""
    if isinstance(given, tuple):
        return any(_holds_several(part) or getattr(part, "shape", ()) for part in given)
    return isinstance(given, Mapping)


def map_named(change: Callable[..., Any], x: Features, *others: Any, name: str = "") -> Any:
    """The tree of change(name of the leaf, leaf, leaves of other trees)."""
    if not isinstance(x, dict | tuple):
        return change(name, x, *others)

    def inner(key: Any) -> Any:
        parts = (each[key] for each in (x, *others))
        return map_named(change, *parts, name=f"{name}.{key}" if name else str(key))

    if isinstance(x, tuple):
        return tuple(map(inner, range(len(x))))
    return {key: inner(key) for key in x}


def map_leaves(change: Callable[..., Any], x: Features, *others: Any) -> Any:
    """The tree of change(leaf, leaves of other trees)."""
    return map_named(lambda _, *leaves: change(*leaves), x, *others)


def named_leaves(x: Features) -> dict[str, Any]:
    """The leaves of features by name.

    >>> list(named_leaves({"age": 3, "views": (1, 2)})), list(named_leaves(4))
    (['age', 'views.0', 'views.1'], [''])
    """
    leaves: dict[str, Any] = {}
    map_named(leaves.__setitem__, x)
    return leaves


def tree_from(leaves: Mapping[str, T], where: str) -> Any:
    """The tree of leaves by name, the inverse of `named_leaves`.

    >>> tree_from({"age": 3, "views.0": 1, "views.1": 2}, "features")
    {'age': 3, 'views': (1, 2)}
    """
    if list(leaves) == [""]:
        return leaves[""]
    parts: dict[str, dict[str, T]] = {}
    for name, leaf in leaves.items():
        key, dot, rest = name.partition(".")
        parts.setdefault(key if rest or not dot else name, {})[rest] = leaf
    inner = {key: tree_from(part, f"{where}.{key}") for key, part in parts.items()}
    numbers = [str(i) for i in range(len(inner))]
    if inner and set(inner) == set(numbers):
        return tuple(inner[i] for i in numbers)
    named = all(key.isidentifier() for key in inner)
    require(inner and named, f"{where}: arrays named {foreign(list(leaves))}, which form no tree")
    return dict(sorted(inner.items()))


def at_leaf(where: str, name: str) -> str:
    """A place in a message, with the name of a leaf unless features are one array.

    >>> at_leaf("client 'a'", "image"), at_leaf("client 'a'", "")
    ("client 'a', features.image", "client 'a'")
    """
    return f"{where}, features.{name}" if name else where


def require_alike(where: str, names: Iterable[str], others: Iterable[str], whose: str) -> None:
    """Raise `InputError` unless features have the names of others' leaves."""
    have, needed = ({*each} for each in (names, others))
    if have != needed:
        first, second = (", ".join(sorted(each - {""})) or "one array" for each in (have, needed))
        raise InputError(f"{where}: features are {first}; {whose} are {second}")


def index_of(x: Features) -> Any:
    """The stored entry of each example, an array or a tree: `x` itself if that has only arrays."""
    return map_leaves(lambda leaf: leaf.index if isinstance(leaf, _Stored) else leaf, x)


def look_up(x: Features, index: Any) -> Any:
    """The features of some rows of the index of `x`."""
    return map_leaves(lambda leaf, i: leaf.look_up(i) if isinstance(leaf, _Stored) else i, x, index)


def with_index(x: Features, index: Any) -> Features:
    """Features like `x` with other rows of the index."""
    return map_leaves(
        lambda leaf, i: leaf.with_index(i) if isinstance(leaf, _Stored) else i, x, index
    )


def row_count(x: Features) -> int:
    """Rows of features.

    >>> row_count({"image": np.zeros((3, 8, 8)), "age": np.zeros(3)})
    3
    """
    return len(next(iter(named_leaves(x).values())))


def rows_at(x: Features, rows: Any) -> Features:
    """Some rows of features: `x[rows]` of each leaf."""
    return map_leaves(lambda leaf: leaf[rows], x)


def arrays_at(x: Features, rows: Any) -> Any:
    """Some rows of features as NumPy arrays, looked up."""
    return map_leaves(lambda leaf: np.asarray(leaf[rows]), x)


def row_shapes(x: Features) -> Any:
    """Shape and type of one example, a `jax.ShapeDtypeStruct` for each leaf."""
    return map_leaves(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)


def rows_like(x: Features) -> Any:
    """Two rows like those of features or labels, in shape, as a compiled program reads them."""
    return map_leaves(lambda leaf: in_shape((2, *leaf.shape[1:]), leaf.dtype), x)
