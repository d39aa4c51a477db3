"""The gallery: the order of its examples, and figures that pyplot does not know."""

from pathlib import Path
from typing import Any

from fedprox.report.notebook_figure import NotebookFigure

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


def figures(block: object, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures of the library, which pyplot does not know."""
    from sphinx_gallery.scrapers import figure_rst  # here, since tests read the order without it

    del block
    saved = []
    names = block_vars["example_globals"]
    for name, value in list(names.items()):
        if isinstance(value, NotebookFigure):
            del names[name]  # names live from block to block
            saved.append(next(block_vars["image_path_iterator"]))
            value.savefig(saved[-1], dpi=100)
    return figure_rst(saved, gallery_conf["src_dir"])
