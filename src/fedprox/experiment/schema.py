"""Sections as schemas: the keys of a section are the parameters of what it describes.

Types and defaults come from the signature, descriptions from the docstring. Error messages, the
help of `fedprox run` and the reference of keys are made from these schemas. A section may name its
function: a data set, a model, a method, a schedule, or an optimizer among its parameters.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import optax
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from fedprox.algorithms import Algorithm
from fedprox.errors import SINGLE, InputError, Within, choices, reason, require
from fedprox.model import Model
from fedprox.solver import line_search_descent, searches_line
from fedprox.user_code import import_function

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
    """The function that the table's keys are parameters of."""


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


def checked(
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


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in ("adagrad", "adam", "adamw", "lbfgs", "lion", "nadam", "rmsprop", "sgd", "yogi")
} | {"line-search-descent": line_search_descent}
"""The optimizers that an experiment file can name: optax's, and descent with a line search."""

SCHEDULES: dict[str, Callable[..., Any]] = {
    name: getattr(optax, name)
    for name in (
        "constant_schedule",
        "cosine_decay_schedule",
        "cosine_onecycle_schedule",
        "exponential_decay",
        "linear_onecycle_schedule",
        "linear_schedule",
        "piecewise_constant_schedule",
        "piecewise_interpolate_schedule",
        "polynomial_schedule",
        "warmup_constant_schedule",
        "warmup_cosine_decay_schedule",
        "warmup_exponential_decay_schedule",
    )
}
"""The schedules of learning rates that an experiment file can name: optax's."""

SCALES = "boundaries_and_scales"
"""The option of optax's piecewise schedules that maps rounds to factors."""


NOT_KEYS = ("federation", "data_dir")
"""Parameters that are not keys of a section."""

_OPTIMIZER = "optimizer"
"""Mark of the keys that name an optimizer."""


class _Keys(Section):
    """A section without attributes of its own, whose source pydantic would read each time."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def schema_of(
    function: Callable[..., Any],
    *,
    positional: int = 0,
    what: str = "",
    types: Mapping[str, Any] = MappingProxyType({}),
    descriptions: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
) -> type[Section]:
    """The schema of the table whose keys are a function's parameters after the `positional` first.

    An optimizer has two keys: its name, and a table of its options. A parameter of a type that TOML
    lacks, such as a function, must have a default and is no key. `types` and `descriptions` are of
    keys that differ from the parameters', `more` of further keys, which may be left out.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{what}: its signature cannot be read: {reason(error)}") from None
    require(len(parameters) >= positional, f"{what}: its first parameter must be the federation")
    described = {**descriptions_of(function), **descriptions}
    fields: dict[str, Any] = {}
    for key, parameter in list(parameters.items())[positional:]:
        if key in NOT_KEYS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is parameter.empty
        default = ... if needed else parameter.default
        if is_optimizer(parameter.annotation):
            fields |= _optimizer(key, default)
        elif parameter.annotation == Algorithm | None:  # a method's table
            fields[key] = Table | None, Field(default, description=described.get(key, ""))
        elif (kind := types.get(key, toml_type(parameter.annotation))) is not None:
            fields[key] = kind, Field(default, description=described.get(key, ""))
        elif needed:
            raise InputError(
                f"{what}: its parameter {key!r} has a type that no key has; use bool, int, float, "
                "str, Literal or a list of them, or give it a default"
            )
    for key, (kind, description) in more.items():
        fields[key] = kind, Field(None, description=description)
    schema = create_model("Keys", __base__=_Keys, **fields)
    schema.makes = function
    return schema


@functools.cache
def keys_of(function: Callable[..., Any]) -> dict[str, FieldInfo]:
    """The keys of a data set, a model or a method, as fields of a schema.

    >>> from fedprox.algorithms import fedopt
    >>> list(keys_of(fedopt))
    ['optimizer', 'optimizer_options', 'server_learning_rate']
    """
    return schema_of(function).model_fields


def _optimizer(key: str, default: Any) -> dict[str, Any]:
    """The fields of an optimizer's two keys."""
    if default not in (..., None):
        default = next((name for name, each in OPTIMIZERS.items() if each is default), None)
    name = Field(default, description=f"Name of an optimizer: {', '.join(OPTIMIZERS)}.")
    options: Any = Field(
        default_factory=dict, description="Arguments of the optimizer, as optax names them."
    )
    return {key: (Annotated[Any, _OPTIMIZER], name), options_key(key): (Table, options)}


def toml_type(annotation: Any) -> Any:
    """The part of a type that TOML can hold; None if there is none.

    >>> toml_type(float | Callable[[int], float] | None) == float | None
    True
    """
    arguments, origin = get_args(annotation), get_origin(annotation)
    if annotation in (*KINDS, NoneType, dict) or origin in (Literal, dict, Annotated):
        return annotation
    if annotation is inspect.Parameter.empty:
        return Any
    parts = [part for each in arguments if (part := toml_type(each)) is not None]
    if origin in (Union, UnionType) and parts not in ([], [NoneType]):
        return Union[tuple(parts)]  # noqa: UP007
    return list[parts[0]] if origin in (list, Sequence) and parts else None  # type: ignore[valid-type]


def descriptions_of(function: Callable[..., Any]) -> dict[str, str]:
    """The entry of each parameter in a docstring's section Args or Attributes.

    >>> from fedprox.datasets import DATASETS
    >>> sorted(descriptions_of(DATASETS["mapped"]))
    ['classes', 'data_dir', 'path']
    """
    found: dict[str, str] = {}
    _, *sections = re.split(r"\n(?:Args|Attributes):\n", inspect.getdoc(function) or "")
    name = ""
    for line in "\n".join(sections[:1]).splitlines():
        if line and not line.startswith(" "):
            break
        if entry := re.match(r"    (\w+): (.*)", line):
            name = entry[1]
            found[name] = entry[2]
        elif name:
            found[name] += f" {line.strip()}"
    return {key: text.strip() for key, text in found.items()}


