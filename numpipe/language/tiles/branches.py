"""The condition of an ``if``, and the values that an `if` may have changed.

The memory role has no value of a condition on tile data or on the warpgroup axis. It skips such an
`if`, which is right as long as nothing in it loads anything, and a number that the `if` may have
changed has no value in the memory role either.
"""

from __future__ import annotations

from typing import Any

from ...core.inert import Inert
from ...core.op import context_op
from ...diagnostics.errors import CompileError
from ...plan.context import Context
from ...plan.nested_tuples import leaves, made, tree_of
from .tile import Tile

CHANGED = "a number that an 'if' may have changed"


def check_skipped(np_: Any, test: Any, why: str, stores: int) -> None:
    """Raise CompileError for an `if` that a role cannot skip, though its condition has no value
    there."""
    if why and np_.loads:
        raise CompileError(
            f"{test.what} decides {why}, but the memory role, which issues the loads, has no such "
            "value; fix: move that out of the 'if', and leave stores, atomics and arrivals in it"
        )
    if stores and np_.stores:
        raise CompileError(
            f"{test.what} decides a store, but the storing role has no such value; fix: "
            "CompilerParams(store_role=False), or a store in every case, of np.where(…)"
        )


@context_op
def chosen(np_: Context, test: Any, why: str, stores: int) -> Any:
    """Return the condition of an `if`; False in a role where it has no value.

    `why` says what in the `if` the memory role cannot skip, `stores` whether it may store to an
    array, which the storing role cannot skip: then it raises CompileError.
    """
    if np_.computes or not isinstance(test, Inert):
        return test
    check_skipped(np_, test, why, stores)
    return False


@context_op
def after_branch(np_: Context, test: Any, value: Any) -> Any:
    """Return a value that an `if` may have changed: in the memory role an inert one, if the
    condition has no value there and it is no tile."""
    if np_.computes or not isinstance(test, Inert):
        return value
    parts = (part if isinstance(part, Tile) else Inert(CHANGED) for part in leaves(value))
    return tree_of(value).build(parts, made)
