"""The Sphinx extension: generated pages, public names, formulas, and checks of what is built."""

from sphinx.application import Sphinx

from fedprox_docs import gallery, generated, mathml, names, notebooks, offline, outputs, search


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts."""
    for part in (gallery, generated, mathml, names, notebooks, offline, outputs, search):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
