"""The Sphinx extension: generated pages, public names, formulas, and checks of what is built."""

from sphinx.application import Sphinx

from fedprox_docs import generated, mathml, names, notebooks, offline, outputs


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts."""
    for part in (generated, mathml, names, notebooks, offline, outputs):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
