"""Sections as schemas: the keys of a section are the parameters of what it describes.

Types and defaults come from the signature, descriptions from the docstring. Error messages, the
help of `fedprox run` and the reference of keys are made from these schemas.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from fedprox.algorithms import Algorithm
from fedprox.errors import InputError, reason, require
from fedprox.experiment.messages import KINDS, Section, Table
from fedprox.experiment.optimizers import OPTIMIZERS, is_optimizer, options_key

NOT_KEYS = ("federation", "data_dir")
"""Parameters that are not keys of a section."""

NAME = "optimizer"
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
    """The schema of the table whose keys are a function's parameters.

    An optimizer has two keys: its name, and a table of its options. A parameter of a type that TOML
    lacks, such as a function, must have a default and is no key.

    Args:
        function: The function, or a dataclass.
        positional: The number of first parameters that are no keys.
        what: What the function is, for messages about one of the user's own.
        types: Types of keys that differ from the parameters'.
        descriptions: Descriptions of keys that differ from the docstring's.
        more: Type and description of further keys, which may be left out.
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
    return create_model("Keys", __base__=_Keys, **fields)


@cache
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
    return {key: (Annotated[Any, NAME], name), options_key(key): (Table, options)}


def toml_type(annotation: Any) -> Any:
    """The part of a type that TOML can hold; None if there is none.

    >>> toml_type(float | Callable[[int], float] | None) == float | None
    True
    """
    arguments, origin = get_args(annotation), get_origin(annotation)
    if annotation in (*KINDS, NoneType, dict) or origin in (Literal, dict):
        return annotation
    if annotation is inspect.Parameter.empty:
        return Any
    parts = [part for each in arguments if (part := toml_type(each)) is not None]
    if origin in (Union, UnionType) and parts not in ([], [NoneType]):
        return Union[tuple(parts)]  # noqa: UP007
    return list[parts[0]] if origin in (list, Sequence) and parts else None  # type: ignore[valid-type]


def descriptions_of(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each parameter, in its section Args or Attributes.

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
