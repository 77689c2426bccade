"""An interpreter of kernel source that uses only NumPy: the warpgroups of each CTA run one after
another, from the first line to the last.

`NUMPY` replaces the module numpipe when the source of a drawn kernel is executed. It supports what
the generator writes: blocks that begin and end anywhere, pipelines as loops, shared memory as
arrays, atomics as ufuncs, products in float64. Barriers, turns and waits do nothing, the first
cluster has all tiles, and each tile all steps. It shares no code with numpipe.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

PLACE = SimpleNamespace(cta=0, wg=0, wgs=1, cluster=1)
"""the warpgroup that is running"""


class Ds:
    def __init__(self, start: Any, size: int, stop: Any = None) -> None:
        self.start, self.size, self.stop = int(start), size, stop


class View(NamedTuple):
    """A part of an array."""

    array: Array
    index: Any

    @property
    def T(self) -> Array:
        return Array(self.read().T)

    def read(self) -> Any:
        return self.array[self.index]


class At:
    def __init__(self, array: Array) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> View:
        return View(self.array, index)


class Array:
    """An array of the kernel or a shared tile; elements out of bounds read as `fill` and drop
    stores."""

    def __init__(self, values: np.ndarray, fill: float = 0) -> None:
        self.values, self.shape, self.dtype, self.at, self.fill = (
            values,
            values.shape,
            values.dtype,
            At(self),
            fill,
        )

    @property
    def T(self) -> Array:
        return Array(self.values.T)

    def places(self, index: Any) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """Return the elements that an index selects in each dimension, -1 out of bounds, and the
        tile's shape."""
        index = () if index is Ellipsis else index if isinstance(index, tuple) else (index,)
        index += (slice(None),) * (len(self.shape) - len(index))
        found, sides = [], []
        for part, n in zip(index, self.shape, strict=True):
            if isinstance(part, slice) and part == slice(None):
                part = Ds(0, n)
            if isinstance(part, Ds):
                at = np.arange(part.start, part.start + part.size)
                at[(at >= n) | (at < 0) | (False if part.stop is None else at >= part.stop)] = -1
            else:
                at = np.atleast_1d(np.asarray(part))
                if not ((at >= 0) & (at < n)).all():
                    raise IndexError(f"the generator wrote index {part} of {n}")
            found.append(at)
            sides += [at.size] if isinstance(part, Ds) or np.ndim(part) else []
        return found, tuple(sides)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple) and any(np.ndim(part) == 2 for part in index):
            return self.values[index]
        places, sides = self.places(index)
        there = functools.reduce(
            np.logical_and, np.meshgrid(*(at >= 0 for at in places), indexing="ij")
        )
        found = np.full(there.shape, self.fill).astype(self.dtype)
        if there.any():
            np.copyto(found, self.values[np.ix_(*places)], where=there)
        found = found.reshape(sides)
        return found if sides else int(found) if self.dtype.kind in "iu" else found[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        places, sides = self.places(index)
        values = np.broadcast_to(
            np.asarray(value).reshape(sides if np.ndim(value) else ()), sides
        ).reshape([at.size for at in places])
        chosen = [np.flatnonzero(at >= 0) for at in places]
        self.values[np.ix_(*(at[kept] for at, kept in zip(places, chosen, strict=True)))] = values[
            np.ix_(*chosen)
        ]


def numbers(tile: Any) -> np.ndarray:
    """Return the numbers of a tile in registers or in shared memory."""
    found: np.ndarray = (
        tile.values if isinstance(tile, Array) else tile.read() if isinstance(tile, View) else tile
    )
    return found


def atomic(function: np.ufunc) -> Callable[..., None]:
    def operation(dst: Any, value: Any) -> None:
        array, index = dst if isinstance(dst, tuple) else (dst, Ellipsis)
        if isinstance(index, np.ndarray):
            function.at(array.values, index, value)
        else:
            array[index] = function(array[index], value)

    return operation


def wgmma(acc: Any, left: Any, right: Any) -> Any:
    """Integers in float64 are exact, in any order of summation."""
    product = numbers(left).astype(np.float64) @ numbers(right).astype(np.float64)
    return (acc + product).astype(acc.dtype)


# ---- pipelines
class Element:
    def __init__(self, size: int) -> None:
        self.size = size


class BlockSpec:
    def __init__(
        self,
        sides: tuple[Any, ...] = (),
        index: Any = None,
        memory_space: Any = None,
        oob_fill: str = "zeros",
        transforms: Any = (),
        **options: Any,
    ) -> None:
        self.sides, self.index, self.whole = sides, index, memory_space is not None
        self.fill, self.turned = float("nan") if oob_fill == "nan" else 0, "turned" in transforms

    def part(self, indices: tuple[int, ...]) -> tuple[Any, ...]:
        found = (0,) * len(self.sides) if self.index is None else self.index(*indices)
        return tuple(
            n
            if side is None
            else Ds(n, side.size)
            if isinstance(side, Element)
            else Ds(n * side, side)
            for n, side in zip(found, self.sides, strict=True)
        )

    def load(self, array: Array, indices: tuple[int, ...]) -> Array:
        if self.whole:
            return array
        tile = Array(Array(array.values, self.fill)[self.part(indices)])
        return tile.T if self.turned else tile


def leaves(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [tree]


def like(tree: Any, flat: Iterator[Any]) -> Any:
    """Return a tree of this shape with other leaves."""
    if not isinstance(tree, tuple):
        return next(flat)
    parts = [like(part, flat) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


class Pipeline:
    def __init__(
        self,
        grid: tuple[int, ...],
        in_specs: Any = (),
        out_specs: Any = (),
        steps_of: Any = None,
        manual_produced_barriers: bool = False,
        manual_consumed_barriers: bool = False,
        **options: Any,
    ) -> None:
        self.grid = grid
        self.in_specs = in_specs
        self.out_specs = leaves(out_specs)
        self.steps_of = steps_of
        self.manual = manual_produced_barriers + manual_consumed_barriers

    def get_allocations(self, *arrays: Any) -> None:
        return None

    def __call__(self, *arrays: Any, allocations: Any = None) -> Iterator[Any]:
        """Yield indices, tiles, and groups of barriers; an output's block is stored after its
        step."""
        flat = leaves(arrays)
        specs = leaves(self.in_specs)
        sources, outputs = flat[: len(specs)], flat[len(specs) :]
        barriers = like(
            tuple(spec for spec in self.in_specs if isinstance(spec, tuple) or not spec.whole),
            itertools.repeat(None),
        )
        steps = list(itertools.product(*map(range, self.grid)))
        for indices in steps if self.steps_of is None else steps[: max(0, self.steps_of(PLACE.wg))]:
            loaded = [spec.load(array, indices) for spec, array in zip(specs, sources, strict=True)]
            made = [
                Array(array[spec.part(indices)])
                for spec, array in zip(self.out_specs, outputs, strict=True)
            ]
            yield indices, (*like(self.in_specs, iter(loaded)), *made), *(barriers,) * self.manual
            for spec, array, tile in zip(self.out_specs, outputs, made, strict=True):
                array[spec.part(indices)] = tile.values


class Emitted(Pipeline):
    def __init__(
        self,
        body: Any,
        compute_context: Any = None,
        carry_coroutine: Any = None,
        init_carry: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.body = body
        self.context = compute_context
        self.coroutine = carry_coroutine
        self.init = init_carry

    def __call__(self, *arrays: Any, allocations: Any = None) -> Any:
        def run(*carry: Any) -> Any:
            for indices, *groups in Pipeline.__call__(self, *arrays):
                after = self.body(indices, *(part for group in groups for part in group), *carry)
                carry = (after,) if carry else ()
            return carry[0] if carry else None

        if self.context is not None:
            return self.context(run)
        if self.coroutine is not None:
            going = self.coroutine()
            with contextlib.suppress(StopIteration):
                going.send(run(next(going)))
            return None
        return run() if self.init is None else run(self.init)


# ---- tiles
def tiles(*counts: int, order: Any = "row", **options: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(order, Array):
        return (tuple(map(int, row)) for row in order.values)
    return itertools.product(*map(range, counts))


def split_tiles(*counts: int, steps: int, **options: Any) -> Iterator[tuple[Any, ...]]:
    return ((*at, SimpleNamespace(begin=0, steps=steps)) for at in tiles(*counts))


def combine(acc: np.ndarray, part: Any, work: Any = None, axis: str | None = None) -> np.ndarray:
    """Return the sum; within a cluster, this CTA's columns of it."""
    columns = acc.shape[1] // PLACE.cluster
    return acc if axis is None else acc[:, PLACE.cta * columns : PLACE.cta * columns + columns]


def iota(shape: Any, axis: int = 0) -> np.ndarray:
    shape = (shape,) if isinstance(shape, int) else shape
    along = np.arange(shape[axis], dtype=np.int32)
    return np.broadcast_to(along if axis == len(shape) - 1 else along[:, None], shape)


def nothing(*given: Any, **options: Any) -> None:
    return None


def copy_gmem_to_smem(src: View, dst: View, barrier: Any) -> None:
    dst.array[dst.index] = src.read()


NUMPY = SimpleNamespace(
    kernel=lambda **options: lambda function: function,
    index=lambda value, mode: value,
    persistent=nothing,
    CompilerParams=nothing,
    Workspace=nothing,
    GMEM="gmem",
    SwizzleTransform=nothing,
    TransposeTransform=lambda: "turned",
    PipelineState=SimpleNamespace(START=0, STEADY=1, STOP=2),
    pipeline=Pipeline,
    emit_pipeline=Emitted,
    emit_pipeline_warp_specialized=Emitted,
    wgmma=wgmma,
    mma=wgmma,
    wgmma_wait=lambda acc, n=0: acc,
    barrier_wait=nothing,
    barrier_arrive=nothing,
    turn=lambda name: contextlib.nullcontext(),
    Barrier=lambda **options: SimpleNamespace(at=[None] * 16),
    copy_gmem_to_smem=copy_gmem_to_smem,
    tiles=tiles,
    split_tiles=split_tiles,
    combine=combine,
    cdiv=lambda a, b: -(-a // b),
    iota=iota,
    full=np.full,
    zeros=np.zeros,
    scratch=lambda made: made,
    run_scoped=lambda function, *made, **options: function(*made),
    layout_cast=lambda tile, layout: tile,
    load_tile=lambda view, layout: view.read(),
    program_id=lambda axis: PLACE.cta,
    axis_index=lambda name: PLACE.wg if name == "wg" else PLACE.cta,
    axis_size=lambda name: PLACE.wgs if name == "wg" else PLACE.cluster,
    **{
        f"atomic_{name}": atomic(function)
        for name, function in (
            ("add", np.add),
            ("min", np.minimum),
            ("max", np.maximum),
            ("and", np.bitwise_and),
            ("or", np.bitwise_or),
            ("xor", np.bitwise_xor),
        )
    },
)


def run(
    text: str, name: str, arguments: dict[str, Any], ctas: int, wgs: int, cluster: int = 1
) -> None:
    """Execute a kernel's file, then its function for each warpgroup of each CTA, on its
    arguments."""
    scope: dict[str, Any] = {
        "numpipe": NUMPY,
        "ds": Ds,
        "BlockSpec": BlockSpec,
        "Element": Element,
        "cdiv": NUMPY.cdiv,
        "SMEM": lambda shape, dtype: Array(np.zeros(shape, dtype)),
        "Barrier": NUMPY.Barrier,
        "CompilerParams": nothing,
        "Workspace": nothing,
    }
    exec(
        "\n".join(
            line
            for line in text.splitlines()
            if not line.startswith(("import numpipe", "from numpipe"))
        ),
        scope,
    )
    given = {
        key: Array(value) if isinstance(value, np.ndarray) else value
        for key, value in arguments.items()
    }
    if "work" in scope[name].__code__.co_varnames:  # a workspace, which no call passes
        given["work"] = None
    PLACE.wgs, PLACE.cluster = wgs, cluster
    for PLACE.cta, PLACE.wg in itertools.product(range(ctas), range(wgs)):
        scope[name](**given)
