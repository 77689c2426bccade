"""Nested tuples and NamedTuples: specs, arrays and tiles of a pipeline have the same shape.

::

    class Weights(NamedTuple):
        w: Any
        scales: Any

    in_specs=(BlockSpec(…), Weights(w=BlockSpec(…), scales=BlockSpec(…)))      # the specs,
    for (k,), (a_tile, weights) in pipe(a, Weights(w, scales)):                # the arrays, and the
                                                                               tiles: weights.w
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.op import called
from ..diagnostics.errors import SpecError


@dataclass(frozen=True)
class Tree:
    """The shape of a nested tuple: its parts (None for a leaf) and its class."""

    parts: tuple[Tree, ...] | None = None
    kind: type = tuple

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of a NamedTuple's parts; empty for other tuples."""
        return tuple(getattr(self.kind, "_fields", ()))

    def labels(self, root: str) -> list[str]:
        """Return each leaf's name in messages: ``in_specs[1].w``."""
        if self.parts is None:
            return [root]
        names = [f".{field}" for field in self.fields] or [
            f"[{number}]" for number in range(len(self.parts))
        ]
        return [
            label
            for name, part in zip(names, self.parts, strict=True)
            for label in part.labels(root + name)
        ]

    def build(self, leaves: Iterator, make: Callable[[Tree, list], Any]) -> Any:
        """Return other leaves in the same shape; ``make(tree, parts)`` makes a tuple."""
        return (
            next(leaves)
            if self.parts is None
            else make(self, [part.build(leaves, make) for part in self.parts])
        )

    def __str__(self) -> str:
        if self.parts is None:
            return "*"
        if self.fields:
            named = zip(self.fields, self.parts, strict=True)
            return f"{self.kind.__name__}({', '.join(f'{f}={p}' for f, p in named)})"
        return f"({', '.join(map(str, self.parts))}{',' * (len(self.parts) == 1)})"


def parts_of(value: Any) -> Any:
    """Return the parts of a tuple, or of its Numba type; None for a leaf."""
    return value if isinstance(value, tuple) else getattr(value, "types", None)


def tree_of(value: Any) -> Tree:
    """Return the shape of a nested tuple, or of its Numba type.

    >>> str(tree_of((1, (2, 3))))
    '(*, (*, *))'
    """
    if (parts := parts_of(value)) is None:
        return Tree()
    return Tree(
        tuple(map(tree_of, parts)),
        getattr(value, "instance_class", tuple if parts is not value else type(value)),
    )


def leaves(value: Any) -> list:
    """Return the leaves of a nested tuple, or their types.

    >>> leaves((1, (2, 3)))
    [1, 2, 3]
    """
    parts = parts_of(value)
    return [value] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def made(tree: Tree, parts: Sequence) -> Any:
    """Return a tuple of values, of the tree's class: the `make` of `Tree.build` for values.

    >>> tree_of((1, (2, 3))).build(iter("abc"), made)
    ('a', ('b', 'c'))
    """
    return tree.kind(*parts) if tree.fields else tuple(parts)


def mismatch(specs: Tree, arrays: Tree, names: str) -> str:
    """Return what is wrong with arrays whose shape differs from a pipeline's specs, called `names`;
    "" if nothing is."""
    if specs == arrays:
        return ""
    flat = all(part.parts is None for tree in (specs, arrays) for part in tree.parts or ())
    if flat and len(specs.parts or ()) != len(arrays.parts or ()):
        return f"called on {len(arrays.parts or ())} arrays, but {names} {len(specs.parts or ())}"
    return f"called on arrays {arrays}, but {names} {specs}: pass them in the same tuples"


def check_leaves(where: str, name: str, specs: Any) -> None:
    """Raise SpecError for a leaf of a pipeline's specs, or of their Numba types, that is None."""
    for label, leaf in zip(tree_of(specs).labels(name), leaves(specs), strict=True):
        if label != name and called(leaf) in ("NoneType", "none"):
            raise SpecError(
                f"{where}: {label} is None, and each array has a BlockSpec: leave out None and "
                "its array, or pass the array to the body as it is, "
                "BlockSpec(memory_space=numpipe.GMEM)"
            )
