"""Sphinx: ``pip install -e '.[docs]' && sphinx-build -W docs build/docs``. The pages are the
Markdown files of this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpipe

sys.path.insert(0, str(Path(__file__).parent))
import make_figures

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


def write_timeline(app: Any, error: Exception | None) -> None:
    """Write the page that docs/timeline.md shows: its code writes it to the current folder."""
    if error is None and app.builder.format == "html":
        before = os.getcwd()
        os.chdir(app.outdir)
        try:
            make_figures.simulated("timeline")
        finally:
            os.chdir(before)


def setup(app: Any) -> None:
    app.connect("build-finished", write_timeline)
