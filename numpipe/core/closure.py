"""Callable values: a function with the run-time values it was bound to, by value.

What a nested function, a lambda or a `@numpipe.function` of a kernel becomes, and what an emitted pipeline is. In CPython
the callable is a functools.partial; on the GPU a value whose type names the function and whose data is what it was bound
to: calling it costs nothing, and it may be passed on and stored in tuples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .op import Helper, Op


@dataclass(frozen=True)
class Facts:
    """What the AST pass knows of a function of a kernel.

    parameters  how many it takes, captures not counted
    products    wgmmas that every call is sure to issue
    pipelines   whether it holds a pipeline, or calls a function that does
    returns     whether it returns a value
    coroutine   whether it was written with `yield`
    turns       whether it goes through blocks of `numpipe.turn`, or calls a function that does
    misuse      why it cannot be a compute_context, or "": it must call its only parameter once, unconditionally
    """

    name: str
    parameters: int
    products: int = 0
    pipelines: bool = False
    returns: bool = False
    coroutine: bool = False
    misuse: str = ""
    turns: bool = False


def facts_of(function: Any) -> Facts | None:
    """The facts of a callable value, None for what is no function of a kernel."""
    if isinstance(function, functools.partial):
        function = function.func
    return getattr(getattr(function, "function", function), "__facts__", None)


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
