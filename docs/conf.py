"""The documentation site: `make docs` builds it, offline, with warnings as errors."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import fedprox

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]  # of `experiments`, too


def digest_of_sources() -> str:
    """A digest of the package's code, on which the outputs of notebooks depend."""
    found = hashlib.sha256()
    for path in sorted(Path(fedprox.__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


project = "fedprox"
author = "fedprox developers"
project_copyright = author
version = release = fedprox.__version__

extensions = [
    "fedprox_docs.extension",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_ext", "examples", "gallery/*.ipynb", "**/.ipynb_checkpoints"]

# cross-references
nitpicky = True
default_role = "py:obj"  # a name in single backticks is a link if it is documented, else code
nitpick_ignore_regex = [
    ("py:obj", r".*"),
    # other projects' names, whose inventories a build without a network cannot read
    ("py:.*", r"(jax|jaxlib|flax|linen|nnx|numpy|np|optax|matplotlib|pydantic)\..*"),
    ("py:.*", r"(collections|pathlib|typing|types|datetime|os|enum|signal)\..*"),
    # private types, which annotations name by where they are defined
    ("py:class", r"fedprox\.(?!datasets|diagnostics|losses|metrics|models)[a-z_]+\..+"),
    ("py:class", r"fedprox\.(datasets|diagnostics|losses|metrics|models)\.[a-z_]+\..+"),
    ("py:class", r"(Array|ArrayLike|DTypeLike|NDArray|Figure|Dataset|PathLike|Path|Traversable)"),
]

# Markdown
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_update_mathjax = False

# notebooks; a dependency of a dependency warns where ipywidgets are missing
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks" / digest_of_sources())
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}

# the gallery, run anew when the package has changed
MADE = HERE / "gallery" / f"made-by-{digest_of_sources()}"
if not MADE.exists():
    shutil.rmtree(MADE.parent, ignore_errors=True)
    MADE.parent.mkdir()
    MADE.touch()
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "",
    "within_subsection_order": "fedprox_docs.gallery.order",
    "image_scrapers": ("matplotlib", "fedprox_docs.gallery.figures"),
    "reset_modules": ("matplotlib", "fedprox_docs.gallery.look"),
    "abort_on_example_error": True,
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,  # a page that loads scripts of another host
    "remove_config_comments": True,
    "thumbnail_size": (600, 420),
}

# the API reference
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autosummary_generate = False
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # fedprox_docs.names adds the types
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# the look
html_theme = "sphinx_book_theme"
html_title = f"fedprox {version}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_persistent": [],
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
