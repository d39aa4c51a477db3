"""The reference of experiment, node and operator files, made from the code that reads them."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedprox.algorithms import ALGORITHMS
from fedprox.datasets import DATASETS
from fedprox.deployment.node_file import NodeFile, SuperLinkFile
from fedprox.experiment import OPTIMIZERS, SCHEDULES, Experiment, keys_of
from fedprox.models import MODELS

CATALOGUES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "data": DATASETS,
    "model": MODELS,
    "method": ALGORITHMS,
}
"""The sections whose keys depend on a name."""

OWN = {
    "data": "A function of your own that returns a `fedprox.Federation`",
    "model": "A function of your own that takes the federation and returns a `fedprox.Model`",
    "method": "A function of your own that returns a `fedprox.Algorithm`",
}
"""What `name = "package.module:function"` may name in each of them."""

TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "table"}


class Key(NamedTuple):
    """A key of an experiment file.

    Attributes:
        name: Its name.
        type: The values it may have.
        default: Its default as TOML; "required", or "" for none.
        description: What it means, in Markdown.
    """

    name: str
    type: str
    default: str
    description: str


EXTRA: Mapping[str, Sequence[Key]] = {
    "data": (),
    "model": (
        Key(
            "frozen",
            "list of strings",
            "",
            "Names of the parameters, or groups of parameters, that keep their values; needs "
            "`initial`. See {func}`fedprox.freeze`.",
        ),
    ),
    "method": (
        Key(
            "solver",
            "table",
            "",
            "Keys of `[solver]` that this method replaces by its own.",
        ),
    ),
}
"""Keys that every name of a section has."""


def type_text(annotation: Any) -> str:
    """The values that TOML gives for an annotation.

    >>> type_text(float | list[float] | None), type_text(int | Literal["all"])
    ('number or list of numbers', 'integer or `"all"`')
    """
    arguments = [each for each in get_args(annotation) if each is not NoneType]
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        texts = dict.fromkeys(map(type_text, arguments))
        return " or ".join(texts)
    if origin is Literal:
        return " or ".join(f'`"{word}"`' for word in arguments)
    if origin in (list, tuple, Sequence):
        each = type_text(arguments[0])
        return f"list of {each}" if each.endswith("`") else f"list of {each}s"
    if annotation in TYPES or origin in TYPES:
        return TYPES[origin or annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return "string"  # the name of an optimizer or a data set, for which Python takes more


def default_text(value: Any) -> str:
    """A default as TOML writes it; nothing for a key that is left out.

    >>> default_text(1e-4), default_text("all"), default_text((5, 5)), default_text(None)
    ('`0.0001`', '`"all"`', '`[5, 5]`', '')
    """
    if value is None:
        return ""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"`[{', '.join(default_text(each).strip('`') for each in value)}]`"
    return f"`{tomli_w.dumps({'key': value}).strip().removeprefix('key = ')}`"


def to_markdown(text: str) -> str:
    r"""Docstring text, which is reStructuredText, as Markdown.

    >>> to_markdown(":math:`\\mu` of :func:`fedprox.simulate`, ``x`` as in `y`")
    '$\\mu$ of {func}`fedprox.simulate`, `x` as in `y`'
    """
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", text)
    text = re.sub(r":(\w+):`([^`]*)`", r"{\1}`\2`", text)
    return re.sub(r"`([^`<]+) <(https?:[^>]+)>`_+", r"[\1](\2)", text)


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """The descriptions in a docstring's section `Args`, by parameter.

    >>> sorted(arguments_of(DATASETS["mapped"]))
    ['classes', 'data_dir', 'path']
    """
    found: dict[str, str] = {}
    _, _, section = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name:
            found[name] += f" {line.strip()}"
    return {key: to_markdown(text.strip()) for key, text in found.items()}


def summary_of(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, as Markdown."""
    paragraph, _, _ = (inspect.getdoc(function) or "").partition("\n\n")
    return to_markdown(" ".join(paragraph.split()))


