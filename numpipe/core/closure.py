"""Callable values: a function with the run-time values it was bound to, by value.

What a nested function, a lambda or a `@numpipe.function` of a kernel becomes, and what an emitted pipeline is. In CPython
the callable is a functools.partial; on the GPU a value whose type names the function and whose data is what it was bound
to: calling it costs nothing, and it may be passed on and stored in tuples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .op import Helper, Op


def bind(operation: Op[..., Any], value: Any) -> Callable[..., Any]:
    """`operation` bound to its first argument, as the simulated SM runs it."""
    return functools.partial(operation, value)


def binder(function: Callable[..., Any], for_numba: Callable[..., Any] | None = None) -> Op[..., Any]:
    """An operation ``bind(captures) -> callable`` for a lifted function, which takes the tuple of captures first.

    `for_numba`: the variant of it that is compiled.
    """
    compiled: Helper[..., Any] = Helper(for_numba or function)

    def bind(captures: tuple[Any, ...]) -> Callable[..., Any]:
        return functools.partial(function, captures)

    def typer(typing_context: Any, captures: Any) -> Any:
        from .closure_cuda import bound

        return bound(compiled, captures)

    return Op(bind, typer)
