"""Nested tuples of Numba types and LLVM values. The functions of `nested_tuples` take both tuples
and their types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core import numba as nb
from .nested_tuples import Tree, parts_of
from .nested_tuples import leaves as leaves
from .nested_tuples import tree_of as tree_of


def leaf_values(builder: Any, ty: Any, value: Any) -> list:
    """Return the leaves of a tuple's LLVM value."""
    if parts_of(ty) is None:
        return [value]
    parts = builder.unpack_tuple(value)
    return [
        leaf
        for kind, part in zip(ty, parts, strict=True)
        for leaf in leaf_values(builder, kind, part)
    ]


def made(tree: Tree, parts: list) -> Any:
    """Return the type of a tuple: the `make` of `Tree.build` for Numba types."""
    return (
        nb.BaseTuple.from_types(tuple(parts), tree.kind) if tree.fields else nb.Tuple(tuple(parts))
    )


def build_value(builder: Any, ty: Any, values: Iterator) -> Any:
    """Return the LLVM value of a tuple's type, given the values of its leaves."""
    if parts_of(ty) is None:
        return next(values)
    return builder.make_tuple(ty, [build_value(builder, part, values) for part in ty])
