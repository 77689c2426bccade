"""Sphinx: ``pip install -e '.[docs]' && sphinx-build docs build/docs``."""

project = "numpipe"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
