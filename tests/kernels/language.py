"""The rows of docs/python_inside_a_kernel.md, and kernels generated from them.

A row is one of

* ``| `code` | `value` | note |`` in a table headed *Python, gives*: an expression and its value;
* ``| `code` | `error` | `value` |`` in a table headed *Python, simulated, on the GPU*: an error in
  the simulator; on a GPU a value, where one is given in backticks;
* ``| `code` | `error` |`` in a table headed *Python, the error says*: rejected by both executions;
  headed *Python, compiled, the error says*: rejected when compiled. A ``…`` in an error matches
  any text;
* a paragraph of a block fenced as ``py`` (blank lines next to its functions do not end it), with
  comments that check it, after the code or below it:
  ``expression  # gives value``, ``statement  # then condition`` on the arrays after the run,
  ``call  # prints line``.

Code in a table has a line for each of its code spans, separated by ``<br>``. A row that checks
nothing makes `parse` raise `Unchecked`.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "python_inside_a_kernel.md"
HEADERS = {
    ("Python", "gives", ""): "gives",
    ("Python", "simulated", "on the GPU"): "simulated",
    ("Python", "the error says"): "refused",
    ("Python", "compiled, the error says"): "compiled",
}
EXACT = 2**24
"""float32 represents all integers up to this one"""
_CELL = re.compile(r"(?<!\\)\|")
_SPANS = re.compile(r"`([^`]+)`(?:<br>|$)")
_MARK = re.compile(r"^(.*?\S)? *# (gives|then|prints) (.+)$")


class Unchecked(Exception):
    """A row of the page has nothing to check."""


@dataclass
class Row:
    """A piece of the page and what it promises."""

    line: int
    code: list[str]
    kind: str = "gives"
    values: list[tuple[str, Any]] = field(default_factory=list)
    """expressions, evaluated after `code`, and their values"""
    then: list[str] = field(default_factory=list)
    prints: list[str] = field(default_factory=list)
    error: str = ""

    def __str__(self) -> str:
        shown = next(iter(self.code), "") or self.values[0][0]
        return f"line {self.line}: {shown[:40]}"

    def raises(self, told: str) -> bool:
        """Return whether the first line of an error matches the row, after ``file:line: kernel
        example: ``."""
        text = ".*".join(map(re.escape, self.error.split("…")))
        start = r".*:\d+: kernel example(: (`.*` cannot be compiled: )?|, pipeline at [^:]*:\d+: )"
        return re.fullmatch(start + text, told.split("\n")[0]) is not None


# ---- the page ------------------------------------------------------------------------------------
def parse(text: str) -> list[Row]:
    """Return the rows of a page; raises Unchecked for a row without a check."""
    rows: list[Row] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = next(i for i in range(number + 1, len(lines)) if lines[i] == "```")
            if line == "```py":
                rows += _paragraphs(lines[number + 1 : end], number + 2)
            number = end
        elif line.startswith("| Python"):
            kind = HEADERS.get(tuple(_cells(line)))
            if kind is None:
                raise Unchecked(f"line {number + 1}: a table headed {line}")
            end = next(i for i in range(number, len(lines)) if not lines[i].startswith("|"))
            rows += [_table_row(kind, lines[i], i + 1) for i in range(number + 2, end)]
            number = end
        number += 1
    return rows


def tables(rows: Sequence[Row], kind: str) -> list[list[Row]]:
    """Return the rows of all tables of a kind, joined."""
    found: list[list[Row]] = []
    for row in rows:
        if row.kind == kind:
            if not found or found[-1][-1].line + 1 != row.line:
                found.append([])
            found[-1].append(row)
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELL.split(line)[1:-1]]


def _table_row(kind: str, line: str, number: int) -> Row:
    code, promised, *more = _cells(line)
    row = Row(number, _SPANS.findall(code), "table" if kind == "gives" else kind)
    told = re.fullmatch("`(.+)`", promised)
    if not row.code or told is None:
        raise Unchecked(f"line {number}: {line}")
    if kind == "gives":
        *row.code, last = row.code
        row.values = [(last, _value(told[1], number))]
    else:
        row.error = told[1]
        if kind == "simulated" and (value := re.fullmatch("`(.+)`", more[0])):
            *row.code, last = row.code
            row.values = [(last, _value(value[1], number))]
    return row


def _paragraphs(lines: list[str], first: int) -> Iterator[Row]:
    start = 0
    for i in range(len(lines) + 1):
        if i == len(lines) or (not lines[i] and not _between_definitions(lines, start, i)):
            if any(lines[start:i]):
                while not lines[start]:
                    start += 1
                yield _paragraph(lines[start:i], first + start)
            start = i + 1


def _between_definitions(lines: list[str], start: int, blank: int) -> bool:
    """Return whether the formatter inserted this blank line: next to a function, above the first
    check."""
    if any(_MARK.match(line) for line in lines[start:blank]):
        return False
    above = next((line for line in reversed(lines[start:blank]) if line), "")
    below = next((line for line in lines[blank:] if line), "")
    return above.startswith(" ") or (above != "" and below.startswith(("def ", "@")))


def _paragraph(lines: list[str], number: int) -> Row:
    row = Row(number, [])
    for line in lines:
        code, mark, promised = found.groups() if (found := _MARK.match(line)) else (line, "", "")
        if mark == "gives":
            row.values.append((code, _value(promised, number)))
        else:
            row.code.append(code)
            {"then": row.then, "prints": row.prints, "": []}[mark].append(promised)
        if row.values and mark != "gives":
            raise Unchecked(f"line {number}: code after the last '# gives'")
    if not (row.values or row.then):
        raise Unchecked(f"line {number}: {lines[0]}")
    return row


def _value(text: str, number: int) -> Any:
    if text == "inf":
        return math.inf
    value = ast.literal_eval(text)
    if not isinstance(value, (bool, int, float)):
        raise Unchecked(f"line {number}: {text} is no number")
    return value


# ---- kernels -------------------------------------------------------------------------------------
def head(text: str) -> tuple[str, str]:
    """Return the page's definitions for its rows, and the first lines of their kernel.

    The kernel gets one more parameter: `results`.
    """
    block = next(
        b for b in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "def example(" in b
    )
    prelude, kernel = block.split("@numpipe.kernel")
    kernel = kernel.replace("x, *, cfg", "x, results, *, cfg").replace(": ...\n", ":\n")
    return prelude, f"@numpipe.kernel{kernel}"


class Program:
    """A kernel made of some rows, and the arrays that it is called with."""

    def __init__(self, rows: Sequence[Row], page: str) -> None:
        self.rows = rows
        self.places: list[tuple[Row, str, Any, int]] = []
        """(row, expression, value, column of the results)"""
        prelude, kernel = head(page)
        body: list[str] = []
        column = 0
        for number, row in enumerate(rows):
            body += row.code
            for i, (expression, value) in enumerate(row.values):
                name = f"value_{number}_{i}"
                body.append(f"{name} = {expression}")
                parts = _delivered(name, value)
                self.places.append((row, expression, value, column))
                body += [
                    f"results[ds(0, 64), ds({column + 8 * j}, 8)] = numpipe.zeros((64, 8), "
                    f"np.float32) + {part}"
                    for j, part in enumerate(parts)
                ]
                column += 8 * len(parts)
        text = prelude + kernel + "".join(f"    {line}\n" if line else "\n" for line in body)
        filename = f"<language {hashlib.sha1(text.encode()).hexdigest()[:12]}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        self.namespace: dict[str, Any] = {"__name__": filename}
        exec(compile(text, filename, "exec", dont_inherit=True), self.namespace)
        self.kernel = self.namespace["example"]
        self.arrays = {
            "a": np.ones((128, 64), np.float16),
            "b": np.ones((64, 64), np.float16),
            "c": np.full((64, 64), np.nan, np.float32),
        }
        self.results = np.full((64, max(column, 8)), np.nan, np.float32)

    @property
    def args(self) -> tuple[Any, ...]:
        return (*self.arrays.values(), 7, 0.5, self.results)

    def wrong(self, *, exactly: bool) -> list[str]:
        """Return what differs from the page, after a run."""
        found = []
        for row, expression, value, column in self.places:
            got = self.results[:, column : column + 8]
            if isinstance(value, float):
                right = got == np.float32(value) if exactly else np.isclose(got, value, rtol=1e-6)
            elif isinstance(value, int) and abs(value) >= EXACT:
                got = got.astype(np.int64) * 65536 + self.results[
                    :, column + 8 : column + 16
                ].astype(np.int64)
                right = got == value
            else:
                right = got == value
            if not np.all(right):
                found.append(
                    f"{PAGE.name}:{row.line}: {expression} gives {got.flat[0]}, not {value}"
                )
        for row in self.rows:
            found += [
                f"{PAGE.name}:{row.line}: not so: {condition}"
                for condition in row.then
                if not eval(condition, {"np": np, **self.arrays})
            ]
        return found


def _delivered(name: str, value: Any) -> list[str]:
    """Return code that stores a proof that `name` has this value.

    An integer needs none at run time: that the kernel compiles proves its type.
    """
    if isinstance(value, bool):
        return [f"int({name})"]
    if isinstance(value, float):
        return [name]
    return [f"({name} >> 0)"] if abs(value) < EXACT else [f"({name} >> 16)", f"({name} & 65535)"]
