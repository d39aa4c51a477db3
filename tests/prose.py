"""The rules of plain English, over pages and docstrings: `python -m tests.prose`, part of `make lint`.

Code, formulas and the targets of links do not count; a name in code and a formula are a word each.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]

LIMITS = {"page": 30}
"""Words that a sentence of a paragraph's kind may have; of others `MOST`."""

MOST = 40

NOT_YET = (
    *("docs/howto/", "docs/reference/messages.md", "docs/reference/run-directory.md"),
    *(f"docs/concepts/{page}.md" for page in ("deployment", "privacy", "threat-model")),
)
"""Pages, and folders of pages, that are not held to the rules yet."""

PHRASES = {
    "again and again": "repeatedly",
    "dear to": "expensive to",
    "helps to reveal": "reveals",
    "in vain": "say what is lost",
    "nothing was found": "we found no ...",
    "reduced or not at all": "at a smaller scale, or not",
    "they themselves": "name them",
    "whichever it fits": "the first that has room",
}
"""Phrases that nobody says, and what to say in their place."""

ENTRIES = ("Args", "Attributes")
DIRECTIVE = re.compile(r"(?m)^( *)\.\. .*(\n\1 +\S.*|\n *$)*")
LITERAL = re.compile(r"(?m)(?<=::)(\n *$)+(\n +.*|\n *$)*")
DOCTEST = re.compile(r"(?m)^ *>>> .*(\n *\S.*)*")
ROW = re.compile(r"(?m)^ *\|.*$")

TITLE = "\u2060"
"""Precedes links and set-off text, which can be a title that begins with any word."""

KINDS = {"heading_open": "heading", "td_open": "cell", "th_open": "cell"}
MARKDOWN = MarkdownIt("commonmark").enable("table")
ENDS = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bvs)[.!?][\"')]*\s+")
OPENING = re.compile(r"(What|That which)\s.*[^?]")
PRONOUNS = {
    *("a", "an", "are", "it", "is", "its", "itself", "of", "one", "ones", "that", "the", "their"),
    *("them", "themselves", "they", "this", "those", "what", "whether", "which"),
}


class Text(NamedTuple):
    """A paragraph: where it begins, and what it is ("page", "cell", "heading", "docstring" or "entry")."""

    line: int
    kind: str
    words: str
    name: str = ""


class Finding(NamedTuple):
    """A rule that a sentence breaks."""

    line: int
    rule: str
    sentence: str


def plain(text: str) -> str:
    """A docstring's text without markup: names in code and formulas become one word each."""
    return re.sub(r"(?s)(?::[\w:]+:)?(`+)(?! )(.+?)\1(?!`)(__?)?", _marked, text)


def _marked(found: re.Match[str]) -> str:
    if found[3]:  # a link
        return re.sub(r"(?s)\s*<[^<]*>$", "", found[2])
    return "Code" + "\n" * found[0].count("\n")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a paragraph, each with the line on which it begins, counted from 0."""
    start = 0
    for end in [*(found.end() for found in ENDS.finditer(text)), len(text)]:
        if sentence := " ".join(text[start:end].split()):
            yield text.count("\n", 0, start), sentence
        start = end


def words(sentence: str) -> int:
    """How many words a sentence has; a dash or an operator is none."""
    return len(re.findall(r"\S*\w\S*", sentence))


def empty(name: str, text: str) -> bool:
    """Whether an attribute's entry says no more than its name with pronouns."""
    said = set(re.findall(r"\w+", text.lower())) - PRONOUNS
    return said <= {*name.lower().split("_"), name.lower()}


def of_page(source: str) -> Iterator[Text]:
    """The paragraphs of a page in Markdown."""
    source = re.sub(r"(?s)\A---\n.*?\n---\n", _blank, source)
    source = re.sub(r"(?ms)^\$\$$.*?^\$\$$", _blank, source)
    source = re.sub(r"(?m)^(:::+.*|\(\S+\)=|:\w[\w-]*:.*)$", "", source)
    kind, line = "page", 0
    for token in MARKDOWN.parse(source):
        line = token.map[0] + 1 if token.map else line
        if token.type.endswith("_open"):
            kind = KINDS.get(token.type, "page")
        elif token.type == "fence" and token.info.startswith(("{glossary}", "{eval-rst}")):
            yield from of_docstring(token.content, line + 1, kind="page")
        elif token.type == "inline":
            text = "".join(map(_said, token.children or ()))
            yield Text(line, kind, re.sub(r"\$[^$]+\$", "Formula", text))


def _said(token: Token) -> str:
    if token.type in ("em_open", "link_open", "strong_open"):
        return TITLE
    return {"text": token.content, "code_inline": "Code", "softbreak": "\n"}.get(token.type, "")


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def of_docstring(text: str, line: int, kind: str = "docstring") -> Iterator[Text]:
    """The paragraphs of a docstring; those of its lists of arguments and attributes have a name."""
    for not_prose in (DIRECTIVE, LITERAL, DOCTEST, ROW):
        text = not_prose.sub(_blank, text)
    block: list[str] = []
    begin, name, section = 0, "", ""
    for i, row in enumerate([*text.splitlines(), ""]):
        heading = re.fullmatch(r"([A-Z]\w+):", row)
        item = re.match(r" *(?:[*-]|\d+\.) ", row)
        entry = re.match(r"    (\w+): +(?=\S)", row) if section in ENTRIES else None
        if block and (not row.strip() or heading or item or entry):
            of = "reference" if section == "References" else "entry" if name else kind
            yield Text(line + begin, of, plain("\n".join(block)), name)
            block, name = [], ""
        if heading:
            section = heading[1]
        elif row.strip():
            begin, start = begin if block else i, item or entry
            name = entry[1] if entry else name
            block.append(row[start.end() if start else 0 :].strip())


def of_file(path: Path) -> Iterator[Text]:
    """The paragraphs of a page, or of a Python file's docstrings."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from of_page(source)
        return
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from of_docstring(inspect.cleandoc(text), statement.lineno)


def findings(texts: Iterable[Text]) -> Iterator[Finding]:
    """The rules that paragraphs break."""
    for text in texts:
        if text.kind == "entry" and empty(text.name, text.words):
            yield Finding(text.line, "says only its name", f"{text.name}: {text.words}")
        limit = LIMITS.get(text.kind, MOST)
        for offset, sentence in sentences(text.words):
            line = text.line + offset
            if text.kind != "reference" and (count := words(sentence)) > limit:
                yield Finding(line, f"has {count} words, more than {limit}", sentence)
            if text.kind not in ("heading", "cell") and (opening := OPENING.fullmatch(sentence)):
                yield Finding(line, f'begins with "{opening[1]}"', sentence)
            for phrase, instead in PHRASES.items():
                if phrase in sentence.lower():
                    yield Finding(line, f'has "{phrase}", not "{instead}"', sentence)


def held() -> list[Path]:
    """The pages and files that are held to the rules."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    pages += [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    files = [*pages, *(ROOT / "src").rglob("*.py")]
    return sorted(
        path for path in files if not path.relative_to(ROOT).as_posix().startswith(NOT_YET)
    )


def main() -> int:
    """Print what is found; the exit status is 1 if anything is."""
    count = 0
    for path in held():
        for found in findings(of_file(path)):
            count += 1
            print(f"{path.relative_to(ROOT)}:{found.line}: {found.rule}: {found.sentence}")
    return bool(count)


if __name__ == "__main__":
    sys.exit(main())
