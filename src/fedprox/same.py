"""When two functions are the same, and what is made of equal ones once.

`fp.models.logistic` and `fp.scaffold` return new functions with each call. They are closures of the
library's code over numbers, types and other such functions, and depend on nothing else. So they are
compared by these parts. A user's function may read global names that change between two cells of a
notebook, so it is the same only as itself.
"""

import dataclasses
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

from fedprox.jax_internals import compiler_settings
from fedprox.user_code import LIBRARIES

T = TypeVar("T")


def by_value(value: Any) -> Hashable:
    """A key that equal values have, and functions that do the same.

    >>> from fedprox.algorithms.scaffold import scaffold
    >>> one, other = scaffold(), scaffold()
    >>> one.client.message == other.client.message, by_value(one) == by_value(other)
    (False, True)
    """
    parts: Any
    if isinstance(value, FunctionType) and _is_of_library(value):
        try:
            cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        except ValueError:  # one is empty
            return _itself(value)
        parts = by_value((cells, value.__defaults__, value.__kwdefaults__))
        return (value.__code__, value.__module__, parts) if has_hash(parts) else _itself(value)
    if isinstance(value, partial):
        parts = (value.func, value.args, value.keywords)
    elif isinstance(value, tuple):
        parts = value
    elif isinstance(value, Mapping):
        parts = tuple(value.items())
    elif dataclasses.is_dataclass(value) and _is_ours(type(value)):
        # the others, such as `Model.base`, are arguments of programs or make some
        compared = (field.name for field in dataclasses.fields(value) if field.compare)
        parts = tuple(getattr(value, name) for name in compared)
    else:
        return _itself(value)
    return type(value), tuple(map(by_value, parts))


def _itself(value: Any) -> Hashable:
    """A key that only a value has, or what equals it; it keeps no function alive."""
    if isinstance(value, MethodType):  # each look at an object's method gives a new one
        return MethodType, _itself(value.__func__), _itself(value.__self__)
    kind: Any = type(value)
    if kind.__hash__ is object.__hash__ and not _is_global(value):
        with suppress(TypeError):  # it cannot be referred to weakly
            return weakref.ref(value)
    return kind, value


def _is_global(value: Any) -> bool:
    """Whether a value is a class, or a function that a library has for good."""
    module, name = (str(getattr(value, each, "")) for each in ("__module__", "__qualname__"))
    of_library = module.split(".")[0] in LIBRARIES
    found = getattr(sys.modules.get(module), name, None) if of_library else None
    return isinstance(value, type) or found is value


def references(key: Any) -> list["weakref.ref[Any]"]:
    """The functions of a key that are the same only as themselves."""
    if isinstance(key, weakref.ref):
        return [key]
    return [each for part in key for each in references(part)] if isinstance(key, tuple) else []


def has_hash(value: Any) -> bool:
    """Whether a key can be looked up."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "fedprox"


def _is_of_library(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).split(".")[0] in LIBRARIES


MADE: OrderedDict[Hashable, Any] = OrderedDict()
"""The results of `made_once`."""


MOST_MADE = 256
"""Most results of `MADE`."""


def made_once(make: Callable[..., T], *given: Any) -> T:
    """`make(*given)`, the same object for equal arguments that hold the library's code alone."""
    key = by_value((make, given, compiler_settings()))
    if not has_hash(key) or references(key):  # it would keep others' functions alive
        return make(*given)
    made: T | None = MADE.pop(key, None)
    made = MADE[key] = make(*given) if made is None else made
    while len(MADE) > MOST_MADE:
        MADE.popitem(last=False)
    return made
