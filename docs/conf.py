"""Sphinx: ``pip install -e '.[docs]' && sphinx-build -W docs build/docs``. The pages are the
Markdown files of this folder."""

from __future__ import annotations

import numpipe

project = "numpipe"
copyright = "the numpipe authors"
release = version = numpipe.__version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "results/*_*.md"]  # tables, which pages include
html_theme = "furo"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["numpipe.css"]
html_favicon = "_static/favicon.svg"
html_title = f"numpipe {release}"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
