"""The API reference: public names for what private modules define, and types of attributes."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_type_hints

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import stringify_annotation

import fedprox

ALIASES = type(vars(fedprox.ClientRecord)["clients"])
"""The type of a named tuple's fields, which its section `Attributes` describes."""


def public_names(module: ModuleType = fedprox, path: str = "fedprox") -> Iterator[tuple[str, Any]]:
    """The names of `__all__` and the objects they stand for, those of public modules included.

    A module is called what it is reached by, `fedprox.server` for `fedprox.algorithms.server`.

    >>> sorted(name for name, _ in public_names() if name.startswith("fedprox.metrics."))
    ['fedprox.metrics.Metric', 'fedprox.metrics.auc', 'fedprox.metrics.f1', ...]
    """
    for name in public(module):
        found = getattr(module, name)
        if isinstance(found, ModuleType):
            yield from public_names(found, f"{path}.{name}")
        else:
            yield f"{path}.{name}", found


def public(module: ModuleType) -> list[str]:
    """The public names of a module: `__all__`, or what it defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, found in vars(module).items()
        if not name.startswith("_") and getattr(found, "__module__", "") == module.__name__
    ]


def _home(found: Any) -> str:
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"


PUBLIC = {_home(inspect.unwrap(found)): name for name, found in reversed(list(public_names()))}
"""The public name of what a module defines, by where it is defined."""


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """A link to the public name of what is referred to by where it is defined."""
    if node.get("refdomain") != "py":
        return None
    target = node.get("reftarget", "")
    name = PUBLIC.get(target) or PUBLIC.get(f"{node.get('py:module')}.{target}")
    if name is None:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(
        env, node["refdoc"], app.builder, node.get("reftype", "obj"), name, node, content
    )


def _skip(app: Sphinx, what: str, name: str, found: Any, skip: bool, options: Any) -> bool | None:
    del app, what, name, skip, options
    return True if isinstance(found, ALIASES) else None


def _type_attributes(
    app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Add the types of a class's attributes, which its annotations give."""
    del app, name, options
    if what != "class":
        return
    try:
        types = get_type_hints(found)
    except NameError:
        types = inspect.get_annotations(found)
    for number, line in reversed(list(enumerate(lines))):
        if line.startswith(":ivar ") and (key := line[6:].partition(":")[0]) in types:
            kind = stringify_annotation(types[key], "smart")
            lines.insert(number, f":vartype {key}: {kind}")


def _keep_colons(
    app: Sphinx, what: str, name: str, found: Any, options: Any, lines: list[str]
) -> None:
    """Keep napoleon from reading a description's words before a colon as a type."""
    del app, name, found, options
    if what in ("attribute", "data", "property") and ":" in lines[0]:
        lines.insert(0, "\\ ")  # an escaped space, which shows nothing


def setup(app: Sphinx) -> None:
    """Connect the handlers."""
    app.setup_extension("sphinx.ext.autodoc")
    for kind in PyObject.doc_field_types:
        if kind.name == "variable":
            kind.label = "Attributes"
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _keep_colons, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", _type_attributes, priority=900)  # after napoleon
