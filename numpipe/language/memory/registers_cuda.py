"""`set_max_registers` on the GPU."""

from __future__ import annotations

from typing import Any

from ...core.op import cuda_meaning
from ...intrinsics import setmaxnreg
from . import registers as source


@cuda_meaning(source.set_max_registers)
def _set_registers(np_: Any, n: Any, action: Any) -> Any:
    operation = setmaxnreg.inc if source.increases(np_.unit, n, action) else setmaxnreg.dec
    builder, args = yield
    return builder.apply(operation, (n,), args[1:2])
