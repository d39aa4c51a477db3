"""Every public name has a docstring in the one template of the project."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedprox as fp
from fedprox.algorithms import ALGORITHMS
from fedprox.datasets import DATASETS
from fedprox.models import MODELS

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Warns", "Example", "References")
"""The sections of a docstring, in their order."""

CITED = {*ALGORITHMS.values(), *DATASETS.values(), *MODELS.values()}
"""Methods, data sets and models, which name their source."""

RETURNED = {fp.Diagnosis, fp.Difference, fp.Progress, fp.Record, fp.Stopped, fp.StudyTable}
"""Classes that users only receive; the examples are those of the functions that make them."""

METRICS = ("auc", "f1", "mean_squared_error")


def public() -> Iterator[tuple[str, Any]]:
    """The names that users see, and what they are: functions and classes."""
    names = [(name, getattr(fp, name)) for name in fp.__all__]
    for module in (fp.datasets, fp.diagnostics, fp.losses, fp.models):
        names += [(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
    names += [(f"fedprox.metrics.{name}", getattr(fp.metrics, name)) for name in METRICS]
    for name, value in names:
        if not isinstance(value, ModuleType) and callable(value):
            yield name, inspect.unwrap(value)


PUBLIC = dict(public())


def sections(value: Any) -> dict[str, str]:
    """The text of each section of a docstring; what precedes the first one is called ""."""
    parts = re.split(r"^(\w+):\n", inspect.cleandoc(value.__doc__ or ""), flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def documented(text: str) -> list[str]:
    """The names that begin the entries of a section."""
    return re.findall(r"^    (\w+):", text, flags=re.MULTILINE)


def test_the_template_is_checked_on_all_names() -> None:
    assert len(PUBLIC) > 50
    assert set(PUBLIC.values()) >= CITED


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_follows_the_template(name: str) -> None:
    value = PUBLIC[name]
    summary, *rest = inspect.cleandoc(value.__doc__ or "").splitlines()
    assert re.fullmatch(r"[A-Z].*\.", summary), "it begins with one line"
    assert not rest or not rest[0], "it begins with one line"
    parts = sections(value)
    known = [section for section in parts if section]
    assert known == [section for section in SECTIONS if section in known], "the order of sections"
    signature = inspect.signature(value)
    text = parts.get("Args", "") + (parts.get("Attributes", "") if inspect.isclass(value) else "")
    assert documented(text)[: len(signature.parameters)] == list(signature.parameters)
    if inspect.isfunction(value):
        assert (signature.return_annotation is None) != ("Returns" in parts)
    if value not in RETURNED:
        assert ">>> " in parts.get("Example", "")
    if value in CITED:
        assert re.search(r"`[^`]+<https://[^>]+>`_", parts.get("References", "")), "its source"


REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "api"

LISTS = re.compile(r"^\s*(Args|Returns|Raises|Yields):$", re.MULTILINE)


def on_the_reference() -> set[str]:
    """The names of functions and classes that the reference documents."""
    names = {name.rpartition(".")[2] for name in PUBLIC}
    for page in REFERENCE.glob("*.md"):
        text = page.read_text()
        names |= set(re.findall(r"^\.\. auto(?:function|class):: (\w+)", text, re.MULTILINE))
        for module in re.findall(r"^\.\. automodule:: (\S+)", text, re.MULTILINE):
            names |= set(vars(importlib.import_module(module)))
    return names


def internal(tree: ast.AST, public: set[str], *, shown: bool = False) -> Iterator[ast.FunctionDef]:
    """The functions of a file that the reference does not document."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from internal(node, public, shown=node.name in public)
        elif isinstance(node, ast.FunctionDef):
            of_module = isinstance(tree, ast.Module) and node.name in public
            if not of_module and (not shown or node.name.startswith("_")):
                yield node


def test_internal_functions_have_a_sentence_and_no_list_of_arguments() -> None:
    public, package = on_the_reference(), Path(fp.__file__).parent
    files = [path for path in package.rglob("*.py") if path.name not in ("cli.py",)]
    listed = [
        f"{path.relative_to(package)}: {function.name}"
        for path in files
        if "commands" not in path.parts  # docstrings there are the command's help
        for function in internal(ast.parse(path.read_text()), public)
        if LISTS.search(ast.get_docstring(function) or "")
    ]
    assert len(files) > 100
    assert listed == []
