"""fedprox: federated optimization in heterogeneous networks, on JAX.

A public name is imported when it is first used, since importing all of them takes a second. Its
module is listed in `__init__.pyi`, for type checkers and for this file.
"""

import ast
import dataclasses
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from fedprox.errors import naming_arguments

__version__ = "0.4.0"

_HOMES = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""The module of each public name; for a public module, the package."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = str(_HOMES[name])
    if home == __name__:
        return import_module(f"{home}.{name}")
    value: Any = getattr(import_module(home), name)
    # unknown arguments of what users call get a line with those that there are
    if dataclasses.is_dataclass(value):
        value.__init__ = naming_arguments(value.__init__, name)
    elif inspect.isfunction(value):
        value = naming_arguments(value, name)
        value.__module__, value.__qualname__ = __name__, name  # where pickle finds it
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
