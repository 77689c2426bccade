"""Loops whose iterator never yields: in the memory role the first `next` of a pipeline's iterator runs the whole producer.

Their bodies are typed, so that errors in them are found, and not lowered: LLVM would read them to drop them. They are kept where
they call what numpipe does not know: it may be something that must not reach the role, which is looked for in the code
(`compile.roles`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from numba.cuda import types
from numba.cuda.core import analysis, ir
from numba.cuda.core.compiler_machinery import FunctionPass, register_pass

from .operations import MEANINGS

_unknown: weakref.WeakSet[Any] = weakref.WeakSet()
"""Python functions that call, somewhere, what is not numpipe's"""


def _functions(ty: Any) -> Iterator[Any]:
    """What a value of this type may call: operations and Python functions, or the type itself where that cannot be told."""
    if isinstance(ty, types.BaseTuple):
        for part in ty:
            yield from _functions(part)
    elif isinstance(ty, types.Function):
        yield ty.typing_key
    elif isinstance(ty, types.BoundFunction):
        yield getattr(ty.template, "operation", ty)
    elif isinstance(ty, types.Callable):
        yield getattr(ty, "function", ty)


def _known(called: Any) -> bool:
    """Whether a function, and all that it calls, are numpipe's, or Python's own."""
    if called in MEANINGS:
        return MEANINGS[called] not in _unknown
    return isinstance(called, types.NumberClass) or getattr(called, "__module__", "") == "builtins"


def _all_known(blocks: Any, typemap: dict[str, Any]) -> bool:
    """Whether blocks call, and hand on, nothing but functions that are `_known`."""
    return all(_known(function) for block in blocks for call in block.find_exprs("call") for variable in call.list_vars()
               for function in _functions(typemap[variable.name]))


def _end_of_loop(block: Any, typemap: dict[str, Any]) -> int | None:
    """Where a block goes that asks an iterator for the next value, if that iterator never has one."""
    for expression in block.find_exprs("iternext"):
        if getattr(typemap[expression.value.name], "exhausted", False) and isinstance(block.terminator, ir.Branch):
            return int(block.terminator.falsebr)
    return None


@register_pass(mutates_CFG=True, analysis_only=False)
class LeaveOutBodies(FunctionPass):  # type: ignore[misc]
    """Drops the bodies of loops whose iterator's type says that it is `exhausted`."""

    _name = "numpipe_leave_out_bodies"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        blocks, changed = state.func_ir.blocks, False
        if not _all_known(blocks.values(), state.typemap):
            _unknown.add(state.func_id.func)
        for offset, block in list(blocks.items()):
            end = _end_of_loop(block, state.typemap) if offset in blocks else None
            if end is None:
                continue
            branch = block.body[-1]
            block.body[-1] = ir.Jump(end, branch.loc)
            dead = analysis.compute_cfg_from_blocks(blocks).dead_nodes()
            if _all_known([blocks[one] for one in dead], state.typemap):
                for one in dead:
                    del blocks[one]
                changed = True
            else:
                block.body[-1] = branch
        return changed
