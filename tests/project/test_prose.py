"""The linter of prose finds what it is for, and nothing else."""

import pytest

from tests import prose

LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e"


def rules_of_page(source: str) -> list[str]:
    return [finding.rule for finding in prose.findings(prose.of_page(source))]


def rules_of_docstring(text: str) -> list[str]:
    return [finding.rule for finding in prose.findings(prose.of_docstring(text, 1))]


def entry(text: str) -> list[str]:
    return rules_of_docstring(f"Settings.\n\nAttributes:\n    {text}\n")


def test_a_sentence_has_30_words() -> None:
    assert rules_of_page(f"{LONG}.") == ["has 31 words, more than 30"]
    assert rules_of_page(f"* {LONG}.") == ["has 31 words, more than 30"]
    assert rules_of_page(f"```{{glossary}}\nlane\n  {LONG}.\n```") == ["has 32 words, more than 30"]
    assert rules_of_docstring(f"{LONG}.") == ["has 31 words, more than 30"]
    assert entry(f"key: {LONG}.") == ["has 31 words, more than 30"]
    assert rules_of_page(f"{LONG[:30]}. {LONG[30:]}.") == []
    assert rules_of_docstring(f"{LONG[:-2]} (Li et al., A Title, 2020, section 5).") == []


@pytest.mark.parametrize(
    "source",
    [
        f"```\n{LONG}\n```",
        f"---\nkey: {LONG}\n---\n\nA sentence.",
        f"| A |\n|---|\n| {LONG} |",
        f"Read [this]({LONG.replace(' ', '/')} '{LONG}').",
        f"Call `{LONG}` now.",
        f"Let ${LONG}$ hold.",
        f"Let\n\n$$\n{LONG}\n$$\n\nhold.",
    ],
)
def test_what_is_no_prose_does_not_count(source: str) -> None:
    assert rules_of_page(source) == []


def test_what_is_no_prose_in_docstrings_does_not_count() -> None:
    assert rules_of_docstring(f"A line.\n\nReferences:\n    {LONG}.") == []
    assert rules_of_docstring(f">>> call()\n{LONG}") == []
    assert rules_of_docstring(f"A program::\n\n    {LONG}\n\nMore.") == []
    assert rules_of_docstring(f"A formula\n\n.. math::\n    {LONG}\n\nMore.") == []


def test_a_sentence_in_a_cell_has_40_words() -> None:
    longer = f"{LONG} f g h i j k l m n"
    assert rules_of_page(f"| A |\n|---|\n| {longer} |") == []
    assert rules_of_page(f"| A |\n|---|\n| {longer} o |") == ["has 41 words, more than 40"]


def test_no_sentence_begins_with_what() -> None:
    assert rules_of_page("What clients keep lies on the disk.") == ['begins with "What"']
    assert rules_of_page("Yes. That which lies there is lost.") == ['begins with "That which"']
    assert rules_of_docstring("What a client sends.") == ['begins with "What"']
    assert entry("sent: What a client sends.") == ['begins with "What"']
    assert rules_of_page("# What is measured\n\nWhat is measured? Losses.") == []
    assert rules_of_page("[What is measured](page.md) has the definitions.") == []
    assert rules_of_page("*What the study does not say.* One rate was tried.") == []


@pytest.mark.parametrize(
    "text",
    [
        "name: Its name.",
        "programs: They themselves.",
        "accelerator: Whether it is one.",
        "test_rows: The test rows.",
    ],
)
def test_an_entry_says_more_than_its_name(text: str) -> None:
    assert "says only its name" in entry(text)


def test_an_entry_that_says_more_is_left() -> None:
    assert entry("name: The file's name.") == []
    assert entry("accelerator: Whether the backend is a GPU or TPU.") == []
    assert rules_of_docstring("Settings.\n\nReturns:\n    result: The result.\n") == []


@pytest.mark.parametrize("phrase", prose.PHRASES)
def test_banned_phrases_are_found(phrase: str) -> None:
    (rule,) = rules_of_page(f"Then {phrase.upper()}\nit is.")
    assert rule == f'has "{phrase}"; write {prose.PHRASES[phrase]}'
    assert rules_of_page(f"Then `{phrase}` is code.") == []


def test_a_finding_names_its_line() -> None:
    page = "# Title\n\nA sentence.\nWhat is sent is lost.\n"
    assert [finding.line for finding in prose.findings(prose.of_page(page))] == [4]
    text = "Settings.\n\nAttributes:\n    sent: A number.\n        What is sent is lost.\n"
    assert [finding.line for finding in prose.findings(prose.of_docstring(text, 10))] == [14]


def test_pages_and_sources_are_held() -> None:
    held = {path.relative_to(prose.ROOT).as_posix() for path in prose.held()}
    assert {"README.md", "docs/index.md", "src/fedprox/solver.py"} <= held
    assert len(held) > 200
