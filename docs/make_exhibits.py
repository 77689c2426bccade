"""Write today's reports into the pages of exhibits: ``python docs/make_exhibits.py``.

Each page of docs/exhibits shows the kernel of the same name in examples/exhibits, and what
`numpipe.verify` prints about it in its first ``text`` block. A test compares the two (`stale`).
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pages

import numpipe

FOLDER = pages.ROOT / "docs" / "exhibits"
SOURCES = pages.ROOT / "examples" / "exhibits"
sys.path.append(str(pages.ROOT))
NAMES = sorted(path.stem for path in SOURCES.glob("*.py"))
_REPORT = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_SECONDS = re.compile(r"in \d+\.\d+ s:")


def verified(name: str, *, fixed: bool) -> numpipe.Verification:
    """Verify an exhibit: 21 schedules of the broken kernel, or all schedules of the fixed one."""
    module = importlib.import_module(f"examples.exhibits.{name}")
    schedules = "all" if fixed else 21
    return numpipe.verify(getattr(module, name), *module.ARRAYS, schedules=schedules, fixed=fixed)


def page(name: str) -> Path:
    return FOLDER / f"{name}.md"


def written(name: str) -> str:
    """Return the page with today's report: the table of hazards, and the first of them in full."""
    result = verified(name, fixed=False)
    begin = "\n\n".join(str(result).split("\n\n")[:2])
    report = f"{begin}\n".replace(f"{SOURCES}/", "")
    return _REPORT.sub(lambda _: report, page(name).read_text(encoding="utf8"), count=1)


def stale() -> list[str]:
    """Return the exhibits whose page shows another report; times may differ."""
    return [
        name
        for name in NAMES
        if _SECONDS.sub("", written(name))
        != _SECONDS.sub("", page(name).read_text(encoding="utf8"))
    ]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page(name).write_text(written(name), encoding="utf8")
    if len(sys.argv) == 1:  # a process for each, as a reader has
        for name in NAMES:
            subprocess.run([sys.executable, __file__, name], check=True)