def is_optimizer(annotation: Any) -> bool:
    """Whether a type is that of an optimizer: a function that returns a transformation.

    >>> is_optimizer(Callable[..., optax.GradientTransformation] | None), is_optimizer(float)
    (True, False)
    """
    arguments, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, UnionType):
        return any(map(is_optimizer, arguments))
    if origin is not Callable:
        return False
    result = arguments[-1]
    return inspect.isclass(result) and issubclass(result, optax.GradientTransformation)


def options_key(key: str) -> str:
    """The key of the options of the optimizer that another key names."""
    return f"{key}_options"


@functools.cache
def options_schema(function: Callable[..., Any]) -> type[Section]:
    """The schema of the options of an optimizer or a schedule that TOML can give.

    >>> list(options_schema(optax.linear_schedule).model_fields)
    ['init_value', 'end_value', 'transition_steps', 'transition_begin']
    """
    fields: dict[str, Any] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if key in ("learning_rate", "linesearch", "mask"):  # the last two are functions
            continue
        kind: Any = float
        if key.endswith("dtype") or key == "interpolate_type":
            kind = str  # its name, such as "bfloat16"
        elif key == SCALES:
            kind = dict[str, float]  # keys of TOML are strings
        elif parameter.annotation in (bool, int):
            kind = parameter.annotation
        if parameter.default is parameter.empty:
            fields[key] = kind, ...
        else:
            fields[key] = kind | None if parameter.default is None else kind, parameter.default
    return create_model("Options", __base__=Section, **fields)


def named_optimizer(name: Any, options: Any, where: str) -> Callable[..., Any]:
    """The optimizer of a name, with its options bound."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise InputError(f"{where} = {name!r}; {choices(str(name), OPTIMIZERS)}")
    where = options_key(where)
    require(isinstance(options, dict), f"{where} = {options!r}; it must be a table")
    checked(options_schema(OPTIMIZERS[name]), options, where)
    for key, value in options.items():
        require(
            not isinstance(value, float) or abs(value) <= SINGLE[1],
            f"{where}.{key} = {value!r}; it must be finite in single precision",
        )
    bound = functools.partial(OPTIMIZERS[name], **options) if options else OPTIMIZERS[name]
    try:
        optimizer, one = bound(learning_rate=0.1), np.ones(1, np.float32)
        line = {"value": one[0], "grad": one, "value_fn": lambda w: (w**2).sum() / 2}
        with np.errstate(all="ignore"):
            optimizer.update(one, optimizer.init(one), one, **line)
        searches_line(bound, where)  # some numbers overflow only when they are traced
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{where} = {options}; {name} refuses them: {reason}") from None
    return bound


def named(
    table: Mapping[str, Any],
    catalogue: Mapping[str, Callable[..., Any]],
    where: str,
    kind: type | None,
    *,
    key: str = "name",
    besides: Collection[str] = (),
) -> tuple[Callable[..., Any], Table]:
    """The function that a section names, with its options bound, and the section with defaults.

    The function is one of the catalogue, or one of the user's own as "package.module:function". It
    returns an object of a kind; None for a function. Its parameters are the section's keys, with
    their types; an optimizer is given by its name and options. Keys `besides` are left out unless
    the function has such parameters.
    """
    require_key(key, table, catalogue, where)
    name = table[key]
    given = {k: v for k, v in table.items() if k != key}
    if isinstance(name, str) and ":" in name:
        place = f"{where}.{key}"
        function = import_function(place, name, kind)
        positional = int(kind is Model)
        schema = schema_of(function, positional=positional, what=f"{place} = {name!r}")
    elif isinstance(name, str) and name in catalogue:
        function = catalogue[name]
        schema = (options_schema if catalogue is SCHEDULES else schema_of)(function)
    else:
        own = ', or one of your own as "package.module:function"'
        raise InputError(f"{where}.{key} = {name!r}; {choices(str(name), catalogue)}{own}")
    if besides:
        known = dict.fromkeys([*schema.model_fields, *besides])
        for each in given:
            require(each in known, f"{where}: unknown key {each!r}; {choices(each, known)}")
        given = {k: v for k, v in given.items() if k in schema.model_fields}
    for each in optimizer_keys(schema):
        if schema.model_fields[each].is_required():
            require_key(each, given, OPTIMIZERS, where)
    options = checked(schema, given, where).model_dump()
    shown = {option: value for option, value in options.items() if value is not None}
    bound = with_optimizers(options, optimizer_keys(schema), where)
    return functools.partial(function, **bound), {key: name, **shown}


def optimizer_keys(schema: type[Section]) -> list[str]:
    """The keys that name an optimizer."""
    return [key for key, field in schema.model_fields.items() if _OPTIMIZER in field.metadata]


def with_optimizers(options: Table, keys: list[str], where: str) -> Table:
    """The options, with each optimizer's name and options replaced by the optimizer."""
    bound = dict(options)
    for key in keys:
        name, of_optimizer = bound.pop(key, None), bound.pop(options_key(key), {})
        if name is not None:
            bound[key] = named_optimizer(name, of_optimizer, f"{where}.{key}")
        else:
            require(not of_optimizer, f"{where}.{options_key(key)}: give {key} beside it")
    return bound
