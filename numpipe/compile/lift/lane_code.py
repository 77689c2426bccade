"""Rewriting of per-lane code: the names of `numba.cuda` that kernels may use become numpipe's own
operations, which are also simulated.

`numba.cuda` is never imported here: its objects, which the user's module has, are recognized by
their names.
"""

from __future__ import annotations

import ast
from typing import Any

from ...core.op import Op
from ...diagnostics.errors import SpecError
from ...language.memory import per_lane
from .calls_and_slices import Calls
from .constants import MISSING
from .rewriter import NOT_MINE

_CALLS: dict[str, Op] = {
    operation.function.__name__: operation
    for operation in (
        per_lane.shfl_sync,
        per_lane.shfl_up_sync,
        per_lane.shfl_down_sync,
        per_lane.shfl_xor_sync,
        per_lane.syncwarp,
    )
}
_VALUES: dict[str, Op] = {
    "threadIdx.x": per_lane.thread_index,
    "laneid": per_lane.lane_in_warp,
}
_INSTEAD = {
    "blockIdx": "; here numpipe.program_id(axis) is the index of the CTA",
    "gridDim": "; here numpipe.num_programs(axis) is the size of the grid",
    "blockDim": (
        '; a kernel is written for warpgroups: numpipe.axis_index("wg") is the index of one'
    ),
    "shared": "; here numpipe.scratch(numpipe.SMEM(shape, dtype)) around the body is shared memory",
}
SUPPORTED = f"threadIdx.x, laneid, {', '.join(_CALLS)}"


class LaneCode(Calls):
    """``cuda.threadIdx.x``, ``cuda.laneid``, ``cuda.shfl_sync(…)``, ``cuda.syncwarp()``; and
    `lane_index`."""

    def lane_value(self, node: ast.Attribute | ast.Name) -> Any:
        """Rewrite a number of a lane, such as ``cuda.threadIdx.x``, or ``threadIdx`` after ``from
        numba.cuda import threadIdx``."""
        written = self._of_cuda(node)
        if written in _VALUES:
            self._lane_only(node, f"cuda.{written}")
            return self.call(_VALUES[written])
        if (
            isinstance(node, ast.Attribute)
            and written is not None
            and written.partition(".")[0] not in _CALLS
        ):
            self._unsupported(node, written)
        return NOT_MINE

    def lane_call(self, node: ast.Call, function: Any) -> Any:
        written = self._of_cuda(node.func)
        if written in _CALLS:
            self._lane_only(node, f"cuda.{written}")
            operation = _CALLS[written]
            return self.call(operation, map(self.visit, self.bind(operation, node)))
        if written is not None:
            self._unsupported(node, written)
        if function is per_lane.lane_index:
            self._lane_only(node, "lane_index()")
        return NOT_MINE

    def _of_cuda(self, node: ast.AST) -> str | None:
        """Return the name that an expression has in `numba.cuda`; None for all other
        expressions."""
        value: Any = MISSING
        if isinstance(node, ast.Attribute):
            outer = self._of_cuda(node.value)
            if outer is not None:
                return f"{outer}.{node.attr}"
            value = getattr(self.value(node.value), node.attr, MISSING)
        elif isinstance(node, ast.Name):
            value = self.constants.name(node.id, self.local)
        if value is MISSING or str(getattr(value, "__module__", "")) not in (
            "numba.cuda.stubs",
            "numba.cuda.intrinsics",
        ):
            return None
        return str(getattr(value, "__name__", "")) or None

    def _unsupported(self, node: ast.AST, written: str) -> None:
        """Reject unsupported names in per-lane code and, in all kernels, indices of threads and
        CTAs that the simulated SM does not have."""
        owner = written.partition(".")[0]
        if per_lane.by_lane(self.unit) or (
            "." in written and owner in ("threadIdx", "blockIdx", "blockDim", "gridDim")
        ):
            self.error(
                f"cuda.{written} is not supported in a kernel: of numba.cuda there are {SUPPORTED}"
                f"{_INSTEAD.get(owner, '')}",
                node,
                SpecError,
            )

    def _lane_only(self, node: ast.AST, what: str) -> None:
        directly = len(self.scopes) == 1 and self.scopes[0][0] is self.tree and self.lifts_kernel
        if not per_lane.by_lane(self.unit) or directly:
            self.error(f"{what} {per_lane.NOT_HERE}", node, SpecError)
