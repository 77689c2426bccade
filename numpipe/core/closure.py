"""Callable values: functions together with the run-time values that they are bound to.

Nested functions, lambdas and `@numpipe.function`s in a kernel become such values, and so does an
emitted pipeline. In CPython the callable is a functools.partial. On the GPU its type identifies the
function and its data are the bound values, so a call has no overhead, and the value can be passed
on and stored in tuples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .op import Helper, Op, of_one_kernel


def binder(function: Callable, for_numba: Callable | None = None) -> Op:
    """Create an operation ``bind(captures) -> callable`` from a lifted function, whose first
    parameter is the tuple of captures.

    `for_numba` is the variant of the function to compile.
    """
    compiled: Helper = of_one_kernel(Helper(for_numba or function))

    def bind(captures: tuple) -> Callable:
        return functools.partial(function, captures)

    def typer(captures: Any) -> Any:
        from .closure_cuda import bind_typer

        return bind_typer(compiled, captures)

    return of_one_kernel(Op(bind, typer))
