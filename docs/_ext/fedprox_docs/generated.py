"""Pages with content from the code or from results: a comment `<!-- NAME -->` stands for it."""

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from fedprox_docs import commands, compatible, keys, methods, papers

# made before autodoc changes the signatures that it reads
PAGES = {
    "reference/experiment-keys": ("<!-- experiment keys -->", keys.page()),
    "reference/node-file": ("<!-- node and operator files -->", keys.node_page()),
    "reference/command": ("<!-- commands -->", commands.page()),
    "reference/api/methods": ("<!-- methods -->", methods.page()),
    "concepts/compatible": ("<!-- what goes with what -->", compatible.page()),
    "concepts/local-problem": ("<!-- methods -->", methods.table()),
}


def _fill(app: Sphinx, name: str, source: list[str]) -> None:
    del app
    if name.startswith("papers/"):
        source[0] = papers.filled(source[0])
    if name in PAGES:
        mark, page = PAGES[name]
        if mark not in source[0]:
            raise ValueError(f"{name}: no {mark}")
        source[0] = source[0].replace(mark, page)


def _draw(app: Sphinx) -> None:
    papers.draw_figures(Path(app.srcdir) / "papers")


def _outdated(app: Sphinx, env: BuildEnvironment, *_: object) -> list[str]:
    del app
    return [*PAGES, *(name for name in env.found_docs if name.startswith("papers/"))]


def setup(app: Sphinx) -> None:
    """Draw figures, fill the pages each time they are read, and read them in every build."""
    app.connect("builder-inited", _draw)
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _outdated)
