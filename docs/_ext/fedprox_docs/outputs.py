"""Outputs of code on pages name no folder of the builder's, and hold no warnings."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

OUTPUT = re.compile(r"\b(cell_output|sphx-glr-script-out)\b")
"""The classes of what a notebook's cell and a gallery's example have printed."""

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
"""Elements without an end tag."""

UNFIT = re.compile(
    r"\b\w*Warning\b.*|\bWARNING\b.*"
    r"|(?<![\w:/.~-])/(?:[\w.+-]+/)+[\w.+-]+"  # two folders deep: no fraction, and no address
)
"""A warning, or an absolute path."""


class _Outputs(HTMLParser):
    """Collects the text of a page's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.unread = 0, 0
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        if self.depth:
            self.depth += 1
        elif OUTPUT.search(dict(attrs).get("class") or ""):
            self.depth = 1
            self.found.append("")
        self.unread += tag in ("script", "style", "svg")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        self.depth = max(self.depth - 1, 0)
        self.unread -= tag in ("script", "style", "svg")

    def handle_data(self, data: str) -> None:
        if self.depth and not self.unread:
            self.found[-1] += data


def unfit(page: str) -> Iterator[str]:
    """The warnings and absolute paths in the outputs of a page.

    >>> output = '<div class="cell_output"><pre>/home/ann/a.py:3: UserWarning: old</pre></div>'
    >>> list(unfit(f"<p>/home/ann/b.py</p>{output}"))
    ['/home/ann/a.py', 'UserWarning: old']
    """
    outputs = _Outputs()
    outputs.feed(page)
    for text in outputs.found:
        yield from UNFIT.findall(text)


def _check(app: "Sphinx", error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    from sphinx.errors import ExtensionError  # here, since tests read outputs without it

    for path in sorted(Path(app.outdir).rglob("*.html")):
        if found := list(unfit(path.read_text(encoding="utf-8"))):
            name = path.relative_to(app.outdir)
            raise ExtensionError(f"{name}: outputs hold a warning or a path: {found}")


def setup(app: "Sphinx") -> None:
    """Check the pages at the end of a build."""
    app.connect("build-finished", _check)
