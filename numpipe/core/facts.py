"""The AST pass tells those who call a function of a kernel as a value what it knows of the function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Facts:
    """A function of a kernel, as far as the AST pass knows it.

    parameters  how many it takes, captures not counted
    products    how many wgmmas every call is sure to issue
    pipelines   whether it holds a pipeline, or calls a function that does
    returns     whether it returns a value
    coroutine   whether it was written with `yield`
    rest        whether one more parameter, its last, is the tuple of all arguments behind (``*rest``)
    makes       whether it returns a pipeline for a loop
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
    rest: bool = False
    makes: bool = False

    def packed(self, arguments: tuple[Any, ...], pack: Callable[[Any], Any] = tuple) -> tuple[Any, ...]:
        """Return the arguments of a call as the function takes them; `pack` makes a tuple of the rest.

        >>> Facts("body", 1, rest=True).packed((0, 1, 2))
        (0, (1, 2))
        """
        return (*arguments[:self.parameters], pack(arguments[self.parameters:])) if self.rest else arguments


def facts_of(function: Any) -> Facts | None:
    """Return the facts of a callable value; None if it is no function of a kernel."""
    if isinstance(function, functools.partial):
        function = function.func
    return getattr(getattr(function, "function", function), "__facts__", None)
