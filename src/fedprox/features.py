"""Features in compact form: windows of a text, word vectors, bytes.

A federation's features are an array, unless that would be many times larger than the data:
overlapping windows of a text, a vector of 300 numbers for each word, images as 32-bit numbers. Then
they are one of the classes here: an index with a row for each example, and a function that looks up
features, which runs inside compiled programs when a mini-batch is read. All are JAX pytrees.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.precision import in_shape
from fedprox.user_code import call

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
"""Features of all rows: an array, or an instance of one of the classes above."""


def index_of(x: Features) -> Array:
    """The stored entry of each example: `x` itself if that is an array."""
    return x.index if isinstance(x, _Stored) else x


def look_up(x: Features, index: Array) -> Array:
    """The features of some rows of the index of `x`."""
    return x.look_up(index) if isinstance(x, _Stored) else index


def with_index(x: Features, index: Array) -> Features:
    """Features like `x` with other rows of the index."""
    return x.with_index(index) if isinstance(x, _Stored) else index
