"""tests/code_digests.py: the recorded digests equal those of compiled code, and changes are
detected and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import code_digests
from tests.code_digests import RECORDED, cases, compare, main, plain, record, toolchain

KNOWN = json.loads(RECORDED.read_text(encoding="utf8"))
COPY, SLOWER = "copy_pipeline, run 8, float16", "copy_pipeline, run 2, float16"
as_recorded = pytest.mark.skipif(
    KNOWN["toolchain"] != toolchain(),
    reason=f"the digests are of {KNOWN['toolchain']}, this is {toolchain()}",
)


@pytest.mark.variants(1)
@as_recorded
@pytest.mark.parametrize("name", [COPY, "gemm, float16", "covering array 0, plan 0"])
def test_a_case_has_the_code_that_was_recorded(name: str) -> None:
    """After an intended change, `python tests/code_digests.py record` writes all digests anew."""
    assert compare(RECORDED, [name]) == []


def test_every_case_is_recorded_once_and_no_other() -> None:
    names = [name for name, _ in cases()]
    assert len(set(names)) == len(names) and names == list(KNOWN["cases"])
    assert {"/", "\n"}.isdisjoint("".join(names))  # they are file names


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that records cases with some texts, and then compares cases with others."""
    now: dict[str, code_digests.Texts] = {}
    monkeypatch.setattr(
        code_digests,
        "cases",
        lambda: ((name, lambda texts=texts: texts.__getitem__) for name, texts in now.items()),
    )

    def written_then(
        before: dict[str, code_digests.Texts], after: dict[str, code_digests.Texts], *more: str
    ) -> int:
        now.update(before)
        assert main(["record", str(tmp_path / "known.json"), "--processes", "1"]) == 0
        now.clear()
        now.update(after)
        return main(
            [
                "compare",
                str(tmp_path / "known.json"),
                "--processes",
                "1",
                "--texts",
                str(tmp_path / "texts"),
                *more,
            ]
        )

    return written_then


PTX = (
    ".entry _ZN4copyB2v1_26(\n\t.param .u64 _ZN4copyB2v1_26_param_1 )\n\tmov.u32 %r1, 8; // of "
    "line 7\n"
)
SASS = ".text._ZN4copyB2v1_26:\n /*0000*/ MOV R1, 0x8 ;\n"
OF_ANOTHER_MODULE = {
    "ptx": PTX.replace("copyB2v1_26", "moved4copyB3v9").replace("line 7", "line 9"),
    "sass": SASS.replace("copyB2v1_26", "moved4copyB3v9"),
}


def test_names_and_comments_do_not_matter(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert written({"x": {"ptx": PTX, "sass": SASS}}, {"x": OF_ANOTHER_MODULE}) == 0
    assert capsys.readouterr().out.endswith("0 of 1 cases differ\n")


def test_which_function_is_meant_matters() -> None:
    assert plain("call _ZN1f; call _ZN1g;") != plain("call _ZN1f; call _ZN1f;")
    assert plain("ld [_ZN1f_param_1]") != plain("ld [_ZN1f_param_2]")


def test_what_differs_is_named_and_kept(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"ptx": PTX, "sass": SASS}
    wider = {
        "ptx": PTX.replace("mov.u32", "add.u32 %r2, %r1, 1; mov.u32"),
        "sass": SASS.replace("0x8", "0x9"),
    }
    assert (
        written(
            {"p": same, "q": same, "both": same, "lost": same},
            {"p": same | {"ptx": wider["ptx"]}, "q": same, "both": wider, "new": same},
        )
        == 1
    )
    assert capsys.readouterr().out.splitlines()[1:] == [
        "p: PTX differs",
        "both: PTX and SASS differ",
        "new: not recorded",
        "lost: recorded, and no case any more",
        "4 of 5 cases differ",
    ]
    assert {path.stem for path in (tmp_path / "texts").iterdir()} == {"p", "both", "new"}
    assert (tmp_path / "texts" / "p.ptx").read_text(encoding="utf8") == plain(wider["ptx"])


def test_some_cases_alone_are_compared_and_recorded(written: Any, tmp_path: Path) -> None:
    same, other = {"ptx": PTX, "sass": SASS}, {"ptx": PTX, "sass": SASS + "NOP ;"}
    assert written({"a b": same, "c": same}, {"a b": same, "c": other}, "--only", "a") == 0
    file = tmp_path / "known.json"
    assert compare(file, ["a b", "c"]) == ["c"]
    assert main(["record", str(file), "--only", "c", "--processes", "1"]) == 0
    assert compare(file, ["a b", "c"]) == []
    with pytest.raises(SystemExit):
        main(["compare", str(file), "--only", "no such case"])


@pytest.mark.thorough
@as_recorded
def test_other_code_under_the_name_of_a_case_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = next(made for name, made in cases() if name == SLOWER)
    monkeypatch.setattr(code_digests, "cases", lambda: iter([(COPY, made)]))
    assert compare(RECORDED, [COPY]) == [COPY]
    assert f"{COPY}: PTX and SASS differ" in capsys.readouterr().out
    record(tmp_path / "known.json", [COPY])
    assert compare(tmp_path / "known.json", [COPY]) == []


def test_another_toolchain_is_reported(
    written: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    same = {"x": {"ptx": PTX, "sass": SASS}}
    assert written(same, same) == 0 and "recorded with" not in capsys.readouterr().out
    monkeypatch.setattr(code_digests, "toolchain", lambda: {"numba": "0.1"})
    assert compare(tmp_path / "known.json", ["x"]) == []
    assert "here are      {'numba': '0.1'}" in capsys.readouterr().out
