"""Markdown tables of what the rungs of a ladder of kernels reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpipe import bench


def table(rows: Sequence[bench.Row], case: Callable[[dict[str, Any]], str]) -> str:
    """Return the rungs from the first one up, the reverse of their order in `rows`, with each
    case's TFLOPS after a pause and its ratios to the reference. `case` names a case.
    """
    cases = list(dict.fromkeys(case(row.case) for row in rows))
    names = [
        name
        for name in reversed(dict.fromkeys(row.name for row in rows))
        if name != rows[0].reference
    ]
    heads = [
        "rung",
        *(
            f"{each}: {what}"
            for each in cases
            for what in ("TFLOPS, burst", "ratio, burst", "ratio, alone")
        ),
    ]
    found = {(row.name, case(row.case), row.protocol): row for row in rows}
    lines = [heads, ["---"] * len(heads)]
    for name in names:
        cells = [name]
        for each in cases:
            burst, alone = (found.get((name, each, protocol)) for protocol in ("burst", "alone"))
            cells += [
                f"{burst.rate:.0f}" if burst else "",
                f"{burst.ratio.median:.2f}" if burst else "",
                f"{alone.ratio.median:.2f}" if alone else "",
            ]
        lines.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def told(
    rows: Sequence[bench.Row], case: Callable[[dict[str, Any]], str], file: Path | None
) -> str:
    """Return the table, and also write it to `file` if that is given."""
    text = table(rows, case)
    if file is not None:
        file.write_text(text + "\n", encoding="utf8")
    return text
