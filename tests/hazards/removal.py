"""Where synchronizing operations are called from, and runs in which one of these places is left
out.

`numpipe.testing.mutate` defines a place. Places are found by running kernels (`places_of`), and
also in the source (`written`), so that a place that no kernel reaches is detected.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from numpipe.core.op import Op
from numpipe.errors import TargetError
from numpipe.intrinsics import (
    barrier,
    cluster,
    cp_async_bulk,
    fence,
    griddep,
    mbarrier,
    setmaxnreg,
    wgmma,
)
from numpipe.tools.verify.mutation import (
    ELSEWHERE,
    LOOP,
    PASSED_ON,
    ROOT,
    SYNCHRONISES,
    Edit,
    Place,
    called_by_users,
    named,
    place_of,
    watched,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
IN_GLOBAL_MEMORY = "ops/topk.py", "language/grid/round_totals.py"
"""files whose warps pass data to each other through arrays, which the simulator does not check
within a CTA"""

OPERATIONS = (
    mbarrier.arrive,
    mbarrier.arrive_remote,
    mbarrier.arrive_count,
    mbarrier.arrive_expect_tx,
    mbarrier.arrive_expect_tx_remote,
    mbarrier.wait,
    cluster.arrive,
    cluster.wait,
    fence.mbarrier_init,
    fence.proxy_async,
    fence.proxy_async_global,
    barrier.sync,
    barrier.arrive,
    barrier.warp_sync,
    griddep.wait,
    setmaxnreg.inc,
    setmaxnreg.dec,
    cp_async_bulk.commit_group,
    cp_async_bulk.wait_group,
    cp_async_bulk.wait_group_read,
    wgmma.fence,
    wgmma.fence_accumulators,
    wgmma.commit_group,
    wgmma.wait_group,
    wgmma.wait,
)
"""The intrinsics that synchronize."""


# ---- while a kernel runs
def users(file: Path, line: int) -> str:
    """Return the name that places use for a line of user code.

    It is "a kernel", except for pipeline loops and for lines in files that `written` reads.
    """
    name = called_by_users(file, line)
    return (
        name
        if name == LOOP or file.is_relative_to(EXAMPLES) or file.is_relative_to(ROOT)
        else "a kernel"
    )


def lines_to(frame: FrameType | None) -> Iterator[str]:
    """Yield all lines of numpipe that led to a frame, as ``file:line``."""
    while frame is not None:
        if line := _line(frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno):
            yield line
        frame = frame.f_back


@functools.cache
def _line(file: str, function: str, line: int) -> str:
    """Return a line as ``file:line``, or "" for internal machinery.

    Cached, because a survey visits each of them thousands of times.
    """
    return f"{file}:{line}" if named(Path(file), function, line, users)[0] else ""


def places_of(run: Callable[[], Any]) -> tuple[set[Place], set[str]]:
    """Return the places that a run reaches, and all lines of numpipe on the way there."""
    places, lines = set(), set()

    def seen(operation: str, frame: FrameType) -> None:
        places.add(place_of(operation, frame, users))
        lines.update(lines_to(frame))

    with watched(seen):
        run()
    return places, lines


@contextmanager
def without(place: Place) -> Iterator[None]:
    """Disable a place within this context."""

    def seen(operation: str, frame: FrameType) -> Edit | None:
        return (
            (lambda args: None)
            if operation == place.operation and place_of(operation, frame, users) == place
            else None
        )

    with watched(seen):
        yield


# ---- in the source
def written() -> set[str]:
    """Return ``file:line`` of every line in numpipe's protocol and in the examples that names a
    synchronizing operation."""
    modules = {
        path: _module(path)
        for path in sorted(ROOT.rglob("*.py"))
        if not path.stem.endswith(("_cuda", "__main__"))
        and path.relative_to(ROOT).parts[0] not in ELSEWHERE
        and str(path.relative_to(ROOT)) not in IN_GLOBAL_MEMORY
    }
    modules |= {
        path: importlib.import_module(path.stem)
        for path in sorted(EXAMPLES.glob("*.py"))
        if "\nimport torch" not in path.read_text(encoding="utf8")  # calls ops, has no kernels
    }
    helpers = {_helper(name) for name in PASSED_ON}
    return {
        f"{path}:{line}"
        for path, module in modules.items()
        for line in _lines(ast.parse(path.read_text(encoding="utf8")), module, helpers, frozenset())
    }


def _lines(
    node: ast.AST, module: ModuleType, helpers: set[Any], bound: frozenset[str], line: int = 0
) -> Iterator[int]:
    """Yield the lines below a node that name a synchronizing operation.

    `bound` has names that are local variables there, whatever they mean in the module. `line` is
    the first line of the enclosing call, if the node is its function or argument: a frame is on
    that line while the call runs.
    """
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        arguments = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        bound |= arguments | {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    if not (isinstance(node, ast.Name) and node.id in bound) and _synchronises(
        node, module, helpers
    ):
        yield line or node.lineno  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        argument = isinstance(node, ast.Call) and isinstance(child, (ast.Name, ast.Attribute))
        yield from _lines(child, module, helpers, bound, node.lineno if argument else 0)


def _module(path: Path) -> ModuleType:
    return importlib.import_module(
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    )


def _helper(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"numpipe.language.{module}"), function)


def _synchronises(node: ast.AST, module: ModuleType, helpers: set[Any]) -> bool:
    """Return whether an expression is a synchronizing operation; a machine's method by its name
    alone."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return _is_one(getattr(module, node.id, None), helpers)
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name) and isinstance(
        getattr(module, node.value.id, None), ModuleType
    ):
        try:
            return _is_one(getattr(getattr(module, node.value.id), node.attr, None), helpers)
        except TargetError:  # numpipe.torch without PyTorch
            return False
    return node.attr in SYNCHRONISES


def _is_one(value: Any, helpers: set[Any]) -> bool:
    return isinstance(value, Op) and (value in helpers or value in OPERATIONS)
