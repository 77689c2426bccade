"""The source of a function as it was when the function was defined.

Kernels are rewritten when they are first used, possibly long after they were defined. By then their
file may have been edited, or their notebook cell run again, so decorators store the source at
once."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable

_ATTRIBUTE = "__numpipe_source__"


def remember(function: Callable) -> None:
    """Attach the lines of its file to a function that has just been defined, if Python finds them.

    Finding the function's end requires tokenizing, which is deferred to the first call of `lines`.
    """
    if getattr(function, _ATTRIBUTE, (None,))[0] is not function.__code__:
        with contextlib.suppress(OSError, TypeError):
            found = inspect.findsource(inspect.unwrap(function))
            setattr(function, _ATTRIBUTE, (function.__code__, *found, True))


def lines(function: Callable) -> tuple[list[str], int]:
    """Return the lines of a function, including its decorators, and the number of the first. Raises
    OSError or TypeError if there is no source."""
    return remembered(function) or inspect.getsourcelines(function)


def remembered(function: Callable) -> tuple[list[str], int] | None:
    """Return what `remember` attached, in the form of `lines`, or None."""
    code, text, first, whole_file = getattr(function, _ATTRIBUTE, (None, [], 0, False))
    if code is not function.__code__:  # module reloaders put new code into old functions
        return None
    if whole_file:
        text = inspect.getblock(text[first:])
        setattr(function, _ATTRIBUTE, (code, text, first, False))
    return text, first + 1


def missing(function: Callable) -> str:
    """Return a message that explains why a function has no source, and how to fix it."""
    filename = function.__code__.co_filename
    if filename == "<stdin>":
        return (
            "it was typed at a prompt that keeps no source (Python's before 3.13), or piped into "
            "python: write it to a file, or use a notebook or IPython"
        )
    if filename.startswith("<timed "):
        return (
            "IPython keeps no source of a cell with %%time: define it in an earlier cell, without "
            "the magic"
        )
    if filename == "<string>":
        return "it was made by exec() or 'python -c': write it to a file"
    if filename.startswith("<"):
        return (
            f"Python's linecache has no entry {filename}: write it to a file, or set "
            f"linecache.cache[{filename!r}] = (len(text), None, "
            f"text.splitlines(True), {filename!r}) before running generated source"
        )
    return (
        "the file cannot be read, or is not the one that was compiled: run python in the folder of "
        "the file, and import it again"
    )
