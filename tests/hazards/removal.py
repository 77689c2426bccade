"""Where synchronising operations are called from, and runs in which one of these places is left out.

Everything that synchronises ends in a method of the simulated machine (`SYNCHRONISES`), whichever operation of the registry it
comes through: an intrinsic, or an ``@op`` whose GPU meaning stands in a ``_cuda`` sibling. (`barrier.warp_sync` alone does not: the
simulator's warps are never apart.) A *place* is the operation and the line that calls it; where that line is in a helper that only
passes a synchronisation on (`PASSED_ON`), the line that calls the helper too: the one barrier in `outputs.meet` is a place for each
of its callers.

Places are found by running kernels (`places_of`), and beside that in the source (`written`), so that a place which no kernel comes
to is seen.
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
from types import FrameType, ModuleType
from typing import Any

import numpipe
from numpipe.core.op import Op
from numpipe.intrinsics import barrier, cluster, cp_async_bulk, fence, griddep, mbarrier, setmaxnreg, wgmma
from numpipe.sim.port import Warpgroup

ROOT = Path(numpipe.__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
INTRINSICS = Path(barrier.__file__).parent

SYNCHRONISES = ("mbar_arrive", "mbar_arrive_expect_tx", "mbar_wait", "fence_mbarrier_init", "fence_proxy_async", "bar_sync",
                "bar_arrive", "grid_dependency_wait", "setmaxnreg", "bulk_commit", "bulk_wait", "wgmma_fence", "wgmma_commit",
                "wgmma_wait", "mbar_arrive_remote", "mbar_arrive_expect_tx_remote", "mbar_arrive_cluster", "cluster_arrive",
                "cluster_wait", "gmem_signal", "gmem_await")
"""Methods of `Machine`. Not `mbar_test`, a question whose answer cannot be left out: a wait follows it. Not `bar_red`, the barrier
that a vote is: without it there is no answer either (on the GPU too the instruction that meets gives the result). Not
griddepcontrol.launch_dependents either, which orders nothing: without it the next kernel begins later."""
OPERATIONS = (
    mbarrier.arrive, mbarrier.arrive_remote, mbarrier.arrive_count, mbarrier.arrive_expect_tx, mbarrier.arrive_expect_tx_remote,
    mbarrier.wait, cluster.arrive, cluster.wait, fence.mbarrier_init, fence.proxy_async, barrier.sync, barrier.arrive,
    barrier.warp_sync, griddep.wait,
    setmaxnreg.inc, setmaxnreg.dec, cp_async_bulk.commit_group,
    cp_async_bulk.wait_group, cp_async_bulk.wait_group_read, wgmma.fence, wgmma.fence_accumulators, wgmma.commit_group,
    wgmma.wait_group, wgmma.wait)
"""The intrinsics that synchronise."""
PASSED_ON = (
    "pipeline.barriers.await_step", "pipeline.barriers.barrier_arrive", "pipeline.barriers.barrier_wait",
    "memory.copies.commit_smem",
    "memory.copies.commit_smem_to_gmem_group", "memory.copies.fence_and_meet", "memory.copies.meet",
    "memory.copies.wait_smem_to_gmem", "tiles.exchange.exchange", "tiles.mma.wgmma_wait", "tiles.order.before_access",
    "tiles.order.before_async", "tiles.products.commit_to", "pipeline.order_tokens.await_token",
    "pipeline.order_tokens.enter_turn", "pipeline.order_tokens.leave_turn", "pipeline.order_tokens.pass_token",
    "pipeline.outputs.await_slot", "pipeline.outputs.meet", "grid.partials.await_signals", "grid.partials.signal",
    "memory.phases.arrive", "memory.phases.arrive_at_peers", "memory.phases.wait", "memory.registers.set_max_registers",
    "pipeline.ring.await_consumed", "pipeline.ring.await_ready", "pipeline.ring.release", "pipeline.ring.release_delayed",
    "pipeline.ring.release_used", "pipeline.steps.await_empty", "pipeline.steps.await_products",
    "pipeline.steps.await_released", "tiles.store_ring.await_staging", "tiles.store_ring.drain_stores")
"""Helpers that synchronise, and do nothing else but move what they order."""
APPLIES = (
    "tiles.mma.<listcomp>", "tiles.order._barrier", "pipeline.barriers.apply", "plan.context.only_if", "plan.context.over",
    "pipeline.order_tokens.over_tokens", "pipeline.outputs.first_lane", "pipeline.ring.each")
"""Functions that only call what they are given."""
ELSEWHERE = "compile", "frameworks", "intrinsics", "launch", "sim", "tools"
"""rooms of numpipe without protocol"""
LOOP = "the end of a loop (lift.loops)"


@dataclass(frozen=True)
class Place:
    """An operation and the lines that led to it, ``module.function:line``, innermost first; modules of `language` without it."""

    operation: str
    calls: tuple[str, ...]

    def __str__(self) -> str:
        return " < ".join((self.operation, *self.calls))

    @property
    def name(self) -> str:
        """Without the numbers of lines."""
        return " < ".join((self.operation, *(call.partition(":")[0] for call in self.calls)))


# ---- while a kernel runs
_names: dict[tuple[Any, int], tuple[str, bool]] = {}


def _name(frame: FrameType) -> tuple[str, bool]:
    """How a frame is called in a place, "" for machinery; and whether it is numpipe's."""
    key = frame.f_code, frame.f_lineno
    if key not in _names:
        _names[key] = _named(Path(frame.f_code.co_filename), frame.f_code.co_name, frame.f_lineno)
    return _names[key]


