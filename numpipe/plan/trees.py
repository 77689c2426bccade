"""Nested tuples and NamedTuples: specs, arrays and tiles of a pipeline have the same shape.

::

    class Weights(NamedTuple):
        w: Any
        scales: Any

    in_specs=(BlockSpec(…), Weights(w=BlockSpec(…), scales=BlockSpec(…)))      # the specs,
    for (k,), (a_tile, weights) in pipe(a, Weights(w, scales)):                # the arrays, and the tiles: weights.w
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tree:
    """The shape of a nested tuple; a leaf has no parts.

    made  the class of a tuple
    """

    parts: tuple[Tree, ...] | None = None
    made: type = tuple

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of a NamedTuple's parts; of other tuples none."""
        return tuple(getattr(self.made, "_fields", ()))

    def labels(self, root: str) -> list[str]:
        """How messages call each leaf: ``in_specs[1].w``."""
        if self.parts is None:
            return [root]
        names = [f".{field}" for field in self.fields] or [f"[{number}]" for number in range(len(self.parts))]
        return [label for name, part in zip(names, self.parts, strict=True) for label in part.labels(root + name)]

    def build(self, leaves: Iterator[Any], make: Callable[[Tree, list[Any]], Any]) -> Any:
        """The same shape of other leaves; ``make(tree, parts)`` makes a tuple."""
        return next(leaves) if self.parts is None else make(self, [part.build(leaves, make) for part in self.parts])

    def __str__(self) -> str:
        if self.parts is None:
            return "*"
        if self.fields:
            return f"{self.made.__name__}({', '.join(f'{f}={p}' for f, p in zip(self.fields, self.parts, strict=True))})"
        return f"({', '.join(map(str, self.parts))}{',' * (len(self.parts) == 1)})"


def tree_of(value: Any) -> Tree:
    """
    >>> str(tree_of((1, (2, 3))))
    '(*, (*, *))'
    """
    return Tree(tuple(map(tree_of, value)), type(value)) if isinstance(value, tuple) else Tree()


def leaves(value: Any) -> list[Any]:
    """
    >>> leaves((1, (2, 3)))
    [1, 2, 3]
    """
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]


def made(tree: Tree, parts: Sequence[Any]) -> Any:
    """`Tree.build`'s `make` for values.

    >>> tree_of((1, (2, 3))).build(iter("abc"), made)
    ('a', ('b', 'c'))
    """
    return tree.made(*parts) if tree.fields else tuple(parts)


def mismatch(specs: Tree, arrays: Tree, names: str = "in_specs has") -> str:
    """What is wrong with a pipeline called on arrays of another shape than its specs, "`names`"; "" for nothing."""
    if specs == arrays:
        return ""
    flat = all(part.parts is None for tree in (specs, arrays) for part in tree.parts or ())
    if flat and len(specs.parts or ()) != len(arrays.parts or ()):
        return f"called on {len(arrays.parts or ())} arrays, but {names} {len(specs.parts or ())}"
    return f"called on arrays {arrays}, but {names} {specs}: pass them in the same tuples"
