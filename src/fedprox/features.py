"""Features that are kept smaller than they are: windows of a text, word vectors, bytes.

A federation's rows may be an array. Where that would be many times the data (overlapping windows
of a text, a vector of 300 numbers for each word, images as 32-bit numbers), they are one of the
kinds here: an index, which has a row for each example, and a way to look features up, which runs
inside compiled programs when a mini-batch is read. All are JAX pytrees.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.user_code import call

Array = Any
"""A NumPy array on the host, a JAX array inside a program."""


class _Kept(ABC):
    """What all kinds share: they are as long as their index, and are read through `look_up`."""

    @property
    @abstractmethod
    def index(self) -> Array:
        """What is kept of each example, shape (rows, ...)."""

    @abstractmethod
    def with_index(self, index: Array) -> Any:
        """The same with other rows."""

    @abstractmethod
    def look_up(self, index: Array) -> jax.Array:
        """The features of some rows of the index."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> Any:
        return self.with_index(self.index[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # features are looked up, so always fresh
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
def _all_features(kept: _Kept) -> jax.Array:
    return kept.look_up(kept.index)


def _looked_up(kept: _Kept) -> jax.ShapeDtypeStruct:
    """Shape and type of one example, with a leading axis of 1."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), kept)
    row = jax.ShapeDtypeStruct((1, *shapes.index.shape[1:]), shapes.index.dtype)
    return jax.eval_shape(lambda kept, row: kept.look_up(row), shapes, row)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Windows(_Kept):
    """Stretches of one text, which may overlap: row i is text[starts[i] : starts[i] + width].

    >>> windows = Windows(np.arange(10, dtype=np.uint8), np.array([0, 5], np.int32), width=3)
    >>> windows.shape, np.asarray(windows).tolist()
    ((2, 3), [[0, 1, 2], [5, 6, 7]])

    Attributes:
        text: Symbols, integers of shape (length,).
        starts: Where each row begins, int32 (rows,); at most length - width.
        width: Symbols of a row.
    """

    text: Array
    starts: Array
    width: int = field(metadata={"static": True})

    @property
    def index(self) -> Array:
        """`starts`."""
        return self.starts

    def with_index(self, index: Array) -> "Windows":
        """The same text with other starts."""
        return Windows(self.text, index, self.width)

    def look_up(self, index: Array) -> jax.Array:
        """Starts (B,) -> symbols, int32 (B, width)."""
        text = jnp.asarray(self.text)
        read = jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(text, start, self.width))
        return read(jnp.asarray(index)).astype(jnp.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Vectors(_Kept):
    """Rows of vectors from a table that is not trained: row i is table[ids[i]].

    >>> vectors = Vectors(np.array([[1, 0]], np.int32), np.array([[0.0, 0.0], [1.0, 2.0]]))
    >>> vectors.shape, np.asarray(vectors).tolist()
    ((1, 2, 2), [[[1.0, 2.0], [0.0, 0.0]]])

    Attributes:
        ids: Rows of the table, int32 (rows, length).
        table: Vectors, float32 (words, d).
    """

    ids: Array
    table: Array

    @property
    def index(self) -> Array:
        """`ids`."""
        return self.ids

    def with_index(self, index: Array) -> "Vectors":
        """The same table with other ids."""
        return Vectors(index, self.table)

    def look_up(self, index: Array) -> jax.Array:
        """Ids (B, length) -> vectors (B, length, d)."""
        return jnp.asarray(self.table).at[jnp.asarray(index)].get(mode="promise_in_bounds")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared(_Kept):
    """Raw rows, made into features when they are read: row i is prepare(raw[i]).

    >>> def unit(raw):
    ...     return raw / 255
    >>> prepared = Prepared(np.array([[0, 255]], np.uint8), unit)
    >>> prepared.dtype, np.asarray(prepared).tolist()
    (dtype('float32'), [[0.0, 1.0]])

    Attributes:
        raw: For instance bytes of images, shape (rows, ...).
        prepare: Raw rows (B, ...) -> features (B, ...), in JAX. Use the same function object for
            all rows of a federation: programs are compiled for it.
    """

    raw: Array
    prepare: Callable[[jax.Array], jax.Array] = field(metadata={"static": True})

    @property
    def index(self) -> Array:
        """`raw`."""
        return self.raw

    def with_index(self, index: Array) -> "Prepared":
        """Other raw rows, prepared likewise."""
        return Prepared(index, self.prepare)

    def look_up(self, index: Array) -> jax.Array:
        """Raw rows (B, ...) -> features (B, ...)."""
        raw = jnp.asarray(index)
        return call("Prepared.prepare(raw)", self.prepare, raw, given={"raw": raw})


Features = Any
"""Features of all rows: an array, or one of the kinds above."""


def index_of(x: Features) -> Array:
    """What is kept of each example: `x` itself where that is an array."""
    return x.index if isinstance(x, _Kept) else x


def look_up(x: Features, index: Array) -> Array:
    """The features of some rows of x's index."""
    return x.look_up(index) if isinstance(x, _Kept) else index


def with_index(x: Features, index: Array) -> Features:
    """The same kind of features with other rows of the index."""
    return x.with_index(index) if isinstance(x, _Kept) else index
