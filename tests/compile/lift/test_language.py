"""The language of kernels: every row of docs/python_inside_a_kernel.md, simulated and compiled.

`language` documents the format of a row; ``tests/gpu/test_language_on_gpu.py`` runs the same rows
on a GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from numpipe import CompileError, NumpipeError
from tests.kernels.language import PAGE, Program, Row, Unchecked, parse, tables

TEXT = PAGE.read_text(encoding="utf8")
ROWS = parse(TEXT)
TABLES = tables(ROWS, "table")


def of(kind: str) -> list[Row]:
    return [row for row in ROWS if row.kind == kind]


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def _refused(call: Callable[..., Any], program: Program, row: Row) -> None:
    with pytest.raises(NumpipeError) as caught:
        call(*program.args)
    told = str(caught.value)
    assert row.raises(told), f"{PAGE.name}:{row.line} says\n{row.error}\nbut the error is\n{told}"
    line = int(re.match(r".*:(\d+): kernel", told)[1])  # type: ignore[index]
    first = program.kernel.function.__code__.co_firstlineno + 2
    assert first <= line < first + len(row.code) + len(row.values)


# ---- supported code -------------------------------------------------------------------------
@pytest.mark.parametrize("rows", TABLES, ids=lambda rows: f"table of line {rows[0].line - 2}")
def test_expressions_of_a_table_give_what_it_says(rows: list[Row]) -> None:
    program = Program(rows, TEXT)
    program.kernel.simulate(*program.args)
    assert program.wrong(exactly=True) == []


@pytest.mark.variants(1)
@pytest.mark.parametrize("rows", TABLES, ids=lambda rows: f"table of line {rows[0].line - 2}")
def test_expressions_of_a_table_compile(rows: list[Row]) -> None:
    program = Program(rows, TEXT)
    program.kernel.compiled(*program.args)


@pytest.mark.parametrize("row", of("gives"), ids=str)
def test_code_does_what_its_comments_say(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    program = Program([row], TEXT)
    program.kernel.simulate(*program.args)
    assert program.wrong(exactly=True) == []
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in row.prints if line not in printed] == []


@pytest.mark.variants(4, thorough=20)
@pytest.mark.parametrize("row", of("gives"), ids=str)
def test_code_that_gives_what_its_comments_say_compiles(row: Row) -> None:
    program = Program([row], TEXT)
    program.kernel.compiled(*program.args)


@pytest.mark.variants(4)
@pytest.mark.parametrize("row", of("simulated"), ids=str)
def test_what_has_no_result_is_an_error_simulated_and_compiles(row: Row) -> None:
    program = Program([row], TEXT)
    _refused(program.kernel.simulate, program, row)
    program.kernel.compiled(*program.args)


def test_a_module_constant_counts_as_it_is_when_a_signature_is_first_called() -> None:
    program = Program([Row(0, [], values=[("SIZES[0]", 8)])], TEXT)
    kernel, results = program.kernel, program.results
    kernel.simulate(*program.args)
    program.namespace["SIZES"] = (9, 9, 9)
    kernel.simulate(*program.args)
    assert program.wrong(exactly=True) == []
    kernel.simulate(*program.args, cfg=program.namespace["Config"](rows=128))
    assert (results == 9).all()


# ---- rejected code --------------------------------------------------------------------------
@pytest.mark.parametrize("execution", ["simulate", "compiled"])
@pytest.mark.parametrize("row", of("refused"), ids=str)
def test_both_executions_refuse_it(row: Row, execution: str) -> None:
    program = Program([row], TEXT)
    _refused(getattr(program.kernel, execution), program, row)


@pytest.mark.parametrize("row", of("compiled"), ids=str)
def test_it_runs_simulated_and_is_refused_when_compiled(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda: None)
    program = Program([row], TEXT)
    program.kernel.simulate(*program.args)
    _refused(program.kernel.compiled, program, row)


@pytest.mark.parametrize(
    "said", ["a conditional expression needs one type", "has two layouts here"]
)
def test_a_simulated_call_compiles_too_unless_turned_off(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMPIPE_COMPILE_CHECK")
    row = next(row for row in of("compiled") if said in row.error)
    program = Program([row], TEXT)
    with pytest.raises(CompileError, match=said):
        program.kernel.simulate(*program.args)


# ---- the page ------------------------------------------------------------------------------------
def test_every_line_of_a_table_is_a_test() -> None:
    language = TEXT[: TEXT.index("## Compile time and run time")]
    lines = {
        number for number, line in enumerate(language.split("\n"), 1) if line.startswith("| `")
    }
    assert lines == {row.line for row in ROWS if row.kind != "gives"}
    assert len(TABLES) >= 5 and len(lines) >= 120
    for kind in ("table", "gives", "simulated", "refused", "compiled"):
        assert len(of(kind)) >= 9, kind


@pytest.mark.parametrize(
    "written",
    [
        "| Python | gives | |\n|---|---|---|\n| `n + 1` | | |\n",
        "| Python | gives | |\n|---|---|---|\n| `n + 1` | eight | |\n",
        "| Python | gives | |\n|---|---|---|\n| n + 1 | `8` | |\n",
        "| Python | the error says |\n|---|---|\n| `raise n` | |\n",
        "| Python | what it is |\n|---|---|\n| `n` | a number |\n",
        "```py\nn + 1\n```\n",
        "```py\nn + 1   # gives 8\n\nm = n\n```\n",
        "```py\nn + 1   # gives 8\nm = n\n```\n",
        "```py\nm = n\n\nn + 1  # gives 8\n```\n",
        "```py\nn + 1  # gives 8\n\n\ndef f(k):\n    return k\n```\n",
    ],
)
def test_a_row_without_a_check_is_an_error(written: str) -> None:
    with pytest.raises(Unchecked):
        parse(written)


def test_a_wrong_promise_is_found() -> None:
    rows = parse(
        "| Python | gives | |\n|---|---|---|\n| `n + 1` | `9` | |\n| `n << 24` | `117440513` | |\n"
        "\n```py\nc[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)   # then (c == "
        "1).all()\n```\n"
    )
    program = Program(rows, TEXT)
    program.kernel.simulate(*program.args)
    assert [told.partition(": ")[2] for told in program.wrong(exactly=True)] == [
        "n + 1 gives 8.0, not 9",
        "n << 24 gives 117440512, not 117440513",
        "not so: (c == 1).all()",
    ]
    (row,) = parse("| Python | the error says |\n|---|---|\n| `raise n` | `it … be` |\n\n")
    assert row.raises("f:3: kernel example: it may be\n    raise") and not row.raises(
        "f:3: kernel example: it was"
    )
