"""`InputError`, and checks that raise it."""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar, cast

LONGEST = 1_000
"""Most characters of a message; the middle of a longer one is left out."""


class InputError(ValueError):
    r"""Input that cannot be used: an argument, a setting or a file.

    The message is one line that says what is wrong, where, and what is allowed. Control characters
    that it quotes are escaped. The command line prints it without a traceback and exits with status
    2.

    Args:
        message: The message.
        lines: Further lines, such as one for each parameter that does not fit.

    Example:
        >>> import fedprox as fp
        >>> fp.fedprox(mu=-1.0)
        Traceback (most recent call last):
        ...
        fedprox.errors.InputError: fedprox: mu = -1.0; it must be at least 0
        >>> print(fp.InputError("data.path: no file a\n\x1b[0m"))
        data.path: no file a\n\x1b[0m
    """

    def __init__(self, message: str, lines: Iterable[str] = ()) -> None:
        super().__init__("\n  ".join(map(_short, (message, *lines))))


def _short(text: str) -> str:
    line, half = printable(text), LONGEST // 2
    return line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}"


def printable(text: object) -> str:
    r"""A text on one line, with control characters escaped.

    >>> print(printable("runs/a\n\x1b[31m"))
    runs/a\n\x1b[31m
    """
    line = str(text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def installing(extra: str) -> str:
    """How to install what an extra of this package needs, as messages say it.

    The package is on no index: whoever registers its name there could run code on users' machines.

    >>> print(installing("flower"))
    in a clone of fedprox, pip install ".[flower]"; or install its wheel as "FILE.whl[flower]"
    """
    return (
        f'in a clone of fedprox, pip install ".[{extra}]"; or install its wheel as '
        f'"FILE.whl[{extra}]"'
    )


MOST_QUOTED = 300
"""Most characters of a text from elsewhere in a message."""


def foreign(text: object) -> str:
    r"""A text from another machine on one line: escaped as `printable`, and not too long.

    >>> print(foreign("no\n\x1b[31m"), len(foreign("a" * 10**6)))
    no\n\x1b[31m 304
    """
    given = str(text)
    line = printable(given[:MOST_QUOTED])
    return line[:MOST_QUOTED] + " ..." * (max(len(given), len(line)) > MOST_QUOTED)


def reason(error: BaseException) -> str:
    """The message of another library's error, or the error's name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def shown(value: object) -> str:
    """A value as messages quote it.

    >>> shown(0.5), shown(math.hypot), shown(dict)
    ('0.5', 'hypot, a function that was not called', 'dict, a class that was not called')
    """
    if inspect.isclass(value):
        return f"{value.__name__}, a class that was not called"
    if inspect.isroutine(value):
        return f"{value.__name__}, a function that was not called"
    try:
        return repr(value)
    except ValueError:  # a whole number of thousands of digits
        return f"a value of type {type(value).__name__} that cannot be shown"


def require(condition: object, message: str) -> None:
    """Raise `InputError(message)` unless `condition` is true."""
    if not condition:
        raise InputError(message)


def require_one_of(
    name: str, value: object, allowed: Sequence[str | int], *, optional: bool = False
) -> None:
    """Raise `InputError` unless `value` is one of the allowed values, or None if it is optional."""
    simple = isinstance(value, str | Integral) and not isinstance(value, bool)
    require(
        (simple and value in allowed) or (optional and value is None),
        f"{name} = {shown(value)}; it must be one of {', '.join(map(str, allowed))}",
    )


def choices(name: str, allowed: Collection[str], elsewhere: Collection[str] = ()) -> str:
    """The allowed names in words, preceded by the one that `name` is most likely meant for.

    It is one that is spelled nearly so, else one that `name` ends or abbreviates by its initials,
    else the closest in spelling.
    `elsewhere` has names that are allowed in other places, with these places:
    "solver.learning_rate".

    >>> choices("lr", ["epochs", "learning_rate"])
    "did you mean 'learning_rate'? allowed: epochs, learning_rate"
    >>> choices("epochs", ["rounds"], ["solver.epochs"])
    "did you mean 'solver.epochs'? allowed: rounds"
    """

    def meant(full: str) -> bool:
        word = full.rpartition(".")[2]
        initials = "".join(part[:1] for part in word.split("_"))
        return name in (word, initials) or word.endswith(f"_{name}")

    names = list(allowed)
    near = (
        difflib.get_close_matches(name, names, 1, cutoff=0.9)
        or [*filter(meant, names), *filter(meant, elsewhere)]
        or difflib.get_close_matches(name, names, 1, cutoff=0.5)
    )
    hint = f"did you mean {near[0]!r}? " if name and near else ""
    return f"{hint}allowed: {', '.join(allowed) or 'no more keys'}"


def users_level() -> int:
    """`stacklevel` of `warnings.warn` for the line that called this package."""
    level, frame = 1, inspect.currentframe()
    assert frame is not None
    frame = frame.f_back
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("fedprox."):
        level, frame = level + 1, frame.f_back
    return level


F = TypeVar("F", bound=Callable[..., Any])


def naming_arguments(function: F, name: str) -> F:
    """A function whose unknown and missing arguments raise `InputError`, with those it has.

    >>> naming_arguments(lambda extra: extra, "install")(extras="docs")
    Traceback (most recent call last):
    ...
    fedprox.errors.InputError: install: no argument 'extras'; did you mean 'extra'? allowed: extra
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            allowed = [each for each in signature.parameters if each != "self"]
            unknown = [each for each in named if each not in allowed]
            if unknown:
                line = f"{name}: no argument {unknown[0]!r}; {choices(unknown[0], allowed)}"
            else:
                line = f"{name}: {error}; its arguments: {', '.join(allowed)}"
            raise InputError(line) from None
        return function(*arguments, **named)

    return cast("F", checked)


LARGEST = 2**31 - 1
"""The default limit of whole numbers: the largest number of 32 bits."""


def require_whole(
    name: str,
    value: object,
    *,
    least: int = 1,
    most: float = LARGEST,
    otherwise: str = "",
    optional: bool = False,
) -> None:
    """Raise `InputError` unless `value` is a whole number from `least` to `most`.

    With `optional` it may be None. `otherwise` names another allowed value, for the message.
    """
    if optional and value is None:
        return
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    above = whole and value > most  # type: ignore[operator]
    bounded = most < LARGEST or above
    allowed = f"from {least} to {most:,}" if bounded else f"of at least {least}"
    require(
        whole and not above and value >= least,  # type: ignore[operator]
        f"{name} = {shown(value)}; it must be a whole number {allowed}"
        + (f", or {otherwise}" if otherwise else ""),
    )


SINGLE = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The smallest and the largest positive normal number of single precision."""


def require_number(
    name: str,
    value: object,
    *,
    most: float = math.inf,
    positive: bool = False,
    single: bool = False,
    optional: bool = False,
) -> None:
    """Raise `InputError` unless `value` is a finite number from 0 to `most`.

    With `positive` it must be above 0. With `single` this must also hold in single precision. With
    `optional` it may be None.
    """
    if optional and value is None:
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    given = as_float(value) if number else math.nan
    if most == math.inf:
        allowed = "above 0" if positive else "at least 0"
    else:
        allowed = f"above 0 and at most {most:g}" if positive else f"from 0 to {most:g}"
    if not number:
        allowed = f"a number {'of ' * allowed.startswith('at')}{allowed}"
    elif most == math.inf and not math.isfinite(given):
        allowed = f"finite and {allowed}"
    if not (math.isfinite(given) and 0 <= given <= most) or (positive and not given):
        raise InputError(f"{name} = {shown(value)}; it must be {allowed}")
    least = SINGLE[0] if positive else 0.0
    require(
        not single or least <= given <= SINGLE[1],
        f"{name} = {value!r}; it is beyond single precision, which holds {least:.3g} to "
        f"{SINGLE[1]:.3g}",
    )


def as_float(value: Any) -> float:
    """A number in double precision; infinity for a whole number beyond it."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def distinct(what: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the names; raise `InputError` at the first that repeats an earlier one.

    >>> list(distinct("names:", ["a", "b"]))
    ['a', 'b']
    """
    seen: set[str] = set()
    for name in names:
        require(name not in seen, f"{what} {name!r} appears twice")
        seen.add(name)
        yield name
