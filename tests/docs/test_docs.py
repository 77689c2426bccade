"""README and docs: code blocks run on the simulated SM, links resolve, generated files are current.

A ```` ```python ```` fence is executed; a ``no-run`` fence is compiled only; a ``gpu`` fence runs
if there is a GPU (tests/gpu/test_docs_on_gpu.py). The blocks of a page share one namespace
(docs/pages.py).
"""

from __future__ import annotations

import json
import re
import runpy
import types
from pathlib import Path

import make_figures
import make_notebook
import make_reference
import pytest
from pages import GUIDE, PAGES, ROOT, Block, name, run

import numpipe
from numpipe import errors
from numpipe.hazards import HAZARDS
from tests.test_rooms import floors

TABLES = set((ROOT / "docs" / "results").glob("*_*.md"))
"""tables written by benchmarks, which pages include"""

LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")
TOCTREE = re.compile(r"^```\{toctree\}\n(?::\w+:[^\n]*\n)*(.*?)^```$", re.MULTILINE | re.DOTALL)


COMPILED = ("README.md", "docs/quickstart.md", "docs/guide/matmul.md")
"""pages whose kernels are always compiled too

Kernels of other pages are compiled with ``-m soak``, and when tests run on a GPU.
"""


@pytest.mark.soak
@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in COMPILED], ids=name)
def test_the_kernels_of_a_page_compile(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.chdir(tmp_path)
    run(page, tmp_path, gpu=False)


@pytest.mark.variants(8)
@pytest.mark.parametrize(
    "page", sorted(PAGES, key=lambda page: name(page) not in COMPILED), ids=name
)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.chdir(tmp_path)
    unknown = {mark for block in Block.of(page) for mark in block.marks} - {"no-run", "gpu"}
    assert not unknown, f"{name(page)}: unknown marks {unknown} on a python fence"
    if name(page) not in COMPILED:
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    module = run(page, tmp_path, gpu=False)
    assert not make_figures.stale(name(page).removeprefix("docs/").removesuffix(".md"), module), (
        "python docs/make_figures.py"
    )


@pytest.mark.parametrize(
    "page", ["README.md", "docs/quickstart.md", "docs/python_inside_a_kernel.md", *map(name, GUIDE)]
)
def test_page_shows_code_that_runs(page: str) -> None:
    assert any(not block.marks for block in Block.of(ROOT / page))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf8"))
    assert not [t for t in targets if not (page.parent / t).exists()]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "docs" in page.parts and page not in TABLES], ids=name
)
def test_a_page_opens_with_what_it_is_for(page: Path) -> None:
    """One short paragraph of prose after the title: no list, table, picture or code."""
    title, first, *_ = page.read_text(encoding="utf8").split("\n\n")
    assert re.fullmatch(r"# \S[^\n]*", title)
    assert re.match(r"[\w`]", first) and first.endswith(".")
    assert 8 <= len(first.split()) <= 80


