"""Nested tuples of Numba types and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..core import numba as nb
from .trees import Tree


def tree_of(ty: Any) -> Tree:
    """The shape of a tuple's type."""
    if not isinstance(ty, nb.types.BaseTuple):
        return Tree()
    made = ty.instance_class if isinstance(ty, nb.types.BaseNamedTuple) else tuple
    return Tree(tuple(map(tree_of, ty)), made)


def leaves(ty: Any) -> list[Any]:
    """Types of the leaves."""
    return [leaf for part in ty for leaf in leaves(part)] if isinstance(ty, nb.types.BaseTuple) else [ty]


def leaf_values(builder: Any, ty: Any, value: Any) -> list[Any]:
    """Values of the leaves."""
    if not isinstance(ty, nb.types.BaseTuple):
        return [value]
    parts = nb.cgutils.unpack_tuple(builder, value, len(ty))
    return [leaf for kind, part in zip(ty, parts, strict=True) for leaf in leaf_values(builder, kind, part)]


def made(tree: Tree, parts: list[Any]) -> Any:
    """`Tree.build`'s `make` for types."""
    return nb.types.BaseTuple.from_types(tuple(parts), tree.made) if tree.fields else nb.types.Tuple(tuple(parts))


def build_value(context: Any, builder: Any, ty: Any, values: Iterator[Any]) -> Any:
    """A value of a tuple's type from those of its leaves."""
    if not isinstance(ty, nb.types.BaseTuple):
        return next(values)
    return context.make_tuple(builder, ty, [build_value(context, builder, part, values) for part in ty])
