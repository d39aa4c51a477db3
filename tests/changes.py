"""Methods that differ in a few functions."""

from collections.abc import Mapping
from typing import Any

from fedprox import Algorithm


def changed(method: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """The method with other fields, by name, such as "hparams" or "client.message"."""
    for name, value in changes.items():
        method = _replaced(method, name.split("."), value)
    return method


def _replaced(part: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    return part._replace(**{first: _replaced(getattr(part, first), rest, value) if rest else value})