def test_no_part_of_the_site_has_more_than_eight_pages() -> None:
    """The pages of the guide count with the part that lists the guide."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf8")
    guide = len(
        TOCTREE.findall((ROOT / "docs" / "guide" / "index.md").read_text(encoding="utf8"))[
            0
        ].split()
    )
    parts = [tree.split() for tree in TOCTREE.findall(index)]
    assert len(parts) == 8
    assert all(len(part) + ("guide/index" in part) * guide <= 8 for part in parts)


def test_the_language_page_has_every_public_name() -> None:
    shown = set(re.findall(r"\w+", (ROOT / "docs" / "language.md").read_text(encoding="utf8")))
    assert not set(numpipe.__all__) - shown


def test_the_reference_says_what_the_docstrings_say() -> None:
    assert not make_reference.stale(), "python docs/make_reference.py"


def test_a_reference_page_without_a_name_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_reference.FOLDER / "index.md"
    (tmp_path / "index.md").write_text(
        whole.read_text(encoding="utf8").replace("### wgmma\n", "", 1), encoding="utf8"
    )
    monkeypatch.setattr(make_reference, "FOLDER", tmp_path)
    assert make_reference.stale() == ["index.md"]


def test_the_sidebar_lists_every_page_once() -> None:
    listed = [ROOT / "docs" / "index.md"]
    for index in (ROOT / "docs").rglob("index.md"):
        for tree in TOCTREE.findall(index.read_text(encoding="utf8")):
            listed += [(index.parent / f"{line}.md").resolve() for line in tree.split()]
    assert sorted(listed) == sorted(set((ROOT / "docs").rglob("*.md")) - TABLES)


# ---- the README
def test_the_race_in_the_readme_is_what_its_kernel_prints_with_one_line_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.chdir(tmp_path)
    readme = ROOT / "README.md"
    source = "\n".join(block.code for block in Block.of(readme))
    assert source.count("    num_compute_wgs=1,\n") == 1
    Path("product.py").write_text(
        source.replace("    num_compute_wgs=1,\n", "    num_compute_wgs=2,\n"), encoding="utf8"
    )
    with pytest.raises(numpipe.PipelineRace) as race:
        runpy.run_path("product.py")
    assert f"```text\n{race.value}\n```" in readme.read_text(encoding="utf8")


def test_the_readme_is_short_and_shows_a_picture_that_a_test_keeps() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf8")
    assert len(text.splitlines()) <= 130
    first = Block.of(ROOT / "README.md")[0].code
    assert len(first[first.index("@numpipe.kernel") :].splitlines()) <= 24
    shown = {Path(link).stem for link in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)}
    assert shown and shown <= set(make_figures.CATALOGUE)


# ---- files generated from the guide
def test_a_picture_of_something_else_is_stale() -> None:
    page = types.ModuleType("why")
    page.traces = {slots: numpipe.Trace() for slots in (1, 2, 3)}
    assert make_figures.stale("guide/why", page) == ["slots_1_2_3", "slots_and_barriers"]


def test_every_picture_is_shown_by_the_page_whose_code_it_is_drawn_from() -> None:
    for picture, (page, _, _) in make_figures.CATALOGUE.items():
        assert f"]({'../' * page.count('/')}figures/{picture}.svg)" in (
            ROOT / "docs" / f"{page}.md"
        ).read_text(encoding="utf8")
    shown = {
        Path(link).name for page in PAGES for link in LINK.findall(page.read_text(encoding="utf8"))
    }
    assert {path.name for path in make_figures.FIGURES.glob("*.svg")} <= shown


def test_the_picture_of_the_architecture_shows_the_table_of_rooms() -> None:
    drawn = (make_figures.FIGURES / "architecture.svg").read_text(encoding="utf8")
    assert drawn == make_figures.architecture(), "python docs/make_figures.py"
    assert drawn.count("<rect") == len(floors()) > 10


def test_the_notebook_is_the_guide() -> None:
    notebook = json.loads(make_notebook.NOTEBOOK.read_text(encoding="utf8"))
    held = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert held == make_notebook.cells(), "python docs/make_notebook.py"
    code = [text for kind, text in held if kind == "code"]
    assert code[1:] == [
        block.code.strip() for page in GUIDE for block in Block.of(page) if not block.marks
    ]


# ---- troubleshooting
def sections(page: str) -> dict[str, str]:
    """Return heading -> text, of headings that are a name in backquotes."""
    parts = re.split(
        r"^#+ (.*)$", (ROOT / "docs" / page).read_text(encoding="utf8"), flags=re.MULTILINE
    )
    return {
        heading.strip("`"): text
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
        if heading.startswith("`")
    }


def test_every_error_and_every_hazard_has_its_cause_and_its_fix() -> None:
    found = sections("troubleshooting.md")
    kinds = {
        kind.__name__
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.NumpipeError)
    }
    assert set(found) == kinds | set(HAZARDS)
    for hazard in HAZARDS:
        assert re.match(r"\n+\S[^*]*\n\n\*Cause:\* \S[^*]*\n\*Fix:\* \S", found[hazard]), hazard
    assert all("*Fix:*" in found[kind] for kind in kinds - {"NumpipeError"})
