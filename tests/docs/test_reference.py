"""The reference is complete: every public name, every key of experiment files, every command."""

import doctest
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox import cli
from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.capabilities import Capability
from fedprox.algorithms.server import RULES
from fedprox.deployment.node_file import NodeFile, SuperLinkFile
from fedprox.experiment import CATALOGUES, keys_of
from fedprox.experiment import keys as all_keys
from fedprox.experiment.schema import table_of
from fedprox.losses import LOSSES
from fedprox.parts.compatible import ROWS
from fedprox_docs import commands, compatible, keys, methods, offline, outputs, search
from fedprox_docs.keys import to_markdown

API = Path(__file__).parents[2] / "docs" / "reference" / "api"


def documented() -> set[str]:
    """The full names that the API's pages document."""
    names = set()
    for path in API.glob("*.md"):
        module = "fedprox"
        text = path.read_text().replace("<!-- methods -->", methods.page())
        for line in text.splitlines():
            if found := re.match(r"\.\. (?:currentmodule|module|automodule):: ([\w.]+)", line):
                module = found[1]
            elif found := re.match(r"\.\. (?:auto\w+|data):: ([\w.]+)", line):
                names.add(f"{module}.{found[1]}")
    return names


def public(module: ModuleType, path: str = "fedprox") -> set[str]:
    """The full public names of a module, and of the public modules in it."""
    names: set[str] = set()
    for name in getattr(module, "__all__", ()):
        found = getattr(module, name)
        inner = f"{path}.{name}"
        names |= public(found, inner) if isinstance(found, ModuleType) else {inner}
    return names


def defined(module: ModuleType) -> set[str]:
    """The full names of the functions and classes that a module defines without an underscore."""
    return {
        f"{module.__name__}.{name}"
        for name, found in vars(module).items()
        if not name.startswith("_")
        and callable(found)
        and getattr(found, "__module__", "") == module.__name__
    }


def test_the_table_of_methods_has_a_local_problem_and_a_sentence_of_each() -> None:
    rows = methods.table().splitlines()[2:]
    assert len(rows) == len(ALGORITHMS)
    for row in rows:
        name, problem, sentence = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:4])
        assert "F_k" in problem, name
        assert sentence.endswith("."), name


def test_each_method_that_fixes_a_factor_says_why() -> None:
    rows = methods.fixed().splitlines()[2:]
    assert len(rows) == 8
    assert "| {func}`~fedprox.feddyn` | its model is the one" in methods.fixed()


def test_every_row_of_what_does_not_go_together_is_on_the_page() -> None:
    lines = [line.lower() for line in compatible.page().splitlines()]
    for row in ROWS:
        first = row.first.words if isinstance(row.first, Capability) else None
        words = first or compatible.name_of(row.first)  # type: ignore[arg-type]
        cells = (words, compatible.name_of(row.second), row.why, row.second.instead)
        assert any(all(cell.lower() in line for cell in cells) for line in lines), cells


def test_every_public_name_is_documented() -> None:
    known = documented()
    expected = public(fedprox) | defined(fedprox.datasets.partition)
    expected |= {
        f"fedprox.metrics.{name}"
        for name, found in vars(fedprox.metrics).items()
        if callable(found) and inspect.signature(found).return_annotation is fedprox.Metric
    }
    assert len(expected) > 100
    assert expected - known == set()
    assert known - expected == set()  # nothing that is gone


