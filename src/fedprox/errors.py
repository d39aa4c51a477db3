"""The one exception for input that cannot be used, and checks that raise it."""

import math
from collections.abc import Sequence
from numbers import Integral, Real


class InputError(ValueError):
    """Input that cannot be used.

    Its text is one line that names what is wrong, where, and what is allowed. The command line
    prints it without a traceback and exits with status 2.
    """


def require(condition: object, message: str) -> None:
    """Raise `InputError(message)` unless `condition` is true."""
    if not condition:
        raise InputError(message)


def require_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise `InputError` unless `value` is one of those allowed."""
    require(
        value in allowed,
        f"{name} = {value!r}; it must be one of {', '.join(map(str, allowed))}",
    )


def require_whole(name: str, value: object, *, least: int = 1) -> None:
    """Raise `InputError` unless `value` is a whole number of at least `least`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(
        whole and value >= least,  # type: ignore[operator]
        f"{name} = {value!r}; it must be a whole number of at least {least}",
    )


def require_number(
    name: str, value: object, *, most: float = math.inf, positive: bool = False
) -> None:
    """Raise `InputError` unless `value` is a finite number from 0, or above 0, to `most`."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    known = number and math.isfinite(value) and 0 <= value <= most  # type: ignore[arg-type, operator]
    if most == math.inf:
        allowed = "above 0" if positive else "at least 0"
    else:
        allowed = f"above 0 and at most {most:g}" if positive else f"from 0 to {most:g}"
    require(known and (value or not positive), f"{name} = {value!r}; it must be {allowed}")
