"""Conditions of an ``if`` on the GPU, and the values that an `if` may have changed."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.inert_cuda import InertType
from ...core.numba import BOOLEAN
from ...core.op import constant, cuda_meaning
from ...plan import nested_tuples_cuda as trees
from . import branches as source
from .tile import TileLike


@cuda_meaning(source.chosen)
def _chosen(np_: Any, test: Any, why: Any, stores: Any) -> Any:
    inert = isinstance(test, InertType) and not np_.computes
    if inert:
        source.check_skipped(np_, test, constant("if", "why", why), constant("if", "", stores))
    result = BOOLEAN if inert else nb.unliteral(test)
    builder, args = yield result
    return nb.const(0, nb.i1) if inert else builder.cast(args[1], test, result)


@cuda_meaning(source.after_branch)
def _after_branch(np_: Any, test: Any, value: Any) -> Any:
    if np_.computes or not isinstance(test, InertType):
        result = nb.unliteral(value)
        builder, args = yield result
        return builder.cast(args[2], value, result)
    before = trees.leaves(value)
    after = [ty if isinstance(ty, TileLike) else InertType(source.CHANGED) for ty in before]
    result = trees.tree_of(value).build(iter(after), trees.made)
    builder, args = yield result
    values = [
        part if isinstance(ty, TileLike) else nb.nothing
        for part, ty in zip(trees.leaf_values(builder, value, args[2]), before, strict=True)
    ]
    return trees.build_value(builder, result, iter(values))
