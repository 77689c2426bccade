"""examples/gallery: each kernel is short, gives the right numbers, and has a page with its newest
figure."""

from __future__ import annotations

import importlib
import io
import tokenize
from pathlib import Path

import make_gallery
import numpy as np
import pytest

BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


@pytest.mark.parametrize("name", make_gallery.NAMES)
def test_a_kernel_of_the_gallery_is_right_and_short(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    module = importlib.import_module(f"examples.gallery.{name}")
    found = getattr(module, name)(*module.ARRAYS)
    for each, exact in zip(listed(found), listed(module.EXACT), strict=True):
        error = np.linalg.norm(each.astype(float) - exact) / np.linalg.norm(exact)
        assert error <= module.ERROR
    source = (make_gallery.SOURCES / f"{name}.py").read_text(encoding="utf8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    assert len({token.start[0] for token in tokens if token.type not in BLANK}) <= 60
    assert f"]({name}.md)" in (make_gallery.FOLDER / "index.md").read_text(encoding="utf8")


def listed(found: object) -> tuple:
    return found if isinstance(found, tuple) else (found,)


def test_pages_show_the_newest_figures() -> None:
    assert not make_gallery.stale(), "python docs/make_gallery.py"


def test_another_figure_and_a_page_without_one_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = make_gallery.page("softmax").read_text(encoding="utf8")
    monkeypatch.setattr(make_gallery, "FOLDER", tmp_path)
    monkeypatch.setattr(make_gallery, "NAMES", ["softmax"])
    make_gallery.page("softmax").write_text(text.replace("TB/s", "TFLOPS"), encoding="utf8")
    assert make_gallery.stale() == ["softmax"]
    make_gallery.page("softmax").write_text(text.replace("On an", "With an"), encoding="utf8")
    with pytest.raises(ValueError, match="expected 'On an H200"):
        make_gallery.stale()
