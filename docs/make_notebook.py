"""Make the guide's notebook: ``python docs/make_notebook.py`` writes docs/guide/pipelining.ipynb
from the guide's pages."""

from __future__ import annotations

import re

import pages

NOTEBOOK = pages.ROOT / "docs" / "guide" / "pipelining.ipynb"
HEAD = """# Pipelining guide

The text and code of numpipe's pipelining guide. It needs numpipe, and no GPU: kernels run on the
simulated SM. The guide's pages have pictures too; here `print(trace.timeline())` shows a trace as
text. Code that needs a GPU is text here."""
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")
SETTINGS = (
    'import os\n\nos.environ["NUMPIPE_TARGET"] = "sim"           # delete this line to run on a '
    "GPU what needs no trace"
)


def cells() -> list[tuple[str, str]]:
    """("markdown" | "code", text), in the order of the guide."""
    found = [("markdown", HEAD), ("code", SETTINGS)]
    for page in pages.GUIDE:
        text = page.read_text(encoding="utf8")
        end = 0
        for fence in pages.FENCE.finditer(text):
            if fence["marks"].strip():
                continue
            found += [
                ("markdown", _prose(text[end : fence.start()])),
                ("code", fence["code"].strip()),
            ]
            end = fence.end()
        found.append(("markdown", _prose(text[end:])))
    return [(kind, text) for kind, text in found if text]


def _prose(text: str) -> str:
    """Without pictures and links to other pages, which a notebook that was downloaded does not have
    beside it."""
    return _LINK.sub(r"\1", _PICTURE.sub("", text)).strip()


def main() -> None:
    import nbformat

    made = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    notebook = nbformat.v4.new_notebook(
        cells=[
            made[kind](text, id=f"cell-{number}") for number, (kind, text) in enumerate(cells())
        ],
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    nbformat.validate(notebook)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
