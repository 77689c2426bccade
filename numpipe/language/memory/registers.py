"""`set_max_registers`: change the number of registers of a warpgroup."""

from __future__ import annotations

from typing import Any

from ...core.op import constant, context_op
from ...diagnostics.argument_checks import is_int, word
from ...diagnostics.errors import SpecError
from ...intrinsics import setmaxnreg
from ...plan.context import Context
from ...plan.unit import Unit

__all__ = ["set_max_registers"]


@context_op
def set_max_registers(np_: Context, n: int, action: str) -> None:
    """Set the number of registers that each lane of this warpgroup may use to `n`, inside a kernel.

    n       a multiple of 8 in 24…256, a compile-time constant
    action  "increase" waits until other warpgroups have released enough; "decrease" releases
            registers (PTX ISA, "setmaxnreg")

    Use it in kernels without a memory role (``warp_specialized=False``). In other kernels numpipe
    distributes the registers itself, controlled by `memory_registers`. Raises SpecError there, and
    for other numbers and actions.
    """
    if increases(np_.unit, n, action):
        setmaxnreg.inc(n)
    else:
        setmaxnreg.dec(n)


def increases(unit: Unit, n: Any, action: Any) -> bool:
    """Return whether the action is "increase". Raises SpecError for a number or an action that
    setmaxnreg does not support, or in a kernel with a memory role."""
    n = constant("set_max_registers", "n", n)
    action = constant("set_max_registers", "action", action, word("increase", "decrease"))
    if not is_int(n) or n % 8 or not 24 <= n <= 256:
        raise SpecError(f"set_max_registers: n must be a multiple of 8 in 24…256, got {n!r}")
    if unit.warp_specialized:
        raise SpecError(
            "set_max_registers: the kernel has a memory role, so numpipe distributes the "
            f"registers: {unit.memory_registers} per lane for that role, {unit.compute_registers} "
            f"for each of {unit.compute_wgs} compute warpgroups; fix: set memory_registers=, or "
            "use a kernel with warp_specialized=False"
        )
    return bool(action == "increase")
