"""Code blocks of the docs that need a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_docs import PAGES, Block, name, run


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any("gpu" in b.marks for b in Block.of(p))], ids=name
)
def test_page_runs_on_the_gpu(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("NUMPIPE_TARGET", "gpu")
    monkeypatch.chdir(tmp_path)
    assert run(page, tmp_path, gpu=True)
