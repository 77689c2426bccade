"""Sites: lines of the user's source at which something happens, and the steps of a pipeline.

Accesses record only a code object and a line number; text and objects are made when an error is
reported.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Any, TypeAlias

from .. import intrinsics
from ..diagnostics.reports import Line
from ..traces.events import moment

Site: TypeAlias = tuple[CodeType, int] | None
"""None if numpipe itself acts, at the kernel's beginning or end."""
Note: TypeAlias = tuple[str, dict[str, Any]]
"""The last note of a warpgroup: an event with its ring, slot and step; "" and nothing at first."""

_DIRECTORIES = tuple(
    os.path.join(os.path.dirname(path), "")
    for path in (os.path.dirname(__file__), str(intrinsics.__file__))
)


class _IsNumpipes(dict[str, bool]):
    """Whether a file belongs to numpipe, by file name."""

    def __missing__(self, filename: str) -> bool:
        ours = self[filename] = os.path.abspath(filename).startswith(_DIRECTORIES)
        return ours


_is_numpipes = _IsNumpipes()


def user_site(frame: FrameType | None = None) -> Site:
    """Return the innermost line outside numpipe, of `frame` or of the caller."""
    if frame is None:
        frame = sys._getframe(1)
    while frame is not None:
        if not _is_numpipes[frame.f_code.co_filename]:  # each access looks up a dozen frames here
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def lines(site: Site) -> tuple[Line, ...]:
    """Return the line of a site for a report's party; nothing for None."""
    return () if site is None else (Line(site[0].co_filename, site[1], site[0].co_name),)


def place(site: Site) -> str:
    """Return a site as text: ``gemm.py:41 in matmul``."""
    return "the kernel's beginning or end" if site is None else str(lines(site)[0])


@functools.lru_cache(1 << 12)
def statement(site: Site) -> str:
    """Return a site with its text: ``gemm.py:41 in matmul: for k in pipe(a, b):``."""
    text = linecache.getline(site[0].co_filename, site[1]) if site else ""
    return f"{place(site)}: {text.strip()}"


def context(note: Note, wait: tuple[str, int, int] | None) -> str:
    """Return what a warpgroup last did in a ring, and its last wait for an mbarrier."""
    parts = [moment(*note)] if note[0] else []
    if wait is not None:
        mbar, phase, step = wait
        parts.append(
            f"after waiting for {mbar}"
            + f" phase {phase}" * (phase >= 0)  # earlier ones are complete from the start
            + f" step {step}" * (step >= 0)
        )
    return f" [{'; '.join(parts)}]" if parts else ""


def noted(note: Note, key: str) -> int | None:
    """Return the integer under `key` (slot, step …) in a warpgroup's note of an event, or None."""
    value = note[1].get(key)
    return None if value is None or not hasattr(value, "__index__") else int(value)
