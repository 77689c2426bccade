"""The pages of README and docs as programs: their code blocks, found, and run as a reader would
type them.

A fence ```` ```python ```` is executed; with ``no-run`` after it, it is compiled only; with
``gpu``, it runs where a GPU is. The blocks of a page share one namespace. Tests run them
(tests/docs), the guide's pictures are drawn from what they recorded (`make_figures`), and the
guide's notebook has them as cells (`make_notebook`).
"""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = [ROOT / "docs" / "guide" / f"{name}.md" for name in ("why", "matmul", "tuning", "reading")]
FENCE = re.compile(r"^```python(?P<marks>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A piece of code of a page; `line` lines of the page come before it."""

    line: int
    code: str
    marks: frozenset[str]

    @classmethod
    def of(cls, page: Path) -> list[Block]:
        text = page.read_text(encoding="utf8")
        return [
            cls(text.count("\n", 0, m.start("code")), m["code"], frozenset(m["marks"].split()))
            for m in FENCE.finditer(text)
        ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(page: Path, folder: Path, *, gpu: bool) -> types.ModuleType:
    """Run the page's blocks, those for a GPU only if there is one, and return the module that they
    make.

    Each block becomes a real file in `folder`, because kernels are compiled from their source, with
    the page's line numbers.
    """
    module = types.ModuleType("page_" + re.sub(r"\W", "_", name(page)))
    sys.modules[module.__name__] = module  # dataclasses look their module up
    for block in Block.of(page):
        file = folder / f"{module.__name__}_{block.line}.py"
        file.write_text("\n" * block.line + block.code, encoding="utf8")
        code = compile(file.read_text(encoding="utf8"), str(file), "exec")
        if "no-run" not in block.marks and (gpu or "gpu" not in block.marks):
            exec(code, module.__dict__)
    return module
