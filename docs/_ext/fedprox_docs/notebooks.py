"""Each tutorial as a Jupyter notebook, which its page links to."""

import re
from pathlib import Path

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx

FOLDER = "_build/tutorials"
"""Where the notebooks are written, below the sources, since links to files start there."""

ROLE = re.compile(r"\{[\w:]+\}`~?([^`<]+?)(?: *<[^`]*>)?`")


def notebook(text: str) -> str:
    """A page in MyST Markdown as a notebook; names of functions are code in it, and no links."""
    made = read_myst_markdown_notebook(text)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = ROLE.sub(r"`\1`", cell.source)
        cell.metadata.pop("_source_map", None)
    return nbformat.writes(made)


def _is_tutorial(name: str) -> bool:
    return name.startswith("tutorials/") and name != "tutorials/index"


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path(app.srcdir, "tutorials").glob("*.md"):
        if path.stem != "index":
            made = notebook(path.read_text(encoding="utf-8"))
            (folder / f"{path.stem}.ipynb").write_text(made, encoding="utf-8")


def _link(app: Sphinx, name: str, source: list[str]) -> None:
    del app
    if _is_tutorial(name):
        link = f"{{download}}`Download this page as a notebook </{FOLDER}/{Path(name).name}.ipynb>`"
        source[0] = re.sub(r"^(# .+\n)", rf"\1\n{link}\n", source[0], count=1, flags=re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Write the notebooks before pages are read, and link to them below the pages' titles."""
    app.connect("builder-inited", _write)
    app.connect("source-read", _link)
