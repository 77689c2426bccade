"""Type inference that looks again at what has changed only.

Each statement of a function is a constraint between the types of its variables. Numba runs all of them, again and again, until no
type changes any more: so every call is resolved twice at least, and that is most of what inference takes. Here a constraint runs
again if it failed, or if a variable that it read has another type now. What it found stands otherwise: it would find the same.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from numba.cuda import types
from numba.cuda.core import errors, typeinfer
from numba.cuda.utils import chain_exception

_read: list[tuple[Any, Any]] | None = None
"""(variable, its type) for each that the constraint which is running has read"""
_add_type = typeinfer.TypeInferer.add_type


@contextlib.contextmanager
def _reading(into: Any) -> Iterator[Any]:
    global _read
    before, _read = _read, into
    try:
        yield into
    finally:
        _read = before


def variable(self: dict[str, Any], name: str) -> Any:
    """The type variable of this name, made when it is first asked for."""
    found = self.get(name)
    if found is None:
        found = typeinfer.TypeVar(self.context, name)  # type: ignore[attr-defined]
        self[name] = found
    if _read is not None:
        _read.append((found, found.type))
    return found


def add_type(self: Any, var: str, tp: Any, loc: Any, unless_locked: bool = False) -> None:
    """A type is added, which reads nothing: adding it again would change nothing."""
    with _reading(None):
        _add_type(self, var, tp, loc, unless_locked)


def copy_type(self: Any, src_var: str, dest_var: str, loc: Any) -> None:
    source = self.typevars[src_var]
    with _reading(None):
        self.typevars[dest_var].union(source, loc=loc)


def propagate(self: Any, typeinferer: Any) -> list[Exception]:
    """Run the constraints of a function that have not run with these types, in order; what they raised."""
    known: dict[Any, list[tuple[Any, Any]]] = vars(self).setdefault("numpipe_read", {})
    failed: list[Exception] = []
    strange = []
    fixer = typeinferer.warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fixer._category)
        for constraint in self.constraints:
            if constraint in known and all(var.type is kind for var, kind in known[constraint]):
                continue
            try:
                with _reading([]) as seen:
                    constraint(typeinferer)
                if all(kind.__class__ is not types.RecursiveCall for _, kind in seen):  # is of what is known of itself so far
                    known[constraint] = seen
            except errors.ForceLiteralArg as error:
                failed.append(error)
            except errors.TypingError as error:
                told = errors.TypingError(str(error), loc=constraint.loc, highlighting=False)
                failed.append(chain_exception(told, error))
            for warning in caught:
                if issubclass(warning.category, fixer._category):
                    fixer._warnings[constraint.loc.filename, constraint.loc.line, warning.category].add(str(warning.message))
                else:
                    strange.append(warning)
            caught.clear()
    for warning in strange:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return failed


replacements: tuple[tuple[Any, str, Any], ...] = (
    (typeinfer.ConstraintNetwork, "propagate", propagate),
    (typeinfer.TypeVarMap, "__getitem__", variable),
    (typeinfer.TypeInferer, "add_type", add_type),
    (typeinfer.TypeInferer, "copy_type", copy_type),
)
"""(class, name, what stands there while a kernel is compiled)"""
