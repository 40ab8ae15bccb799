"""Configuration of the documentation site: Sphinx with MyST."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from tvmopt.versions import VERSION  # noqa: E402

project = "tvmopt"
author = "the tvmopt contributors"
copyright = author
version = release = VERSION

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "parameter_tables",
]
exclude_patterns = ["_build", "_ext"]
nitpicky = False  # docstrings name private classes and classes of other packages

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the attributes of a dataclass are listed once
python_maximum_signature_line_length = 88

copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"tvmopt {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
