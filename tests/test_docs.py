"""The code blocks of README and docs do what they say: each runs here, on the simulated SM.

A fence ```` ```python ```` is executed; with ``no-run`` behind it, it is compiled only; with ``gpu``, it runs where a
GPU is (tests/gpu/test_docs_on_gpu.py). The blocks of a page share one namespace, as a reader would type them.
"""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python(?P<marks>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    line: int
    code: str
    marks: frozenset[str]

    @classmethod
    def of(cls, page: Path) -> list[Block]:
        text = page.read_text(encoding="utf8")
        return [cls(text.count("\n", 0, m.start("code")), m["code"], frozenset(m["marks"].split()))
                for m in FENCE.finditer(text)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(page: Path, folder: Path, *, gpu: bool) -> int:
    """Run the page's blocks, those for a GPU only if there is one -> how many ran.

    Each block becomes a real file, because kernels are compiled from their source, with the page's line numbers.
    """
    module = types.ModuleType("page_" + re.sub(r"\W", "_", name(page)))
    sys.modules[module.__name__] = module  # dataclasses look their module up
    ran = 0
    for block in Block.of(page):
        file = folder / f"{module.__name__}_{block.line}.py"
        file.write_text("\n" * block.line + block.code, encoding="utf8")
        code = compile(file.read_text(encoding="utf8"), str(file), "exec")
        if "no-run" not in block.marks and (gpu or "gpu" not in block.marks):
            exec(code, module.__dict__)
            ran += 1
    return ran


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.chdir(tmp_path)
    unknown = {mark for block in Block.of(page) for mark in block.marks} - {"no-run", "gpu"}
    assert not unknown, f"{name(page)}: unknown marks {unknown} on a python fence"
    run(page, tmp_path, gpu=False)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/python_inside_a_kernel.md"])
def test_page_shows_code_that_runs(page: str) -> None:
    assert any(not block.marks for block in Block.of(ROOT / page))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf8"))
    assert not [t for t in targets if not (page.parent / t).exists()]


def test_the_index_lists_every_page_twice() -> None:
    """For Sphinx, and for those who read the files."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert {f"{line}.md" for line in index.partition("```{toctree}\n")[2].partition("```")[0].split()} == pages
    assert set(LINK.findall(index)) == pages
