"""Explanation of Numba's errors: the innermost reason, and the lines that lead to it."""

from __future__ import annotations

import operator
import re
from typing import Any

# the base class of numba.cuda's error, which types borrowed from numba.core raise
from numba.core.errors import NumbaError
from numba.cuda.utils import OPERATORS_TO_BUILTINS

from ...diagnostics.errors import NumpipeError

__all__ = ["explain"]


def explain(error: BaseException, first: int) -> tuple[str, list[int]]:
    """Return (reason, lines) of a compile error: the innermost reason, and the lines that lead to
    it, outermost first.

    Only lines from `first` on are included. Numba wraps an error once per function that it is
    typing, stores the causes of failed calls separately, and records positions only in local
    variables of its frames. This function follows all three.
    """
    return _deepest(error, first, set())[1:]


def _deepest(error: BaseException, first: int, seen: set[int]) -> tuple[int, str, list[int]]:
    """Return (depth, reason, lines) of the innermost error among an error and its causes."""
    seen.add(id(error))
    reason = str(getattr(error, "msg", None) or error)
    if not isinstance(error, (NumbaError, NumpipeError)):
        reason = f"{type(error).__name__}: {reason}"
    causes = [error.__cause__] if error.__cause__ is not None else []
    lines: list[int] = []
    traceback = error.__traceback__
    while traceback is not None:
        local = traceback.tb_frame.f_locals
        for name in ("constraint", "inst", "stmt"):  # while typing, lowering, interpreting
            lines += _line(local.get(name), first)
        failures: Any = local.get("self")
        if hasattr(failures, "_failures"):  # no candidate of a call matched
            causes += [
                f.error
                for group in failures._failures.values()
                for f in group
                if isinstance(f.error, Exception)
            ]
            reason = _no_match(failures)
        traceback = traceback.tb_next
    lines += _line(error, first)
    if not lines:
        places = re.findall(r"(?:at|in) [^\n]*? \((\d+)\)", reason) or re.findall(
            r'File "[^"]*", line (\d+)', reason
        )
        lines = [int(line) for line in places[-1:] if int(line) >= first]
    inner = [_deepest(cause, first, seen) for cause in causes if id(cause) not in seen]
    depth, innermost, deeper = max(inner, key=lambda one: one[0], default=(0, "", []))
    return depth + 1, innermost or re.sub(r"\x1b\[[0-9;]*m", "", reason), lines + deeper


def _line(thing: Any, first: int) -> list[int]:
    line = getattr(getattr(thing, "loc", None), "line", 0)
    return [line] if isinstance(line, int) and line >= first else []


def _no_match(failures: Any) -> str:
    key = failures._function_type.typing_key
    symbol, args = _SYMBOLS.get(key), [str(a) for a in failures._args]
    return f"'{symbol or getattr(key, '__name__', key)}' is not defined for " + (
        " and ".join(args) if symbol else f"({', '.join(args)})"
    )


_SYMBOLS = OPERATORS_TO_BUILTINS | {
    operator.matmul: "@",
    operator.imatmul: "@=",
    operator.getitem: "[]",
    operator.setitem: "[] =",
    operator.truth: None,
}
