"""The rows of docs/python_inside_a_kernel.md on the GPU: supported code gives the stated values,
and integers wrap."""

from __future__ import annotations

import pytest

from tests.kernels.language import PAGE, Program, Row, parse, tables

TEXT = PAGE.read_text(encoding="utf8")
ROWS = parse(TEXT)


def _run(rows: list[Row]) -> None:
    program = Program(rows, TEXT)
    program.kernel(*program.args, target="gpu")
    assert program.wrong(exactly=False) == []


@pytest.mark.parametrize(
    "rows", tables(ROWS, "table"), ids=lambda rows: f"table of line {rows[0].line - 2}"
)
def test_expressions_of_a_table_give_what_it_says(rows: list[Row]) -> None:
    _run(rows)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind == "gives"], ids=str)
def test_code_does_what_its_comments_say(row: Row) -> None:
    _run([row])


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.kind == "simulated" and row.values], ids=str
)
def test_what_is_an_error_simulated_gives_this(row: Row) -> None:
    _run([row])
