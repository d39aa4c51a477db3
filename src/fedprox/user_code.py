"""Calls of the user's functions, whose errors become one line that names the function.

JAX traces these functions, so an error in one of them would otherwise surface inside compiled code,
far from the function and with many lines about XLA.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from fedprox.errors import InputError, require
from fedprox.jax_internals import require_backend

T = TypeVar("T")

LIBRARIES = {"fedprox", "jax", "flax", "optax"}
"""Packages whose functions are not the user's."""

SHOWN = 4
"""Most arrays of a tree, or names, that a message lists."""

PASSED_ON = (InputError, MemoryError, OSError, jax.errors.JaxRuntimeError)
"""Errors that are passed on: their messages suffice, or the function is not their cause."""

_MISTAKES: dict[type[Exception], str] = {
    jax.errors.TracerArrayConversionError: "uses NumPy on a traced array; use jax.numpy instead",
    jax.errors.TracerBoolConversionError: (
        "uses a traced value as a Python condition (if, while, and, or, not); use jnp.where instead"
    ),
    jax.errors.TracerIntegerConversionError: (
        "uses a traced value as a Python index; use a jax.numpy array as the one indexed"
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "indexes with a traced mask, so a shape depends on values; use jnp.where instead"
    ),
    jax.errors.ConcretizationTypeError: (
        "needs the value of a traced array, as float(), int() and item() do; use jax.numpy instead"
    ),
}
"""Messages for JAX's errors about traced values; a class precedes its base classes."""


def call(what: str, function: Callable[..., T], *args: Any, given: Any = None) -> T:
    """Call a user's function.

    `what` is the function with the names of its arguments, and `given` a tree of arrays whose
    shapes the message shows.

    >>> call("loss(outputs, y)", lambda outputs: outputs, 1, 2)
    Traceback (most recent call last):
    ...
    fedprox.errors.InputError: loss(outputs, y) raised TypeError: <lambda>() takes 1 positional...
    """
    try:
        return function(*args)
    except PASSED_ON:
        raise
    except Exception as error:
        require_backend()
        suffix = "" if given is None else f"; it was given {describe(given)}"
        raise InputError(f"{what} {_mistake(error)}{suffix}") from error


def shapes_of(what: str, function: Callable[..., Any], *args: Any, given: Any = None) -> Any:
    """The shapes and types of the result of a user's function, by `jax.eval_shape`; see `call`."""
    return call(what, jax.eval_shape, function, *args, given=given)


def import_function(where: str, name: str, kind: type | None) -> Callable[..., Any]:
    """Import a user's function by its name "package.module:function".

    The module is on Python's path or in the current folder, which is appended to `sys.path`.
    Importing it runs its code.

    The function must return a value of `kind`, a class of this library, or a function if that is
    None. `where` is the key of the name.
    """
    module, _, attribute = name.partition(":")
    what = f"{where} = {name!r}"
    needed = "a function" if kind is None else f"a fedprox.{kind.__name__}"
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    require(module and attribute, f'{what}; it must be "package.module:function"')
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        absent = error.name is not None and f"{module}.".startswith(f"{error.name}.")
        of = "" if absent else f", which {module!r} imports"
        raise InputError(
            f"{what}: no module {error.name!r}{of} in {os.getcwd()} or on Python's path"
        ) from None
    except Exception as error:
        raise InputError(f"{what}: importing {module!r} {_mistake(error)}") from error
    function: Any = getattr(imported, attribute, None)
    require(callable(function), f"{what}: {module!r} has no function {attribute!r}")

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        result = call(name, functools.partial(function, **options), *args)
        require(
            callable(result) if kind is None else isinstance(result, kind),
            f"{what}: it returns a value of type {type(result).__name__}; it must return {needed}",
        )
        return result

    return checked


def _mistake(error: Exception) -> str:
    for kind, text in _MISTAKES.items():
        if isinstance(error, kind):
            return text
    first = (str(error).strip().splitlines() or [""])[0]
    return f"raised {type(error).__name__}" + (f": {first}" if first else "")


def listed(paths: Sequence[Any], name: Callable[[Any], str]) -> str:
    """The names of some arrays of a tree, at most `SHOWN`."""
    more = [f"{len(paths) - SHOWN} more"] if len(paths) > SHOWN else []
    return ", ".join([*map(name, paths[:SHOWN]), *more])


def describe(tree: Any) -> str:
    """The arrays of a tree with their types and shapes.

    >>> from jax.numpy import zeros
    >>> describe({"bias": zeros(2), "kernel": zeros((2, 3))})
    'bias float32[2], kernel float32[2,3]'
    """

    def shown(entry: tuple[Any, Any]) -> str:
        path, leaf = entry
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return f"{name} {_array(leaf)}".strip()

    return listed(jax.tree_util.tree_leaves_with_path(tree), shown) or "nothing"


def _array(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return type(leaf).__name__
    return f"{leaf.dtype.name}[{','.join(map(str, leaf.shape))}]"
