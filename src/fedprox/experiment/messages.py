"""Tables that are checked against schemas, and what is said of a mistake in one."""

import difflib
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from fedprox.errors import InputError, Within, choices, require

Table = dict[str, Any]
"""A table as TOML holds it."""

KINDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a string", "strings"),
    Any: ("a string", "strings"),  # a name that is checked together with its options
}
"""The words for one value of each type, and for a list of them."""


class Section(BaseModel):
    """A table whose keys are known, with values of exactly their types.

    The text below a key is its description.
    """

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    makes: ClassVar[Callable[..., Any]]
    """What the table describes: a function whose parameters are the keys."""


def build(value: Any) -> Any:
    """The object that a section describes, with those of its own sections; other values stay."""
    if not isinstance(value, Section):
        return value
    return type(value).makes(**{key: build(each) for key, each in value})


S = TypeVar("S", bound=Section)


class Of:
    """Marks a field whose type is made at run time, and so unknown to type checkers."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self.kind)


def type_of(field: FieldInfo) -> Any:
    """The type of a field."""
    for mark in field.metadata:
        if isinstance(mark, Of | Within):
            return mark.kind if isinstance(mark, Of) else Annotated[field.annotation, mark]
    return field.annotation


def table_of(field: FieldInfo) -> type[Section] | None:
    """The schema of a field that is, or may be, a table; None for other fields."""
    kinds = (type_of(field), *get_args(type_of(field)))
    tables = (k for k in kinds if isinstance(k, type) and issubclass(k, Section))
    return next(tables, None)


def check(
    schema: type[S], table: Table, where: str = "", headers: Mapping[str, str] | None = None
) -> S:
    """A table checked against a schema."""
    try:
        return schema.model_validate(table)
    except ValidationError as error:
        raise InputError(explain(error, schema, table, where, headers)) from None


def require_key(key: str, table: Mapping[str, Any], allowed: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` if a section lacks a key; the message names a likely misspelling."""
    near = difflib.get_close_matches(key, list(table), 1)
    instead = f" (is {near[0]!r} a misspelling of it?)" if near else ""
    require(key in table, f"{where}: the key {key!r} is missing{instead}; {choices('', allowed)}")


def allowed_values(annotation: Any) -> str:
    """The values that a key of a type may have, in words.

    >>> allowed_values(float | list[float] | None), allowed_values(int | Literal["all"])
    ('a number or a list of numbers', 'a whole number or "all"')
    >>> allowed_values(list[Literal["loss", "accuracy"]])
    'a list of one of "loss", "accuracy"'
    """
    arguments = [each for each in get_args(annotation) if each is not NoneType]
    origin = get_origin(annotation)
    if annotation in KINDS:
        return KINDS[annotation][0]
    if origin is Annotated:
        return str(arguments[1].words(KINDS[arguments[0]][0]))
    if origin is Literal:
        words = [f'"{each}"' for each in arguments]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin is list:
        each = arguments[0]
        return f"a list of {KINDS[each][1] if each in KINDS else allowed_values(each)}"
    if origin in (Union, UnionType):
        return " or ".join(map(allowed_values, arguments))
    return "a table"


def explain(
    error: ValidationError,
    schema: type[BaseModel],
    table: Mapping[str, Any],
    where: str = "",
    headers: Mapping[str, str] | None = None,
) -> str:
    """One of the mistakes that pydantic found, in one line; unknown keys first.

    A misspelled key may be why another is missing. `headers` says how the table's sections are
    written, if it has any.
    """
    mistakes = error.errors()
    mistake = next((m for m in mistakes if m["type"] == "extra_forbidden"), mistakes[0])
    path, fields = [where] if where else [], schema.model_fields
    annotation: Any = None
    value: Any = table
    for part in map(str, mistake["loc"]):
        if part not in fields:
            break  # an unknown key, or pydantic's name for one type of a union
        path.append(part)
        annotation, value = type_of(fields[part]), value.get(part)
        fields = getattr(table_of(fields[part]), "model_fields", {})
    place, last = ".".join(path), str(mistake["loc"][-1])
    header = (headers or {}).get(place)
    if mistake["type"] == "extra_forbidden":
        elsewhere = [
            f"{section}.{key}"
            for section, field in schema.model_fields.items()
            if (within := table_of(field))
            for key in within.model_fields
        ]
        known = choices(last, fields, elsewhere)
        return f"{place or 'the file'}: unknown key {last!r}; {known}"
    if mistake["type"] == "missing":
        what = f"section {header}" if header else f"key {last!r}"
        return f"{'.'.join(path[:-1]) or 'the file'}: the {what} is missing"
    allowed = f"a section, written {header}" if header else allowed_values(annotation)
    if header and header.startswith("[["):
        if isinstance(value, dict):
            return f"method: write {header}, with two brackets: there may be several"
        allowed = f"one section or several, each written {header}"
    return f"{place} = {value!r}; it must be {allowed}"
