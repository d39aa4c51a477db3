"""Pages need nothing from other hosts: a build that asks for it fails."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["'](?P<src>(?:https?:)?//[^"']+)"""
    r"""|<link\b[^>]*?\bhref=["'](?P<href>(?:https?:)?//[^"']+)""",
    re.IGNORECASE,
)
"""What a browser loads with a page."""


def loaded_from_elsewhere(page: str) -> Iterator[str]:
    """The addresses on other hosts from which a page loads scripts, styles or pictures.

    >>> list(loaded_from_elsewhere('<script src="https://a/b.js"></script><a href="https://c">'))
    ['https://a/b.js']
    """
    for found in LOADED.finditer(page):
        yield found["src"] or found["href"]


def _check(app: "Sphinx", error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for path in sorted(Path(app.outdir).rglob("*.html")):
        for address in loaded_from_elsewhere(path.read_text(encoding="utf-8")):
            raise ValueError(f"{path.relative_to(app.outdir)} loads {address}")


def setup(app: "Sphinx") -> None:
    """Check the pages at the end of a build."""
    app.connect("build-finished", _check)
