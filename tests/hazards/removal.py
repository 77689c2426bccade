"""Where synchronising operations are called from, and runs in which one of these places is left out.

Everything that synchronises goes through a method of the simulated machine (`SYNCHRONISES`), whichever operation of the registry
it is: an intrinsic, or an ``@op`` whose GPU meaning stands in a ``_cuda`` sibling. A *place* is the method and the calls that
led to it: lines of numpipe, innermost first, out to the user's line. So one line of a helper, `outputs.meet`, is a place for each
of those who call it.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpipe
from numpipe._op import Op
from numpipe.sim.port import Warpgroup

ROOT = Path(numpipe.__file__).parent
EXAMPLES = ROOT.parent / "examples"
SYNCHRONISES = ("mbar_arrive", "mbar_arrive_expect_tx", "mbar_wait", "fence_mbarrier_init", "fence_proxy_async", "bar_sync",
                "bar_arrive", "setmaxnreg", "bulk_commit", "bulk_wait", "wgmma_fence", "wgmma_commit", "wgmma_wait")
"""Methods of `Machine`. Without `mbar_test`, which gives an answer: it is no wait, one follows it."""
MACHINERY = ("sim", "_op.py", "lanes.py", "closure.py", "per_lane.py", "emit.py", "pipelines.py")
"""files and folders whose frames only pass a call on"""


@dataclass(frozen=True)
class Place:
    """A method, and lines as ``module.function:line``, innermost first; the last is the user's, "loop" where that is a `for`."""

    method: str
    calls: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method} < {' < '.join(self.calls)}"


_names: dict[tuple[Any, int], str | None] = {}


def _name(frame: FrameType) -> str | None:
    """How a frame is called in a place; None for machinery. A name that ends in "!" is the user's."""
    key = frame.f_code, frame.f_lineno
    if key not in _names:
        _names[key] = _named(frame)
    return _names[key]


def _named(frame: FrameType) -> str | None:
    code, file = frame.f_code, Path(frame.f_code.co_filename)
    if file.is_relative_to(ROOT):
        inside = file.relative_to(ROOT)
        if inside.parts[0] in ("sim", "_op.py", "lanes.py"):
            return None
        return f"{'.'.join(inside.with_suffix('').parts)}.{code.co_name}:{frame.f_lineno}"
    if file.parent.name == "intrinsics":
        return None
    line = linecache.getline(str(file), frame.f_lineno).strip()
    loop = "loop" if line.startswith("for ") else "call"
    return f"{file.name}:{frame.f_lineno} {loop}!" if file.is_relative_to(EXAMPLES) else f"kernel {loop}!"


def place_of(method: str, frame: FrameType | None) -> Place:
    calls = []
    while frame is not None:
        name = _name(frame)
        if name is not None:
            calls.append(name.rstrip("!"))
            if name.endswith("!"):
                break
        frame = frame.f_back
    return Place(method, tuple(calls))


@contextmanager
def watched(seen: Callable[[Place], bool]) -> Iterator[None]:
    """Calls ``seen(place)`` before each synchronising operation of a simulation, which is left out if it says so."""
    originals = {method: getattr(Warpgroup, method) for method in SYNCHRONISES}

    def patched(method: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return None if seen(place_of(method, sys._getframe(1))) else original(*args, **kwargs)

        return call

    for method, original in originals.items():
        setattr(Warpgroup, method, patched(method, original))
    try:
        yield
    finally:
        for method, original in originals.items():
            setattr(Warpgroup, method, original)
