"""Where in the user's source something happens, and where in a pipeline.

Accesses record only a code object and a line number; text and objects are made when something is wrong.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ..diagnostics.reports import Line

Site: TypeAlias = tuple[CodeType, int] | None


@functools.cache
def _own_directories() -> tuple[str, ...]:
    """Directories whose frames are numpipe's, not the user's."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = find_spec("numpipe.intrinsics")
    places = [package]
    if spec is not None and spec.origin is not None:
        places.append(os.path.dirname(os.path.abspath(spec.origin)))
    return tuple(place + os.sep for place in places)


class _Own(dict[str, bool]):
    """Whether a file is numpipe's, by name."""

    def __missing__(self, filename: str) -> bool:
        own = self[filename] = os.path.abspath(filename).startswith(_own_directories())
        return own


_is_own = _Own()


def user_site(frame: FrameType | None = None) -> Site:
    """The innermost frame that is not numpipe's: of `frame`, else of the caller."""
    if frame is None:
        frame = sys._getframe(1)
    while frame is not None:
        if not _is_own[frame.f_code.co_filename]:  # asked for each access, of a dozen frames
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def line_of(site: Site) -> Line:
    assert site is not None
    return Line(site[0].co_filename, site[1], site[0].co_name)


def place(site: Site) -> str:
    """``gemm.py:41 in matmul``, or what can be said without a user's frame."""
    return "(no line)" if site is None else str(line_of(site))


def details(values: dict[str, Any]) -> str:
    """The numbers and names among `values`, as ``slot=2 step=5``."""
    plain = {k: v for k, v in values.items() if isinstance(v, (int, str, tuple)) or hasattr(v, "__index__")}
    return " ".join(f"{k}={v}" for k, v in plain.items())


def context(note: tuple[str, dict[str, Any]] | None, wait: tuple[str, int, int] | None) -> str:
    """The ring, slot and step a warpgroup was at: its last note and its last mbarrier wait."""
    parts = []
    if note is not None:
        parts.append(f"{note[0]} {details(note[1])}".strip())
    if wait is not None:
        parts.append(f"after waiting for {wait[0]} phase {wait[1]}" + (f" step {wait[2]}" if wait[2] >= 0 else ""))
    return f" [{'; '.join(parts)}]" if parts else ""


def noted(note: tuple[str, dict[str, Any]] | None, key: str) -> int | None:
    """A number of a note."""
    value = None if note is None else note[1].get(key)
    return None if value is None or not hasattr(value, "__index__") else int(value)
