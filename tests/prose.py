"""The rules of plain English, held over pages and docstrings by `make lint`.

Code, targets of links, lists of references, and citations in brackets do not count. A name in code
is a word, as is a formula.
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

MOST_WORDS, MOST_OF_A_CELL = 30, 40
"""The most words of a sentence, and of one in a table's cell."""

PHRASES = {
    "again and again": "repeatedly",
    "dear to": "expensive to",
    "helps to reveal": "reveals",
    "in vain": "what is lost",
    "nothing was found": "we found no ...",
    "reduced or not at all": "at a smaller scale, or not",
    "they themselves": "their name",
    "whichever it fits": "the first that has room",
}
"""Phrases that a colleague would not say, and what to write in their place."""

OPENING = re.compile(r"(What|That which)\s.*[^?]")

PRONOUNS = {
    *("a", "an", "are", "it", "is", "its", "itself", "of", "one", "ones", "that", "the", "their"),
    *("them", "themselves", "they", "this", "those", "what", "whether", "which"),
}
"""Words that add nothing to the name of an attribute."""

CITATION = re.compile(r"\([^()]*\b(?:19|20)\d\d\b[^()]*\)")
WORD = re.compile(r"\S*\w\S*")
ENDS = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bvs)[.!?][\"')]*\s+")

TITLE = "\u2060"
"""Precedes links and set-off text, which may be a title that begins with any word."""

MARKDOWN = MarkdownIt("commonmark").enable("table")
LISTS = ("Args", "Attributes")
KINDS = {"heading_open": "heading", "td_open": "cell", "th_open": "cell"}

DIRECTIVE = re.compile(r"(?m)^( *)\.\. .*(\n\1 +\S.*|\n *$)*")
LITERAL = re.compile(r"(?m)(?<=::)(\n *$)+(\n +.*|\n *$)*")
DOCTEST = re.compile(r"(?m)^ *>>> .*(\n *\S.*)*")
TABLE_ROW = re.compile(r"(?m)^ *\|.*$")


class Paragraph(NamedTuple):
    """A paragraph: of a "page", "docstring" or "reference", a "heading", "cell" or "entry"."""

    line: int
    kind: str
    text: str
    name: str = ""


class Finding(NamedTuple):
    """A rule that a sentence breaks."""

    line: int
    rule: str
    sentence: str


def of_page(source: str) -> Iterator[Paragraph]:
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
            yield Paragraph(line, kind, re.sub(r"\$[^$]+\$", "Formula", text))


def _said(token: Token) -> str:
    if token.type in ("em_open", "link_open", "strong_open"):
        return TITLE
    return {"text": token.content, "code_inline": "Code", "softbreak": "\n"}.get(token.type, "")


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def of_docstring(text: str, line: int, kind: str = "docstring") -> Iterator[Paragraph]:
    """The paragraphs of a docstring, whose lists of arguments and attributes are entries."""
    for not_prose in (DIRECTIVE, LITERAL, DOCTEST, TABLE_ROW):
        text = not_prose.sub(_blank, text)
    block: list[str] = []
    begin, name, section = 0, "", ""
    for i, row in enumerate([*text.splitlines(), ""]):
        heading = re.fullmatch(r"([A-Z]\w+):", row)
        item = re.match(r" *(?:[*-]|\d+\.) ", row)
        entry = re.match(r"    (\w+): +(?=\S)", row) if section in LISTS else None
        if block and (not row.strip() or heading or item or entry):
            of = "reference" if section == "References" else "entry" if name else kind
            yield Paragraph(line + begin, of, _without_markup("\n".join(block)), name)
            block, name = [], ""
        if heading:
            section = heading[1]
        elif row.strip():
            begin, start = begin if block else i, item or entry
            name = entry[1] if entry else name
            block.append(row[start.end() if start else 0 :].strip())


def _without_markup(text: str) -> str:
    return re.sub(r"(?s)(?::[\w:]+:)?(`+)(?! )(.+?)\1(?!`)(__?)?", _marked, text)


def _marked(found: re.Match[str]) -> str:
    if found[3]:  # a link
        return re.sub(r"(?s)\s*<[^<]*>$", "", found[2])
    return "Code" + _blank(found)


def of_file(path: Path) -> Iterator[Paragraph]:
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


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a paragraph, each with the line on which it begins, counted from 0."""
    start = 0
    for end in [*(found.end() for found in ENDS.finditer(text)), len(text)]:
        if sentence := " ".join(text[start:end].split()):
            yield text.count("\n", 0, start), sentence
        start = end


def repeats(name: str, text: str) -> bool:
    """Whether an attribute's entry says no more than its name and pronouns."""
    said = set(re.findall(r"\w+", text.lower())) - PRONOUNS
    return said <= {*name.lower().split("_"), name.lower()}


def findings(paragraphs: Iterable[Paragraph]) -> Iterator[Finding]:
    """The rules that paragraphs break."""
    for first, kind, text, name in paragraphs:
        if kind == "entry" and repeats(name, text):
            yield Finding(first, "says only its name", f"{name}: {text}")
        most = MOST_OF_A_CELL if kind == "cell" else MOST_WORDS
        for offset, sentence in sentences(text):
            line, words = first + offset, len(WORD.findall(CITATION.sub("", sentence)))
            if kind != "reference" and words > most:
                yield Finding(line, f"has {words} words, more than {most}", sentence)
            if kind not in ("heading", "cell") and (opening := OPENING.fullmatch(sentence)):
                yield Finding(line, f'begins with "{opening[1]}"', sentence)
            for phrase, instead in PHRASES.items():
                if re.search(rf"\b{phrase}\b", sentence, re.IGNORECASE):
                    yield Finding(line, f'has "{phrase}"; write {instead}', sentence)


def held() -> list[Path]:
    """The pages and files that are held to the rules."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    pages += [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    pages += (ROOT / "src").rglob("*.py")
    return sorted(pages)


if __name__ == "__main__":
    broken = [(path, finding) for path in held() for finding in findings(of_file(path))]
    for path, (line, rule, sentence) in broken:
        print(f"{path.relative_to(ROOT)}:{line}: {rule}: {sentence.replace(TITLE, '')}")
    sys.exit(bool(broken))
