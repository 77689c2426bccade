"""Callable values: a compiled function with the run-time values it captured, by value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .._op import Helper, Op


def binder(function: Callable[..., Any]) -> Op[..., Any]:
    """An operation ``bind(captures) -> callable``: what a nested function or lambda of a kernel becomes.

    `function` takes the tuple of captures first. In CPython the callable is a functools.partial, on the GPU a value whose
    type names the function and whose data is the captures: calling it costs nothing.
    """
    compiled = Helper(function)

    def bind(captures: tuple[Any, ...]) -> Callable[..., Any]:
        return functools.partial(function, captures)

    def typer(typing_context: Any, captures: Any) -> Any:
        from .closure_cuda import bound

        return bound(compiled, captures)

    return Op(bind, typer)
