"""`@numpipe.function`: functions in any module that kernels may call."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from ..diagnostics.errors import SpecError, at
from ..diagnostics.source import remember


@dataclass(frozen=True)
class Facts:
    """What the AST pass knows about a function of a kernel.

    parameters  number of parameters, without captures
    products    number of wgmmas that every call is sure to issue
    pipelines   whether it contains a pipeline, or calls a function that does
    returns     whether it returns a value
    coroutine   whether it was written with `yield`
    rest        whether it has one more parameter, the last one, for the tuple of all remaining
                arguments (``*rest``)
    makes       whether it returns a pipeline for a loop
    turns       whether it contains blocks of `numpipe.turn`, or calls a function that does
    misuse      why it cannot be a compute_context, or "": it must call its only parameter once,
                unconditionally
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

    def packed(self, arguments: tuple, pack: Callable[[Any], Any] = tuple) -> tuple:
        """Return the arguments of a call in the form that the function takes; `pack` makes a tuple
        of the remaining ones.

        >>> Facts("body", 1, rest=True).packed((0, 1, 2))
        (0, (1, 2))
        """
        return (
            (*arguments[: self.parameters], pack(arguments[self.parameters :]))
            if self.rest
            else arguments
        )


def facts_of(function: Any) -> Facts | None:
    """Return the facts of a callable value, or None if it is not a function of a kernel."""
    if isinstance(function, functools.partial):
        function = function.func
    return getattr(getattr(function, "function", function), "__facts__", None)


__all__ = ["function"]

P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A function that kernels may call; a call from the host runs the plain Python function."""

    def __init__(self, function: Callable[P, R]) -> None:
        if not isinstance(function, FunctionType):
            raise SpecError(f"@numpipe.function decorates a Python function, got {function!r}")
        file, line = function.__code__.co_filename, function.__code__.co_firstlineno
        if function.__name__ == "<lambda>":
            raise SpecError(
                at(
                    file,
                    line,
                    "@numpipe.function decorates a `def`: the source of a lambda cannot be "
                    "separated from the rest of its line",
                )
            )
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise SpecError(
                    at(
                        file,
                        line,
                        f"function {function.__name__}: *{name} is not supported: list each "
                        "parameter of a kernel's functions",
                    )
                )
        functools.update_wrapper(self, function)
        self.function = function
        self.refusal: Any = lambda known, again: ""
        """returns why a kernel may not make a call, or "". known: the compile-time arguments, by
        name; again: whether the kernel calls the function in another place, too"""
        remember(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<numpipe function {self.__module__}.{self.__qualname__}>"  # type: ignore[attr-defined]


def function(function: Callable[P, R]) -> Function[P, R]:
    """Make a function usable in kernels, on the GPU and simulated, and in every role.

    It is written like a kernel, and compiled with each kernel that calls it: `axis_index` refers to
    the axes of the kernel that it runs in, and a pipeline in it has its ring in that kernel.
    Arguments that are known at compile time (Statics, constants, dtypes) are constants in it, so it
    can compute shapes from them. A call with only constants whose result is a number is itself a
    constant. The function may be passed on, stored in tuples, and be the body of a pipeline or an
    index map.

    Raises SpecError unless it decorates a plain `def`. Its source is read when a kernel that calls
    it is first used.

    >>> @function
    ... def blocks(size, block):
    ...     return -(-size // block)
    >>> blocks(130, 64)
    3
    """
    return Function(function)


def namespace_of(function: Any) -> dict[str, Any]:
    """Return the values of the names that a function may read: its globals, hidden by the variables
    that it captures. A captured variable that is not assigned yet has no value."""
    values = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        values.pop(name, None)
        with contextlib.suppress(ValueError):
            values[name] = cell.cell_contents
    return values


def generated(text: str, what: str, values: dict[str, Any]) -> Function:
    """Return the function that a source text defines.

    what    describes it, in messages; another text needs another description
    values  the globals of the function
    """
    file, values = f"<{what}>", dict(values)
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    exec(compile(text, file, "exec"), values)
    return Function(list(values.values())[-1])
