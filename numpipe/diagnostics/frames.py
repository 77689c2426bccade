"""Shortening of tracebacks to the user's call, the user's lines in the kernel, and the message;
numpipe's own frames are removed."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import ParamSpec, TypeVar

from .errors import NumpipeError

VARIABLE = "NUMPIPE_TRACEBACK"
"""environment variable: "full" keeps all frames, for debugging numpipe itself"""
_PACKAGE = __name__.partition(".")[0]
_PASSED_THROUGH = frozenset({_PACKAGE, "ast", "contextlib", "functools"})
"""top-level modules whose frames are removed; `ast` is among them because its visitors read a
kernel's source"""
_P = ParamSpec("_P")
_R = TypeVar("_R")


def brief(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a public entry point so that its NumpipeErrors show none of numpipe's own frames.

    If a Python error is the cause, its frames above the user's lines are removed and the frames
    below them are kept.
    """

    @functools.wraps(function)
    def entry(*args: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*args, **named)  # NUMPIPE_TRACEBACK=full keeps the internal frames
        except NumpipeError as error:
            shorten(error)
            raise

    return entry


def shorten(error: BaseException) -> None:
    """Remove numpipe's frames from the tracebacks of an error that is being handled, and of its
    causes."""
    if os.environ.get(VARIABLE) == "full":
        return
    top = error.__traceback__  # the handling frame, which `except` adds first
    if top is not None:
        _link([top, *(part for part in _parts(top.tb_next) if not _ours(part))])
    while (
        cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    ) is not None:
        parts = list(_parts(cause.__traceback__))
        users = [i for i, part in enumerate(parts) if not _ours(part)]
        if error.__cause__ is None and (isinstance(cause, NumpipeError) or not users):
            error.__suppress_context__ = True  # the error has the same content, with its place
            return
        if users:
            _link(parts[users[0] :])
            cause.__traceback__ = parts[users[0]]
        error = cause


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line, which is the innermost frame outside of numpipe."""
    names = (
        str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_stack(sys._getframe())
    )
    level = next((n for n, name in enumerate(names, 1) if not name.startswith(f"{_PACKAGE}.")), 1)
    warnings.warn(text, category, stacklevel=level)


def _parts(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _link(parts: list[TracebackType]) -> None:
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        part.tb_next = following


def _ours(part: TracebackType) -> bool:
    return str(part.tb_frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_THROUGH