def test_every_key_of_an_experiment_is_on_the_page() -> None:
    page = keys.page()
    sections = {
        found[1]: found[2]
        for found in re.finditer(r"^## `?\[*([\w-]+).*?\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    }
    for row in all_keys():
        assert f"* - `{row.key}`\n  - {row.type}\n" in sections[row.section or "Top-level"]
    for name, catalogue in {**CATALOGUES, "loss": LOSSES, "server": RULES}.items():
        for each, function in catalogue.items():
            _, _, own = sections[name].partition(f"### `{each}`\n")
            for key in keys_of(function):
                assert f"* - `{key}`\n" in own.partition("### ")[0]


def test_every_key_of_a_node_and_an_operator_is_on_the_page() -> None:
    node, _, operator = keys.node_page().partition("## An operator's file")
    for page, schema in ((node, NodeFile), (operator, SuperLinkFile)):
        for name, field in schema.model_fields.items():
            section = table_of(field)
            assert (f"* - `{name}`\n" in page) == (section is None), name
            assert (f"### `[{name}]`\n" in page) == (section is not None), name
            for key, inner in section.model_fields.items() if section else ():
                row = f"* - `{key}`\n" if table_of(inner) is None else f"`[{name}.{key}]`"
                assert row in page


def test_docstrings_become_markdown() -> None:
    text = ":math:`a_b` of :func:`fedprox.run`, see `here <https://x.org>`_ and ``code``"
    assert to_markdown(text) == "$a_b$ of {func}`fedprox.run`, see [here](https://x.org) and `code`"


def test_the_help_of_the_program_names_each_command_in_a_short_line() -> None:
    help_ = CliRunner().invoke(cli.app, ["--help"]).output
    for name, (_, does) in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(does)}$", help_, re.M), name


def test_every_command_is_on_the_page_as_its_help_prints_it() -> None:
    found = dict(commands.commands())
    assert {"fedprox", "fedprox run", "fedprox data describe"} <= found.keys()
    for name, text in found.items():
        arguments = [*name.split()[1:], "--help"]
        printed = CliRunner().invoke(
            cli.app, arguments, prog_name="fedprox", terminal_width=commands.WIDTH
        )
        assert printed.exit_code == 0
        assert printed.output.split() == text.split()


@pytest.mark.parametrize(
    "module",
    [commands, compatible, keys, offline, outputs, search],
    ids=lambda module: module.__name__,
)
def test_examples_of_the_extension(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_what_a_page_loads_from_elsewhere_is_found() -> None:
    page = """
        <link rel="stylesheet" href="_static/a.css"><a href="https://a.org">a</a>
        <script src="//b.org/b.js"></script><img alt="" src='https://c.org/c.png'>
        <link href="https://d.org/d.css" rel="stylesheet"><script src="_static/e.js"></script>
    """
    assert list(offline.loaded_from_elsewhere(page)) == [
        "//b.org/b.js",
        "https://c.org/c.png",
        "https://d.org/d.css",
    ]


def test_outputs_that_name_the_builders_folders_or_hold_warnings_are_found() -> None:
    page = """
        <p>Warning: paths such as /home/ann/text.py in the text of a page are its author's.</p>
        <div class="cell_input"><pre>open("/home/ann/input.py")</pre></div>
        <div class="cell_output docutils container">
        <div class="output stderr"><pre><span>/opt/env/lib/a.py:7:</span> <b>FutureWarning</b>: soon
          f(1 / 2, "a/b/c", 3/4)</pre></div>
        <div class="output text_html"><svg><path d="/a/b/c"/></svg><br><img src="/x/y/z.png">
        <script>load("/srv/js/a.js")</script>see https://a.org/b/c, ~/b/c and 5 warnings</div>
        </div>
        <div class="sphx-glr-script-out highlight-none"><pre>wrote /tmp/tmp1/run</pre></div>
        <p>/home/ann/after.py</p>
    """
    assert list(outputs.unfit(page)) == [
        "/opt/env/lib/a.py",
        "FutureWarning: soon",
        "/tmp/tmp1/run",
    ]
    assert not list(outputs.unfit("<div class='cell_output'><pre>0.5 of a/b</pre></div>"))


def test_pages_that_a_search_shows_first_are_there() -> None:
    assert all((API.parents[1] / f"{page}.md").is_file() for page in search.SOUGHT)
    words = [each for page in search.SOUGHT.values() for each in page]
    assert len(words) == len(set(words)) >= 30
    assert all(each == each.lower() for each in words)
