"""Pickles from outside, read without running what they ask for."""

import io
import pickle
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, reason, require
from fedprox.files.packed import Stream


class _Kind:
    """The type of a pickled array."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError("an array of other things than bytes")

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which bytes do not have."""


class PickledBytes:
    """A pickled array of bytes.

    Attributes:
        array: The array.
    """

    def __init__(self, *_: Any) -> None:
        self.array: NDArray[np.uint8] = np.zeros((0, 0), np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, columns_first, content = state
        if not (isinstance(kind, _Kind) and isinstance(content, bytes)):
            raise pickle.UnpicklingError("an array of other things than bytes")
        order: Literal["F", "C"] = "F" if columns_first else "C"
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order=order)


OPERATIONS = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE),
    *(
        pickle.NEWFALSE,
        pickle.BININT,
        pickle.BININT1,
        pickle.BININT2,
        pickle.LONG1,
        pickle.BINFLOAT,
    ),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.EMPTY_TUPLE, pickle.TUPLE),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.APPEND),
    *(pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.BINGET),
    *(pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GLOBAL),
    *(pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
)
"""The operations of protocols 2 to 4 that containers, numbers, strings and arrays need."""


class _Unpickler(pickle._Unpickler):
    """Reads only containers, numbers, strings and arrays of bytes.

    A pickle is a program. This unpickler carries out `OPERATIONS` alone, and calls no function but
    the two classes above. It is Python's own unpickler in its Python version, because the C version
    allocates whatever size a pickle announces.
    """

    stack: list[Any]

    def _set_item(self) -> None:
        self._check_keys(self.stack[-2:-1])
        pickle._Unpickler.dispatch[pickle.SETITEM[0]](self)  # type: ignore[arg-type]

    def _set_items(self) -> None:
        self._check_keys(self.stack[::2])
        pickle._Unpickler.dispatch[pickle.SETITEMS[0]](self)  # type: ignore[arg-type]

    def _check_keys(self, keys: list[Any]) -> None:
        # a few bytes can describe nested tuples that take for ever to hash
        if not all(isinstance(key, str | bytes) for key in keys):
            raise pickle.UnpicklingError("a key that is not a string")

    dispatch: ClassVar[dict[int, Any]] = {
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in OPERATIONS},
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }

    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): PickledBytes,
        ("numpy._core.multiarray", "_reconstruct"): PickledBytes,
        ("numpy", "ndarray"): None,
        ("numpy", "dtype"): _Kind,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return self.allowed[module, name]


def read_pickle(where: str, file: Stream) -> dict[bytes, Any]:
    """Read a dictionary that Python 2 or 3 pickled.

    Args:
        where: What messages call the file.
        file: The pickle.

    Returns:
        The dictionary with its keys as bytes; arrays are `PickledBytes`.

    Raises:
        InputError: The pickle is damaged, or asks for an operation or a function that is not
            allowed.
    """
    try:
        content = _Unpickler(io.BytesIO(file.read()), encoding="bytes").load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        what = (
            f"it asks for operation {error}, which is not allowed"
            if isinstance(error, KeyError)
            else reason(error)
        )
        raise InputError(f"{where}: not a pickle that can be read: {what}") from None
    require(isinstance(content, dict), f"{where}: not a pickled dictionary")
    return {
        key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key: content[key]
        for key in content
    }
