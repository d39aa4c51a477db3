"""The Sphinx extension: generated pages, public names, pages that work offline, formulas."""

from sphinx.application import Sphinx

from fedprox_docs import generated, mathml, names, notebooks, offline


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parts."""
    for part in (generated, mathml, names, notebooks, offline):
        part.setup(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
