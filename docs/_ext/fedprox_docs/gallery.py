"""The gallery: the order of its examples, how lines look, and figures that pyplot does not know."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprox.report.figure import DASHES, styles
from fedprox.report.notebook_figure import NotebookFigure

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ORDER = (
    "stragglers",
    "mu_sweep",
    "partition_skew",
    "client_drift",
    "server_optimizers",
    "devices_and_time",
    "asynchronous",
    "compressed_messages",
    "robust_aggregation",
    "client_privacy",
    "personal_models",
    "clusters",
    "fairness",
    "adapters",
    "own_loop",
    "own_objective",
    "diagnose",
    "paired_study",
    "records_in_pandas",
)
"""The examples from what most readers look for to what few do."""


def order(name: str) -> int:
    """The place of an example's file in the gallery."""
    return ORDER.index(Path(name).stem)


def look(gallery_conf: dict[str, Any], example: str) -> None:
    """Give an example's figure the size of a card, and the colours of the library's own figures."""
    import matplotlib as mpl
    from cycler import cycler

    del gallery_conf, example
    looks = styles(map(str, range(8))).values()
    mpl.rcParams |= {
        "axes.prop_cycle": cycler(
            color=[each["colour"] for each in looks],
            linestyle=[DASHES[each["dash"]] for each in looks],
        ),
        "figure.figsize": (4.4, 3.1),
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "savefig.dpi": 160,
    }


def figures(block: object, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures of the library, which pyplot does not know, and a panel for a thumbnail."""
    from sphinx_gallery.scrapers import figure_rst  # here, since tests read the order without it

    del block
    saved = []
    names = block_vars["example_globals"]
    for name, value in list(names.items()):
        if isinstance(value, NotebookFigure):
            del names[name]  # names live from block to block
            saved.append(next(block_vars["image_path_iterator"]))
            value.savefig(saved[-1], dpi=150)
            _save_panel(value, _panel_of(Path(saved[-1]).parent, block_vars["src_file"]))
    return figure_rst(saved, gallery_conf["src_dir"])


def _panel_of(images: Path, example: str) -> Path:
    """The picture of one panel of an example."""
    return images / f"panel_{Path(example).stem}.png"


def _save_panel(figure: NotebookFigure, path: Path) -> None:
    """Save the panel of the test accuracy, or the first, alone in a card."""
    from matplotlib.gridspec import GridSpec

    panel = next((each for each in figure.axes if "accuracy" in each.get_title()), figure.axes[0])
    for other in figure.axes:
        if other is not panel:
            other.remove()
    (names,) = figure.legends
    handles = [handle for handle in names.legend_handles if handle is not None]
    panel.legend(handles, [text.get_text() for text in names.get_texts()], fontsize=8)
    names.remove()
    figure.suptitle("")
    figure.set_size_inches(4.4, 3.1)
    panel.set_subplotspec(GridSpec(1, 1, figure=figure)[0])
    figure.savefig(path, dpi=160)


def _thumbnails(app: "Sphinx") -> None:
    """A thumbnail shows one panel, which can be seen in its size."""
    images = Path(app.srcdir) / app.config.sphinx_gallery_conf["gallery_dirs"] / "images"
    for name in ORDER:
        if (panel := _panel_of(images, name)).exists():
            shutil.copyfile(panel, images / "thumb" / f"sphx_glr_{name}_thumb.png")


def setup(app: "Sphinx") -> None:
    """Change thumbnails once the gallery, which registers first, has made its own."""
    app.connect("builder-inited", _thumbnails, priority=900)
