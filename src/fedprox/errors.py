"""`InputError`, and checks that raise it."""

import dataclasses
import difflib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

LONGEST = 1_000
"""Most characters of a message; the middle of a longer one is left out."""


PAGES = {
    "in a clone of fedprox, pip install": "howto/install.md#extras",
    " is missing; put it": "howto/data.md#the-librarys-data-sets",
    " could not be downloaded": "howto/data.md#the-librarys-data-sets",
    "a missing value; say in missing": "howto/data.md#what-becomes-of-a-column",
    ": not in its vocabulary": "howto/data.md#what-becomes-of-a-column",
    "was not trained on a table": "howto/data.md#predictions",
    "each client's own mean and deviation standardize": "howto/data.md#predictions",
    "uses NumPy on a traced array": "howto/models.md#your-own-functions",
    "uses a traced value as a Python": "howto/models.md#your-own-functions",
    "give loss=fedprox.losses": "howto/models.md#losses",
    "fp.load_weights loads what": "howto/from-pytorch.md#names-and-layouts-of-weights",
    "no validation rows": "howto/evaluation.md#hold-out-validation-rows",
    "methods: unequal budgets": "howto/studies.md#hyperparameters-with-equal-budgets",
    "checkpoints of another comparison": "howto/long-runs.md#checkpoints",
    " holds another experiment's results": "howto/long-runs.md#extend-a-finished-run",
    "code cannot be exported": "howto/export.md",
    " does not answer: ": "reference/messages.md",
}
"""Pages that explain an error, by words in its message."""


def page_of(message: str) -> str | None:
    """The line that names the page that explains an error, if one does.

    >>> page_of("mnist: a.gz is missing; put it, packed or unpacked, in mnist")
    'see docs/howto/data.md#the-librarys-data-sets'
    """
    page = next((page for words, page in PAGES.items() if words in message), None)
    return page and f"see docs/{page}"


class InputError(ValueError):
    r"""Input that cannot be used: an argument, a setting or a file.

    The message is one line that says what is wrong, where, and what is allowed. Control characters
    that it quotes are escaped. The command line prints it without a traceback and exits with status
    2. A last line, which is a note of the exception, may name a page that explains it.

    Args:
        message: One line that says what is wrong, where, and what is allowed.
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
        if page := page_of(str(self)):
            self.add_note(page)


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


def plural(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> plural(1, "client"), plural(1200, "class")
    ('1 client', '1,200 classes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending * (number != 1)}"


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
    if not whole or above or value < least:  # type: ignore[operator]
        allowed = Within(least, most if most < LARGEST or above else math.inf)
        raise InputError(
            f"{name} = {shown(value)}; it must be {allowed.words('a whole number')}"
            + (f", or {otherwise}" if otherwise else "")
        )


SINGLE = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The smallest and the largest positive normal number of single precision."""


def require_number(
    name: str,
    value: object,
    *,
    least: float = 0,
    most: float = math.inf,
    below: float = math.inf,
    positive: bool = False,
    single: bool = False,
    optional: bool = False,
) -> None:
    """Raise `InputError` unless `value` is a finite number from `least` to `most`, and `below`.

    With `positive` it must be above 0. With `single` this must also hold in single precision. With
    `optional` it may be None.
    """
    if optional and value is None:
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    given = as_float(value) if number else math.nan
    within = least <= given <= most and given < below and (given > 0 or not positive)
    if not (within and math.isfinite(given)):
        limits = Within(least, most, below, positive)
        allowed = limits.words("" if number else "a number")
        if number and min(most, below) == math.inf and not math.isfinite(given):
            allowed = f"finite and {allowed}"
        raise InputError(f"{name} = {shown(value)}; it must be {allowed}")
    smallest = SINGLE[0] if positive else 0.0
    require(
        not single or smallest <= given <= SINGLE[1],
        f"{name} = {value!r}; it is beyond single precision, which holds {smallest:.3g} to "
        f"{SINGLE[1]:.3g}",
    )


def require_share(name: str, share: object) -> None:
    """Raise `InputError` unless a share is above 0 and below 1."""
    require_number(name, share, positive=True)
    require(share < 1, f"{name} = {share}; it must be above 0 and below 1")  # type: ignore[operator]


class Within(NamedTuple):
    """The numbers that a setting allows, as a part of its type: `Annotated[float, Within(most=1)]`.

    The fields are those of `require_number`.
    """

    least: float = 0
    most: float = math.inf
    below: float = math.inf
    positive: bool = False
    single: bool = False

    def words(self, kind: str) -> str:
        """The limits after a type in words, or alone.

        >>> Within(1).words("a whole number"), Within(positive=True, most=1).words("")
        ('a whole number of at least 1', 'above 0 and at most 1')
        """
        least, most = (f"{n:,}" if isinstance(n, int) else f"{n:g}" for n in self[:2])
        low = "above 0" if self.positive else f"at least {least}"
        if self.below < math.inf:
            limits = f"{low} and below {self.below:g}"
        elif self.most == math.inf:
            limits = low
        else:
            limits = f"above 0 and at most {most}" if self.positive else f"from {least} to {most}"
        return f"{kind} {'of ' * limits.startswith('at least')}{limits}" if kind else limits


PositiveInt = Annotated[int, Within(1)]
"""A whole number of at least 1."""

PositiveFloat = Annotated[float, Within(positive=True)]
"""A number above 0."""

UnitFloat = Annotated[float, Within(most=1)]
"""A number from 0 to 1."""


def check_fields(section: str, settings: Any) -> None:
    """Raise `InputError` if a dataclass of settings has a value that the type of its field forbids.

    Types of several kinds are left to the caller. Whole numbers and truth values become Python's,
    since they are written as JSON.
    """
    of: Any = type(settings)
    for key, kind in _field_kinds(of).items():
        value = getattr(settings, key)
        if value is not None or NoneType not in get_args(kind):
            object.__setattr__(settings, key, _checked(f"{section}.{key}", value, kind))


@functools.cache
def _field_kinds(of: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    hints = get_type_hints(of, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(of)}


def _checked(name: str, value: Any, kind: Any) -> Any:
    """A value of a field, in Python's types, if the field's type allows it."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    classes: Any = tuple(each for each in kinds if dataclasses.is_dataclass(each))
    first, *others = [each for each in kinds if each is not NoneType]
    arguments = get_args(first)
    if len(classes) == 1 + len(others):
        allowed = ", ".join(f"a fedprox.{each.__name__}" for each in classes)
        allowed += " or None" * (NoneType in kinds)
        require(isinstance(value, classes), f"{name} = {shown(value)}; it must be {allowed}")
    elif others:
        return value
    elif get_origin(first) is Literal:
        require_one_of(name, value, arguments)
    elif first is bool:
        given = type(value).__name__ in ("bool", "bool_")  # also NumPy's
        require(given, f"{name} = {shown(value)}; it must be True or False")
        return bool(value)
    elif get_origin(first) is Annotated and arguments[0] is int:
        least, most = arguments[1][:2]
        require_whole(name, value, least=least, most=min(most, LARGEST))
        return int(value)
    elif get_origin(first) is Annotated:
        require_number(name, value, **arguments[1]._asdict())
    return value


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
