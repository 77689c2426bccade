"""`numpipe.timeline`: traces as text or as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..diagnostics.errors import SpecError
from .picture import Panel, draw
from .trace import Trace

__all__ = ["timeline"]

Cta = tuple[int, int, int] | int
ROWS = ("compute", "memory", "copy in", "copy out", "tensor core", "tiles", "regions")
"""what `rows` may name, beside ``wg0``, ``wg1`` …"""


def timeline(*traces: Trace | str | os.PathLike[str], path: str | os.PathLike[str] | None = None, cta: Cta | None = None,
             start: float | Sequence[float | None] | None = None, end: float | Sequence[float | None] | None = None,
             rows: Sequence[str] | None = None, titles: Sequence[str] | None = None, width: int = 100) -> str:
    """Draw what the warpgroups of a CTA did when: traces of the simulated SM and of a GPU, several under each other.

    traces      of `Trace`, or names of the ``.json`` files that they were saved to
    path        a file ending in ``.svg`` or ``.png`` (needs ``pip install 'numpipe[plot]'``); None: text
    cta         (x, y, z), or x; by default the first of each trace
    start, end  the part of the time to draw: cycles, or nanoseconds on a GPU; one of them for all traces, or a sequence with one
                for each. Traces have scales of their own
    rows        what to draw: some of ``compute``, ``memory`` (the warpgroups of that role), ``wg0`` …, ``copy in``, ``copy out``,
                ``tensor core``, ``tiles``, ``regions`` (bands above the warpgroups); by default all that a trace has
    titles      of the traces, in the picture and the text
    width       columns of the text

    Returns the timeline as text, or the name of the file. Text has no bands of tiles and regions.
    Raises SpecError for what cannot be drawn.

    >>> trace = numpipe.Trace()
    >>> print(numpipe.timeline(trace))
    no events
    """
    if not traces:
        raise SpecError("timeline: no trace given; pass a numpipe.Trace or the name of a file that Trace.save wrote")
    loaded = [trace if isinstance(trace, Trace) else Trace.load(trace) for trace in traces]
    starts, ends = _each("start", start, len(loaded)), _each("end", end, len(loaded))
    if titles is not None and (isinstance(titles, str) or len(titles) != len(loaded)):
        raise SpecError(f"timeline: titles={titles!r}; a title for each of the {len(loaded)} traces")
    names = list(titles) if titles is not None else ["simulated" if trace.clock == "cycles" else "GPU" for trace in loaded]
    for row in rows or ():
        if row not in ROWS and not (row.startswith("wg") and row[2:].isdigit()):
            raise SpecError(f"timeline: rows: {row!r} is none of {', '.join(ROWS)}, wg0, wg1 …")

    def wanted(name: str) -> bool:
        return rows is None or name in rows or any(word in rows for word in name.split())

    if path is None:
        heads = [""] if len(loaded) == 1 and titles is None else [f"{name}: " for name in names]
        return "\n\n".join(head + trace.timeline(width, cta, first, last, wanted)
                           for trace, head, first, last in zip(loaded, heads, starts, ends, strict=True))
    file = Path(path)
    if file.suffix not in (".svg", ".png"):
        raise SpecError(f"timeline: path={str(file)!r} ends in neither .svg nor .png; without path= the timeline is text")
    draw([Panel(*each) for each in zip(loaded, names, [cta] * len(loaded), starts, ends, strict=True)], wanted, file)
    return str(file)


def _each(name: str, value: Any, count: int) -> list[float | None]:
    """One for each trace."""
    if not isinstance(value, (tuple, list)):
        return [value] * count
    if len(value) != count:
        raise SpecError(f"timeline: {name}={value!r}; one number, or one for each of the {count} traces")
    return list(value)