def keys_of_function(function: Callable[..., Any]) -> list[Key]:
    """The keys of a data set, a model or a method."""
    described = arguments_of(function)
    found = []
    for name, parameter in keys_of(function).items():
        required = parameter.default is parameter.empty
        default = "required" if required else default_text(parameter.default)
        if name == "optimizer":  # a function in Python, a name with options in a file
            optimizers = "The name of an optimizer, as in [`[solver]`](#solver)."
            found.append(Key(name, "string", default, optimizers))
            found.append(Key("optimizer_options", "table", "", "Its options."))
        elif name != "optimizer_options":
            kind = type_text(parameter.annotation)
            found.append(Key(name, kind, default, described.get(name, "")))
    return found


def key_of_field(name: str, field: FieldInfo) -> Key:
    """A field of the schema."""
    if field.is_required():
        shown = "required"
    else:
        default = field.get_default(call_default_factory=True)
        shown = "" if isinstance(default, dict | BaseModel) else default_text(default)
    return Key(name, type_text(field.annotation), shown, to_markdown(field.description or ""))


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The schema of a field that is a section of its own; None for another one."""
    kinds = (field.annotation, *get_args(field.annotation))
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def table(keys: Sequence[Key]) -> str:
    """A table of keys."""
    lines = ["```{list-table}", ":header-rows: 1", ":widths: 18 20 14 48", "", "* - Key"]
    lines += ["  - Type", "  - Default", "  - Description"]
    for key in keys:
        lines += [f"* - `{key.name}`", f"  - {key.type}", f"  - {key.default}"]
        lines += [f"  - {key.description}"]
    return "\n".join([*lines, "```", ""])


def page() -> str:
    """The sections of the page, in Markdown."""
    fields = {name: field for name, field in Experiment.model_fields.items() if not field.exclude}
    top = [
        key_of_field(name, field)
        for name, field in fields.items()
        if name not in CATALOGUES
        and (section_of(field) is None or str in get_args(field.annotation))
    ]
    parts = ["## Top-level keys", table(top)]
    for name, field in fields.items():
        section = section_of(field)
        if name in CATALOGUES:
            parts += _catalogue(name, field)
        elif section is not None:
            parts += _section(name, field, section)
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(name: str, field: FieldInfo, section: type[BaseModel]) -> list[str]:
    keys = [key_of_field(key, each) for key, each in section.model_fields.items()]
    parts = [f"## `[{name}]`", to_markdown(field.description or ""), table(keys)]
    if name == "solver":
        parts += [
            "Optimizers: " + ", ".join(f"`{each}`" for each in OPTIMIZERS) + ".",
            "Schedules of the learning rate: " + ", ".join(f"`{each}`" for each in SCHEDULES) + ".",
        ]
    return parts


def _catalogue(name: str, field: FieldInfo) -> list[str]:
    header = f"[[{name}]]" if get_origin(field.annotation) is list else f"[{name}]"
    names = ", ".join(f"`{each}`" for each in CATALOGUES[name])
    own = f'{OWN[name]}: `"package.module:function"`. The other keys are its parameters.'
    keys = [Key("name", "string", "required", f"One of {names}. {own}"), *EXTRA[name]]
    if not field.is_required():
        default = field.get_default(call_default_factory=True)
        keys[0] = keys[0]._replace(default=default_text(default["name"]))
    parts = [f"## `{header}`", to_markdown(field.description or ""), table(keys)]
    for each, function in CATALOGUES[name].items():
        own_keys = keys_of_function(function)
        parts += [f"### `{each}`", summary_of(function)]
        parts += [table(own_keys) if own_keys else "No other keys."]
    return parts


def node_page() -> str:
    """The sections of the page about node and operator files, in Markdown."""
    parts = ["## A node's file"]
    parts += _keys_of_schema(NodeFile, {"data": "See [`[data]`](experiment-keys.md#data)."})
    parts += ["## An operator's file", *_keys_of_schema(SuperLinkFile, {})]
    return "\n\n".join(parts) + "\n"


def _keys_of_schema(
    schema: type[BaseModel], more: Mapping[str, str], prefix: str = ""
) -> list[str]:
    """The keys of a file, and below them those of its sections; `more` adds to descriptions."""
    keys, sections = [], []
    for name, field in schema.model_fields.items():
        section = section_of(field)
        if section is None:
            key = key_of_field(name, field)
            described = f"{key.description} {more.get(name, '')}".strip()
            keys.append(key._replace(description=described))
        else:
            sections += [f"### `[{prefix}{name}]`", to_markdown(field.description or "")]
            sections += _keys_of_schema(section, more, f"{prefix}{name}.")
    return [table(keys), *sections]
