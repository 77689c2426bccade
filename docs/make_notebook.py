"""Make the notebooks: ``python docs/make_notebook.py`` writes docs/guide/pipelining.ipynb from the
guide's pages, and examples/puzzles/puzzles.ipynb from the puzzles."""

from __future__ import annotations

import re
from pathlib import Path

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


PUZZLES = pages.ROOT / "examples" / "puzzles" / "puzzles.ipynb"
PUZZLES_HEAD = """# Puzzles

Ten kernels to complete, from a first ring to two GPUs. They need numpipe and no GPU. Change a
kernel and run its cell, then run the cell after it, which checks the kernel and gives a hint. Keep
the notebook in its folder: the checks import `checker.py`. In a terminal,
`python -m numpipe puzzles` does the same with the files next to this notebook."""


def puzzle_cells() -> list[tuple[str, str]]:
    """Like `cells`: for each puzzle its text, its kernel, and its check."""
    found = [("markdown", PUZZLES_HEAD)]
    for number, file in enumerate(sorted(PUZZLES.parent.glob("p[0-9]*.py")), 1):
        _, text, code = file.read_text(encoding="utf8").split('"""', 2)
        kernel, check = re.split(r"^# ---- the check.*\n", code, flags=re.MULTILINE)
        check = check.replace("  # noqa: E402", "").replace('if __name__ == "__main__":\n    ', "")
        found += [
            ("markdown", f"## {number}. {text.strip()}"),
            ("code", kernel.strip()),
            ("code", check.strip()),
        ]
    return found


def write(file: Path, made_of: list[tuple[str, str]]) -> None:
    import nbformat

    made = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    notebook = nbformat.v4.new_notebook(
        cells=[
            made[kind](text, id=f"cell-{number}") for number, (kind, text) in enumerate(made_of)
        ],
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )
    nbformat.validate(notebook)
    nbformat.write(notebook, file)


if __name__ == "__main__":
    write(NOTEBOOK, cells())
    write(PUZZLES, puzzle_cells())
