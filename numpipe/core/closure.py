"""Callable values: a function with the run-time values it was bound to, by value.

A nested function, a lambda or a `@numpipe.function` of a kernel becomes one, and an emitted
pipeline is one. In CPython the callable is a functools.partial; on the GPU it is a value whose type
names the function and whose data are the bound values: calling it costs nothing, and it may be
passed on and stored in tuples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .op import Helper, Op, of_one_kernel


def bind(operation: Op[..., Any], value: Any) -> Callable[..., Any]:
    """Bind `operation` to its first argument, for the simulated SM."""
    return functools.partial(operation, value)


def binder(
    function: Callable[..., Any], for_numba: Callable[..., Any] | None = None
) -> Op[..., Any]:
    """Make an operation ``bind(captures) -> callable`` of a lifted function, which takes the tuple
    of captures first.

    `for_numba` is the variant of the function that is compiled.
    """
    compiled: Helper[..., Any] = of_one_kernel(Helper(for_numba or function))

    def bind(captures: tuple[Any, ...]) -> Callable[..., Any]:
        return functools.partial(function, captures)

    def typer(typing_context: Any, captures: Any) -> Any:
        from .closure_cuda import bind_typer

        return bind_typer(compiled, captures)

    return of_one_kernel(Op(bind, typer))
