"""The reference of experiment, node and operator files, made from the code that reads them."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from fedprox.algorithms.server import RULES
from fedprox.deployment.node_file import NodeFile, SuperLinkFile
from fedprox.experiment import CATALOGUES, SCHEDULES, Experiment, Key, keys, keys_of
from fedprox.experiment.listing import rows_of
from fedprox.experiment.schema import table_of
from fedprox.experiment.sections import HEADERS
from fedprox.losses import LOSSES

OWN = {
    "data": "returns a `fedprox.Federation`",
    "model": "takes the federation and returns a `fedprox.Model`",
    "method": "returns a `fedprox.Algorithm`",
}
"""What a function of the user's own does in each section that names a function."""


def to_markdown(text: str) -> str:
    r"""Docstring text, which is reStructuredText, as Markdown.

    >>> to_markdown(":math:`\\mu` of :func:`fedprox.simulate`, ``x`` as in `y`")
    '$\\mu$ of {func}`fedprox.simulate`, `x` as in `y`'
    """
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", text)
    text = re.sub(r":(\w+):`([^`]*)`", r"{\1}`\2`", text)
    return re.sub(r"`([^`<]+) <(https?:[^>]+)>`_+", r"[\1](\2)", text)


def summary_of(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring, as Markdown."""
    paragraph, _, _ = (inspect.getdoc(function) or "").partition("\n\n")
    return to_markdown(" ".join(paragraph.split()))


def table(rows: Sequence[Key]) -> str:
    """A table of keys."""
    lines = ["```{list-table}", ":header-rows: 1", ":widths: 18 20 14 48", "", "* - Key"]
    lines += ["  - Type", "  - Default", "  - Description"]
    for row in rows:
        default = row.default if row.default in ("", "required") else f"`{row.default}`"
        lines += [f"* - `{row.key}`", f"  - {row.type}", f"  - {default}"]
        lines += [f"  - {to_markdown(row.description)}"]
    return "\n".join([*lines, "```", ""])


def page() -> str:
    """The sections of the page, in Markdown."""
    rows: dict[str, list[Key]] = {}
    for row in keys():
        rows.setdefault(row.section, []).append(row)
    parts = ["## Top-level keys", table(rows.pop(""))]
    for name, own in rows.items():
        header = HEADERS.get(name, f"[{name}]")
        parts += [f"## `{header}`"]
        parts += [to_markdown(Experiment.model_fields[name].description or ""), table(own)]
        if name in CATALOGUES:
            parts += _functions(CATALOGUES[name], OWN[name])
        if name == "model":
            parts += ["## `loss` of `[model]`", "The loss in place of the model's."]
            parts += _functions(LOSSES, "returns a loss, a function of outputs and labels")
        if name == "method":
            parts += ["## `server` of `[[method]]`", "The rule of the server's step."]
            parts += _functions(RULES, "returns a `fedprox.server.Rule`")
        if name == "solver":
            parts += [f"Schedules of the learning rate: {', '.join(map(repr, SCHEDULES))}."]
    return "\n\n".join(parts) + "\n"


def _functions(catalogue: Mapping[str, Callable[..., Any]], own: str) -> list[str]:
    """The functions that a section can name, with their keys."""
    parts = [f'A function of your own, `"package.module:function"`, {own}.']
    for each, function in catalogue.items():
        rows = rows_of(keys_of(function))
        parts += [f"### `{each}`", summary_of(function)]
        parts += [table(rows) if rows else "No other keys."]
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
    sections = {name: table_of(field) for name, field in schema.model_fields.items()}
    plain = {name: field for name, field in schema.model_fields.items() if not sections[name]}
    rows = [
        row._replace(description=f"{row.description} {more.get(row.key, '')}".strip())
        for row in rows_of(plain)
    ]
    parts = [table(rows)]
    for name, section in sections.items():
        if section is not None:
            described = to_markdown(schema.model_fields[name].description or "")
            parts += [f"### `[{prefix}{name}]`", described]
            parts += _keys_of_schema(section, more, f"{prefix}{name}.")
    return parts