def _named(file: Path, function: str, line: int) -> tuple[str, bool]:
    of_users = any(file.is_relative_to(folder) for folder in (EXAMPLES, ROOT / "ops"))  # kernels as users write them
    if file.is_relative_to(ROOT) and not of_users:
        inside = file.relative_to(ROOT)
        machinery = inside.parts[0] in ELSEWHERE or inside.name in ("op.py", "lanes.py")
        module = ".".join(inside.with_suffix("").parts).removeprefix("language.")
        return "" if machinery else f"{module}.{function}:{line}", True
    if file.is_relative_to(INTRINSICS) or file == Path(__file__):
        return "", True
    if linecache.getline(str(file), line).strip().startswith("for "):  # the wait that the AST pass writes behind a pipeline's loop
        return LOOP, False
    return f"{file.name}:{line}" if of_users else "a kernel", False


def place_of(operation: str, frame: FrameType | None) -> Place:
    calls: list[str] = []
    while frame is not None:
        name, own = _name(frame)
        function = name.partition(":")[0]
        if name and function not in APPLIES and not (calls and calls[-1].startswith(f"{function}:")):  # once for a recursion
            calls.append(name)
            if not own or function not in PASSED_ON:
                break
        frame = frame.f_back
    return Place(operation, tuple(calls))


def lines_to(frame: FrameType | None) -> Iterator[str]:
    """All lines of numpipe that led to a frame, as ``file:line``."""
    while frame is not None:
        if _name(frame)[0]:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back


@contextmanager
def watched(seen: Callable[[str, FrameType], bool]) -> Iterator[None]:
    """Calls ``seen(operation, frame of the caller)`` before each synchronising operation, which is left out where it says so."""
    def patched(name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            operation = f"{name}.{args[1]}" if name == "setmaxnreg" else name
            return None if seen(operation, sys._getframe(1)) else original(*args, **kwargs)

        return call

    methods = {name: getattr(Warpgroup, name) for name in SYNCHRONISES}
    meet = barrier.warp_sync.function
    for name, method in methods.items():
        setattr(Warpgroup, name, patched(name, method))
    barrier.warp_sync.function = patched("warp_sync", meet)
    try:
        yield
    finally:
        barrier.warp_sync.function = meet
        for name, method in methods.items():
            setattr(Warpgroup, name, method)


def places_of(run: Callable[[], Any]) -> tuple[set[Place], set[str]]:
    """The places that a run comes to, and all lines of numpipe on the way there."""
    places, lines = set(), set()

    def seen(operation: str, frame: FrameType) -> bool:
        places.add(place_of(operation, frame))
        lines.update(lines_to(frame))
        return False

    with watched(seen):
        run()
    return places, lines


@contextmanager
def without(place: Place) -> Iterator[None]:
    """While it lasts a place does nothing."""
    with watched(lambda operation, frame: operation == place.operation and place_of(operation, frame) == place):
        yield


# ---- in the source
def written() -> set[str]:
    """``file:line`` of every line of numpipe's protocol, and of the examples, that names what synchronises."""
    modules = {path: _module(path) for path in sorted(ROOT.rglob("*.py"))
               if not path.stem.endswith(("_cuda", "__main__")) and path.relative_to(ROOT).parts[0] not in ELSEWHERE}
    modules |= {path: importlib.import_module(path.stem) for path in sorted(EXAMPLES.glob("*.py"))}
    helpers = {_helper(name) for name in PASSED_ON}
    return {f"{path}:{line}" for path, module in modules.items()
            for line in _lines(ast.parse(path.read_text(encoding="utf8")), module, helpers, frozenset())}


def _lines(node: ast.AST, module: ModuleType, helpers: set[Any], bound: frozenset[str]) -> Iterator[int]:
    """Lines below a node; `bound`: names that are variables of a function there, whatever the module has under them."""
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        arguments = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        bound |= arguments | {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if not (isinstance(node, ast.Name) and node.id in bound) and _synchronises(node, module, helpers):
        yield node.lineno  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        yield from _lines(child, module, helpers, bound)


def _module(path: Path) -> ModuleType:
    return importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"))


def _helper(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"numpipe.language.{module}"), function)


def _synchronises(node: ast.AST, module: ModuleType, helpers: set[Any]) -> bool:
    """Whether an expression is such an operation; a method of the machine by its name alone."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return _is_one(getattr(module, node.id, None), helpers)
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name) and isinstance(getattr(module, node.value.id, None), ModuleType):
        return _is_one(getattr(getattr(module, node.value.id), node.attr, None), helpers)
    return node.attr in SYNCHRONISES


def _is_one(value: Any, helpers: set[Any]) -> bool:
    return isinstance(value, Op) and (value in helpers or value in OPERATIONS)
