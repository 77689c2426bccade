"""Write measured figures into the pages of the gallery: ``python docs/make_gallery.py``.

Under "On a GPU", each page of docs/gallery begins with the row of its kernel in the newest file of
examples/benchmarks/gallery.py in docs/results. A test compares the two (`stale`).
"""

from __future__ import annotations

import gzip
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pages

FOLDER = pages.ROOT / "docs" / "gallery"
SOURCES = pages.ROOT / "examples" / "gallery"
NAMES = sorted(path.stem for path in SOURCES.glob("*.py"))
_FIGURE = re.compile(
    r"(?<=^## On a GPU\n\n)On (?:an|two) H[12]00s?: .*?\n(?=\n|\Z)", re.MULTILINE | re.DOTALL
)


def results() -> tuple[str, dict[str, Any]]:
    """Return the name of the newest file of results, and its rows by the kernel's name."""
    path = max((pages.ROOT / "docs" / "results").glob("gallery_h*.json.gz"), key=_order)
    rows = json.loads(gzip.decompress(path.read_bytes()))["rows"]
    return path.name, {row["case"]["kernel"]: row for row in rows}


def _order(path: Path) -> tuple[str, int]:
    day, number = path.name.removesuffix(".json.gz").split("_")[-2:]
    return day, int(number)


def figure(file: str, row: dict[str, Any]) -> str:
    """Return the line of a page about a row of results."""
    device = "H200" if "h200" in file else "H100"
    on = f"two {device}s" if row["case"].get("gpus") == 2 else f"an {device}"
    of = "the op" if row["reference"] == "op" else row["reference"]
    micros = 1e6 * row["work"] / row["rate"]
    rate = row["rate"]
    text = (
        f"On {on}: {micros:,.0f} µs for {row['case']['what']}, "
        f"{rate:,.{0 if rate > 100 else 2}f} {row['case']['unit']}, {row['ratio']['median']:.2f} "
        f"times the speed of {of} ([results](../results/{file}))."
    )
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def page(name: str) -> Path:
    return FOLDER / f"{name}.md"


def written(name: str) -> str:
    """Return the page with the newest figure."""
    file, rows = results()
    text = page(name).read_text(encoding="utf8")
    text, count = _FIGURE.subn(lambda _: figure(file, rows[name]), text, count=1)
    if name in rows and not count:
        raise ValueError(f"{page(name)}: expected 'On an H200: …' first under 'On a GPU'")
    return text


def stale() -> list[str]:
    """Return the kernels whose page shows another figure."""
    return [name for name in NAMES if written(name) != page(name).read_text(encoding="utf8")]


if __name__ == "__main__":
    for name in NAMES:
        page(name).write_text(written(name), encoding="utf8")
