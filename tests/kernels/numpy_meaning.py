"""What a kernel's source means, by NumPy alone: each program of each CTA runs from its first line to its last, one after the other.

`NUMPY` stands for the module numpipe where the source of a kernel is executed. It knows what `tile_programs` writes: blocks that
begin and end anywhere, pipelines as loops, shared memory as arrays, atomics as ufuncs. It shares nothing with numpipe.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

PROGRAM = SimpleNamespace(cta=0, wg=0)
"""the program that runs"""


class Ds:
    def __init__(self, start: Any, size: int, stop: Any = None) -> None:
        self.start, self.size, self.stop = int(start), size, stop


class At:
    def __init__(self, array: Array) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> tuple[Array, Any]:
        return self.array, index


class Array:
    """An array of the kernel, or a tile in shared memory: outside there are zeros, and nothing is stored."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype, self.at = values, values.shape, values.dtype, At(self)

    @property
    def T(self) -> Array:
        return Array(self.values.T)

    def places(self, index: Any) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """The elements that an index selects of each dimension, -1 for those that are not there; the shape of the tile."""
        index = (slice(None),) * len(self.shape) if index is Ellipsis else index if isinstance(index, tuple) else (index,)
        found, sides = [], []
        for part, n in zip(index, self.shape, strict=True):
            if isinstance(part, slice):
                part = Ds(part.start or 0, (n if part.stop is None else part.stop) - (part.start or 0))
            if isinstance(part, Ds):
                at = np.arange(part.start, part.start + part.size)
                at[(at >= n) | (at < 0) | (False if part.stop is None else at >= part.stop)] = -1
            else:
                at = np.atleast_1d(np.asarray(part))
                assert ((at >= 0) & (at < n)).all(), f"a program has index {part} of {n}"
            found.append(at)
            sides += [at.size] if isinstance(part, Ds) or np.ndim(part) else []
        return found, tuple(sides)

    def __getitem__(self, index: Any) -> Any:
        places, sides = self.places(index)
        there = functools.reduce(np.logical_and, np.meshgrid(*(at >= 0 for at in places), indexing="ij"))
        found = np.where(there, self.values[np.ix_(*places)], np.zeros((), self.dtype)).reshape(sides)
        return found if sides else int(found) if self.dtype.kind in "iu" else found[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        places, sides = self.places(index)
        values = np.broadcast_to(np.asarray(value).reshape(sides if np.ndim(value) else ()), sides).reshape(
            [at.size for at in places])
        chosen = [np.flatnonzero(at >= 0) for at in places]
        self.values[np.ix_(*(at[kept] for at, kept in zip(places, chosen, strict=True)))] = values[np.ix_(*chosen)]


def atomic(function: np.ufunc) -> Callable[..., None]:
    def operation(dst: Any, value: Any) -> None:
        array, index = dst if isinstance(dst, tuple) else (dst, Ellipsis)
        if isinstance(index, np.ndarray):
            function.at(array.values, index, value)
        else:
            array[index] = function(array[index], value)

    return operation


class BlockSpec:
    def __init__(self, sides: tuple[Any, ...], index: Any, mode: str | None = None) -> None:
        self.sides, self.index = sides, index

    def part(self, indices: tuple[int, ...]) -> tuple[Any, ...]:
        found = self.index(*indices)
        return tuple(n if side is None else Ds(n, side.size) if isinstance(side, Element) else Ds(n * side, side)
                     for n, side in zip(found, self.sides, strict=True))

    def load(self, array: Array, indices: tuple[int, ...]) -> Array:
        return Array(array[self.part(indices)])

    def empty(self, array: Array) -> Array:
        return Array(np.zeros([n.size if isinstance(n, Element) else n for n in self.sides if n is not None], array.dtype))


class Element:
    def __init__(self, size: int) -> None:
        self.size = size


def pipeline(grid: tuple[int, ...], in_specs: Any, out_specs: Any = (), **options: Any) -> Any:
    def steps(*arrays: Array) -> Iterator[Any]:
        outputs = arrays[len(in_specs):]
        for indices in itertools.product(*map(range, grid)):
            tiles = [spec.load(array, indices) for spec, array in zip(in_specs, arrays, strict=False)]
            made = [spec.empty(array) for spec, array in zip(out_specs, outputs, strict=True)]
            yield indices, (*tiles, *made)
            for spec, array, tile in zip(out_specs, outputs, made, strict=True):
                array[spec.part(indices)] = tile.values

    return steps


def iota(shape: Any, axis: int = 0) -> np.ndarray:
    shape = (shape,) if isinstance(shape, int) else shape
    along = np.arange(shape[axis], dtype=np.int32)
    return np.broadcast_to(along if axis == len(shape) - 1 else along[:, None], shape)


NUMPY = SimpleNamespace(
    pipeline=pipeline, iota=iota, full=np.full, zeros=np.zeros,
    scratch=lambda made: made, run_scoped=lambda function, *made: function(*made),
    layout_cast=lambda tile, layout: tile, load_tile=lambda view, layout: view[0][view[1]],
    program_id=lambda axis: PROGRAM.cta, axis_index=lambda name: PROGRAM.wg,
    **{f"atomic_{name}": atomic(function) for name, function in (
        ("add", np.add), ("min", np.minimum), ("max", np.maximum), ("and", np.bitwise_and), ("or", np.bitwise_or),
        ("xor", np.bitwise_xor))})


def run(text: str, name: str, arguments: dict[str, Any], ctas: int, wgs: int) -> None:
    """Execute a kernel's function for each warpgroup of each CTA: its arrays are changed."""
    scope: dict[str, Any] = {
        "np": np, "numpipe": NUMPY, "ds": Ds, "BlockSpec": BlockSpec, "Element": Element,
        "SMEM": lambda shape, dtype: Array(np.zeros(shape, dtype))}
    exec(text, scope)
    given = {key: Array(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
    for PROGRAM.cta, PROGRAM.wg in itertools.product(range(ctas), range(wgs)):
        scope[name](**given)
