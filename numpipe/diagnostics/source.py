"""The text of a function as it was when the function was made.

Kernels are rewritten when they are first used, maybe long after they were defined. By then their
file may have been edited, or the cell of a notebook run again: so a decorator remembers the text at
once.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

_ATTRIBUTE = "__numpipe_source__"


def remember(function: Callable[..., Any]) -> None:
    """Attach the lines of its file to a function that has just been defined, if Python finds them.

    Where the function ends is only known after tokenizing it, which waits for the first `lines`.
    """
    if getattr(function, _ATTRIBUTE, (None,))[0] is not function.__code__:
        with contextlib.suppress(OSError, TypeError):
            found = inspect.findsource(inspect.unwrap(function))
            setattr(function, _ATTRIBUTE, (function.__code__, *found, True))


def lines(function: Callable[..., Any]) -> tuple[list[str], int]:
    """Return the lines of a function with its decorators, and the number of the first; OSError or
    TypeError if it has none."""
    return remembered(function) or inspect.getsourcelines(function)


def remembered(function: Callable[..., Any]) -> tuple[list[str], int] | None:
    """Return what `remember` attached, as `lines` returns it; None if it attached nothing."""
    code, text, first, whole_file = getattr(function, _ATTRIBUTE, (None, [], 0, False))
    if code is not function.__code__:  # tools that reload modules give old functions new code
        return None
    if whole_file:
        text = inspect.getblock(text[first:])
        setattr(function, _ATTRIBUTE, (code, text, first, False))
    return text, first + 1


def missing(function: Callable[..., Any]) -> str:
    """Return a text that says why a function has no source, and how to fix that."""
    filename = function.__code__.co_filename
    if filename == "<stdin>":
        return (
            "it was typed at a prompt that keeps no source (Python's before 3.13), or piped into "
            "python: write it to a file, or use a notebook or IPython"
        )
    if filename.startswith("<timed "):
        return (
            "IPython keeps no source of a cell under %%time: define it in a cell above, without "
            "the magic"
        )
    if filename == "<string>":
        return "it was made by exec() or 'python -c': write it to a file"
    if filename.startswith("<"):
        return (
            f"nothing in Python's linecache is called {filename}: write it to a file; what "
            f"generates source enters it there, linecache.cache[{filename!r}] = (len(text), None, "
            f"text.splitlines(True), {filename!r}), before it runs it"
        )
    return (
        "the file cannot be read, or is not the one that was compiled: run python where the file "
        "is, and import it again"
    )
