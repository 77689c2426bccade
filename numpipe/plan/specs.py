"""Frozen records that describe blocks and arrays; each is validated when it is created."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from ..arch.dimensions import Ints
from ..core.arith import named
from ..core.machine import EVICTION_POLICY
from ..core.op import Op, constant, op
from ..diagnostics.argument_checks import (
    NONE,
    POSITIVE,
    Rule,
    each,
    element_type,
    is_int,
    require,
    whole,
    word,
)
from ..diagnostics.errors import SpecError
from .params import CompilerParams as CompilerParams
from .transforms import SwizzleTransform, TilingTransform, Transform, TransposeTransform
from .transforms import check as check_transforms

__all__ = ["GMEM", "ArrayType", "BlockSpec", "Element", "Static", "Workspace", "persistent"]


MAX_SIDE = 1 << 16
"""Maximum elements of a block along a dimension: more than shared memory can hold."""


@dataclass(frozen=True)
class Element:
    """A side of a block whose index map returns the *element* where the block starts, not a block
    index.

    Use it in the block_shape of a `BlockSpec`: ``BlockSpec((numpipe.Element(64), 64), lambda i, k:
    (i * 16, k))`` has blocks of 64 rows that start 16 rows apart, so they overlap. A block may
    extend past either end of the array: elements outside it read as the BlockSpec's `oob_fill`. A
    block that lies completely outside is an error, unless the BlockSpec has a `mode`. Along the
    contiguous dimension a block must start at a multiple of 16 bytes (otherwise TMA stops the SM):
    constant starts are checked when the kernel is compiled, run-time starts by the simulator.

    The block starts exactly where the index map says. Unlike `pl.Element` in Pallas, it has no
    padding around the array; subtract the padding in the index map instead.

    Raises SpecError for a size outside 1…65536 elements.

    >>> Element(64).size
    64
    """

    size: int

    def __post_init__(self) -> None:
        require("Element", vars(self), size=whole(1, MAX_SIDE))


MODE = word("zero", "clip") | NONE
COUNTS = {"buffer_count": POSITIVE | NONE, "delay_release": whole(0) | NONE}
LOADS = {
    "index_map": Rule(("a function of the grid indices",), callable) | NONE,
    "oob_fill": word("zeros", "nan"),
    "mode": MODE,
    "eviction_policy": EVICTION_POLICY,
}
"""Rules for the options of a `BlockSpec`: COUNTS for any, LOADS for one whose blocks are loaded."""
MAX_RANK = 5  # dimensions of a tensor map (PTX ISA, "Tensor dimension")
Side = int | None | Element
"""The side of a block along one dimension of its array."""


class MemorySpace:
    """The memory space of a pipeline's operand: `numpipe.GMEM`."""

    def __init__(self, name: str) -> None:
        self.memory_space = name

    def __repr__(self) -> str:
        return f"numpipe.{self.memory_space}"


GMEM = MemorySpace("GMEM")
"""Global memory: a `BlockSpec` with ``memory_space=numpipe.GMEM`` passes its array to the body
unchanged; nothing is loaded."""


@dataclass(frozen=True)
class BlockSpec:
    """A division of an array into blocks, and the choice of the block that each grid step needs.

    block_shape    a side for each dimension of the array, in the array's order (1 to 5 dimensions,
                   the limit of TMA):

                   ===============  ========  ==================================  ==================
                   side             elements  the index map returns               in the tile
                   ===============  ========  ==================================  ==================
                   ``64``           64        index i of the block from 64 i on   a dimension of 64
                   ``Element(64)``  64        the element where the block starts  a dimension of 64
                   ``None``         1         the element                         left out: squeezed
                   ===============  ========  ==================================  ==================

                   Two dimensions are left for the tile, or one for a vector:
                   ``BlockSpec((256,))``, ``BlockSpec((None, 512))``. The contiguous dimension
                   cannot be squeezed, and its side is a multiple of 16 bytes; the side along the
                   other dimension is a multiple of 8 elements. A block is copied in as many TMA
                   boxes as needed. Sides are compile-time constants and shapes of arrays are not,
                   so a block that covers a whole array needs explicit sides:
                   ``BlockSpec((64, 128))`` covers an array of up to 64 x 128 elements.
    index_map      grid indices -> a tuple of integers, one per dimension: with (128, 64),
                   ``lambda k: (m, k)`` selects elements
                   ``[m * 128 : m * 128 + 128, k * 64 : k * 64 + 64]``. None: the block at the
                   array's origin, loaded once.
    memory_space   where the body finds the operand: None or numpipe.SMEM for shared memory;
                   numpipe.GMEM for global memory: the body gets the array itself (block_shape and
                   index_map must be omitted).
    transforms     the layout of the block in shared memory: TilingTransform, SwizzleTransform,
                   TransposeTransform; missing transforms are inferred (see `transforms`).
    delay_release  the number of steps that a slot is kept after the step that used it (None: the
                   pipeline's value).
    oob_fill       the value of elements outside the array: "zeros", or "nan" for float types.
    buffer_count   slots of this operand (None: 1 if its block never changes, else the pipeline's
                   max_concurrent_steps).
    eviction_policy  the priority of its lines in the L2 cache: "evict_first" evicts them before
                   others, "evict_last" after others; None: neither. It does not affect results.
    collective_axes  name of an axis of the kernel's cluster, or a tuple of names: all CTAs along it
                   load the same block. Each loads its share, rows across the contiguous dimension
                   (a multiple of 8), and multicasts it to all of them. The index map must return
                   the same block in these CTAs, and they must run the same steps (the simulator
                   checks both).
    mode           what to do if the index map returns, for a squeezed dimension or an `Element`, a
                   position where the array has no element. None: report an error, in the simulator
                   and with ``debug=True`` (`out-of-bounds`); the simulator also reports a block
                   index that was read from an array. "zero": the block reads as `oob_fill`
                   there, and is not stored. "clip": use the nearest position at which the block
                   lies inside.

    An operand is loaded only when its block changes. The grid dimensions that the index map reads
    are determined from its source, if it is a lambda or a nested function: over a grid (M, K),
    ``lambda m, k: (m, 0)`` has a new block every K steps, and ``lambda m, k: (0, 0)`` a single
    block. Maps that are defined elsewhere are assumed to read every index.

    Raises SpecError for invalid sides and options. Requirements that depend on the array are
    checked when a pipeline is called.

    >>> BlockSpec((128, 64), lambda k: (0, k)).block_shape
    (128, 64)
    >>> BlockSpec((None, 128, 64), lambda b, m, k: (b, m, k), oob_fill="nan").block_shape
    (None, 128, 64)
    """

    block_shape: tuple[Side, ...] | None = None
    index_map: Callable | None = None
    _: KW_ONLY
    memory_space: Any = None
    transforms: tuple[Transform, ...] = ()
    delay_release: int | None = None
    oob_fill: Literal["zeros", "nan"] = "zeros"
    buffer_count: int | None = None
    eviction_policy: Literal["evict_first", "evict_last"] | None = None
    collective_axes: str | tuple[str, ...] | None = None
    mode: Literal["zero", "clip"] | None = None
    _known: tuple[int | None, ...] = dataclasses.field(
        default=(), init=False, repr=False, compare=False
    )
    _depends: tuple[bool, ...] | None = dataclasses.field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def loaded(self) -> bool:
        """Whether the operand is copied to shared memory."""
        return space_of(self.memory_space) == "SMEM"

    @property
    def depends(self) -> tuple[bool, ...] | None:
        """The grid indices that the index map reads; None if unknown: assume all of them."""
        return () if self.index_map is None else self._depends

    @property
    def block(self) -> tuple:
        """The parts that the plan of a ring depends on; for the index map, the indices that it
        returns as constants."""
        return (
            self.block_shape,
            self.oob_fill,
            self._known,
            self.transforms,
            self.eviction_policy,
            axis_names("BlockSpec", self.collective_axes),
            self.mode,
        )

    def __post_init__(self) -> None:
        shape = self.block_shape
        if space_of(self.memory_space) is None:
            raise SpecError(
                "BlockSpec: memory_space must be numpipe.SMEM or numpipe.GMEM, got "
                f"{self.memory_space!r}"
            )
        check_transforms(self.transforms, "BlockSpec")
        require("BlockSpec", vars(self), **COUNTS)
        if not self.loaded:
            for field in dataclasses.fields(self):
                if (
                    field.init
                    and field.name != "memory_space"
                    and (value := getattr(self, field.name)) != field.default
                ):
                    raise SpecError(
                        "BlockSpec: memory_space=numpipe.GMEM passes the whole array to the body "
                        f"and loads nothing: leave out {field.name}={value!r}"
                    )
            return
        if shape is None:
            raise SpecError(
                "BlockSpec: block_shape=None, the whole array: a block's sides are compile-time "
                "constants and shapes are run-time values. Say sides as large as the array "
                "(literals, fields of a Static) and leave index_map out: the block at the origin, "
                "loaded once"
            )
        if (
            not isinstance(shape, tuple)
            or not shape
            or not all(n is None or isinstance(n, Element) or is_int(n) for n in shape)
        ):
            raise SpecError(
                "BlockSpec: block_shape must be a tuple of ints, None (squeezed) and "
                f"numpipe.Element(size), got {shape!r}"
            )
        self._check_tile(shape)
        if not all(1 <= n <= MAX_SIDE for n in shape if isinstance(n, (int, np.integer))):
            raise SpecError(
                f"BlockSpec: block_shape {shape} has a side outside 1…{MAX_SIDE} elements: split "
                "the block"
            )
        require("BlockSpec", vars(self), **LOADS)
        axis_names("BlockSpec", self.collective_axes)

    def _check_tile(self, shape: tuple[Side, ...]) -> None:
        """Raise SpecError unless TMA can address the array, and the block leaves one or two
        dimensions for the tile."""
        if len(shape) > MAX_RANK:
            raise SpecError(
                f"BlockSpec: block_shape {spelled(shape)} has {len(shape)} dimensions, and TMA "
                f"addresses at most {MAX_RANK}: reshape the array, so that dimensions that are "
                "contiguous together are one"
            )
        left = tuple(
            side.size if isinstance(side, Element) else side for side in shape if side is not None
        )
        if len(left) not in (1, 2):
            fix = (
                "squeeze dimensions of one element: write None"
                if left
                else "None leaves a dimension out of it"
            )
            raise SpecError(
                f"BlockSpec: block_shape {spelled(shape)} leaves a tile of {len(left)} "
                f"dimensions, {left}; tiles have 1 or 2: {fix}"
            )


def axis_names(what: str, given: Any) -> tuple[str, ...]:
    """Return `collective_axes` as a tuple of names. Raises SpecError for other values."""
    names = () if given is None else given if isinstance(given, tuple) else (given,)
    if (
        not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
        or (given is not None and not names)
    ):
        raise SpecError(
            f"{what}: collective_axes must be the name of an axis of the cluster (cluster_names= "
            f"of the kernel), or a tuple of different ones, got {given!r}"
        )
    return names


def spelled(shape: tuple[Side, ...]) -> str:
    """Return a block_shape as it is written in a kernel."""
    sides = [f"Element({side.size})" if isinstance(side, Element) else str(side) for side in shape]
    return f"({', '.join(sides)}{',' * (len(sides) == 1)})"


def space_of(given: Any) -> str | None:
    """Return "SMEM" or "GMEM" for a value of memory_space=, None for any other value."""
    # numpipe.SMEM is also a class, whose instances are allocations and not memory spaces.
    named = isinstance(given, (MemorySpace, type))
    name = "SMEM" if given is None else getattr(given, "memory_space", None) if named else None
    return name if name in ("SMEM", "GMEM") else None


OPTIONS = tuple(field.name for field in dataclasses.fields(BlockSpec) if field.init)


@op
def block_spec(*given: Any) -> BlockSpec:
    """Make a `BlockSpec(...)` inside a kernel, given all `OPTIONS`; `memory_space` is given by
    name.

    They are followed by the indices that the map returns, None for each that is not a constant, and
    by the grid indices that the map reads.
    """
    *values, known, depends = given
    options = {
        name: value if name == "index_map" else constant("BlockSpec", name, value)
        for name, value in zip(OPTIONS, values, strict=True)
    }
    spec = BlockSpec(
        **{**options, "memory_space": GMEM if options["memory_space"] == "GMEM" else None}
    )
    object.__setattr__(spec, "_known", known)
    object.__setattr__(spec, "_depends", depends)
    return spec


def _record(kind: type) -> Op:
    (field,) = dataclasses.fields(kind)

    def operation(value: Any) -> Any:
        return kind(constant(kind.__name__, field.name, value))

    return named(operation, kind.__name__, f"`{kind.__name__}(...)` inside a kernel.")


RECORDS = {
    kind: _record(kind) for kind in (Element, TilingTransform, SwizzleTransform, TransposeTransform)
}
"""The operations that recreate constants of one field inside a kernel, by class."""


SYMBOLIC: list[type] = []
"""Types of unknown sizes, which an ArrayType may have while a framework traces a call
(`numpipe.torch`)."""


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype of an output that the call allocates (`out_type=` of a kernel).

    order  "C": row-major, the last dimension is contiguous; "F": column-major, the first one is, as
           in an array from ``np.empty(shape, dtype, order="F")``. JAX has no such arrays.

    Raises SpecError for sizes that are not ints of at least 0, for element types that kernels do
    not have, and for other orders.
    """

    shape: Ints
    dtype: Any
    order: str = "C"

    def __post_init__(self) -> None:
        require("ArrayType", vars(self), order=word("C", "F"))
        shape, symbols = self.shape, tuple(SYMBOLIC)
        if not isinstance(shape, (tuple, list)) or not all(
            isinstance(n, symbols) or (is_int(n) and n >= 0) for n in shape
        ):
            raise SpecError(f"ArrayType: shape must be a tuple of non-negative ints, got {shape!r}")
        object.__setattr__(
            self, "shape", tuple(n if isinstance(n, symbols) else int(n) for n in shape)
        )
        object.__setattr__(self, "dtype", element_type("ArrayType", self.dtype))


FLAGS = 8
"""Words after a slot of a workspace, one for each compute warpgroup that a CTA may have."""


@dataclass(frozen=True)
class Workspace:
    """Global memory for partial sums of tiles (`combine`), the last parameter of a kernel, given by
    its option `workspace=`.

    tile   (rows, columns) of a tile of the output, elements
    split  the `split` of the kernel's `split_tiles`. "stream" gives a slot for each CTA, an int n
           gives n slots for each tile of the last output. If the CTAs of a cluster loop over the
           same tiles, the number of tiles is rounded up to whole clusters. None, or the name of an
           axis of the cluster: there is no workspace, and the parameter is None
    slots  the number of sums that may be in flight, if it differs from what `split` gives

    numpipe allocates ``slots * (rows * columns + 8) * 4`` bytes on the GPU when a call is first
    made on a stream, and all calls on that stream share them. Raises SpecError for sizes that are
    not positive.

    >>> (
    ...     Workspace((128, 256)).array(132, (512, 4096)).shape,
    ...     Workspace((128, 256), 2).array(132, (512, 4096)).shape,
    ... )
    ((132, 32776), (128, 32776))
    """

    tile: tuple[int, int]
    split: int | str | None = "stream"
    _: KW_ONLY
    slots: int | None = None

    def __post_init__(self) -> None:
        axis = Rule(
            ("the name of an axis of the cluster",), lambda x: isinstance(x, str) and x != ""
        )
        require(
            "Workspace",
            vars(self),
            tile=each(POSITIVE, 2),
            split=word("stream") | POSITIVE | axis | NONE,
            slots=POSITIVE | NONE,
        )
        object.__setattr__(self, "tile", tuple(map(int, self.tile)))

    def exists(self, cluster_axes: tuple[str, ...]) -> bool:
        """Return whether a kernel whose cluster has these axes has a workspace at all. Raises
        SpecError for an unknown axis."""
        if not isinstance(self.split, str) or self.split == "stream":
            return self.split is not None
        if self.split not in cluster_axes:
            raise SpecError(
                f'Workspace: split={self.split!r} is neither "stream" nor an axis of the cluster: '
                "cluster_names of "
                f"the kernel are {cluster_axes}"
            )
        return False

    def array(self, ctas: int, output: Ints, cluster: int = 1) -> ArrayType:
        """Return the workspace's shape and type, given the numbers of CTAs and of CTAs per cluster
        that loop over the same tiles, and the output's shape. Raises SpecError for an output
        without tiles."""
        slots = self.slots
        if slots is None and isinstance(self.split, str):
            slots = ctas
        elif slots is None:
            if len(output) < 2:
                raise SpecError(
                    f"Workspace: split={self.split} is of the tiles of the last output, which has "
                    f"shape {output}: say how many partial sums there may be, slots="
                )
            across = [
                -(-size // (side * cluster)) * cluster
                for size, side in zip(output[-2:], self.tile, strict=True)
            ]
            slots = math.prod([*output[:-2], *across, int(self.split or 1)])
        return ArrayType((max(1, slots), self.tile[0] * self.tile[1] + FLAGS), np.float32)


class Static:
    """Annotation of a keyword-only kernel parameter that is a compile-time constant (hashable;
    often a frozen dataclass).

    Arithmetic on it and on its fields is folded before compilation; each value is compiled once::

        def matmul(a, b, c, *, cfg: numpipe.Static = Config()): ...
    """


@dataclass(frozen=True)
class Persistent:
    """A grid of one CTA per SM; see `persistent`."""

    ctas: int | None = None


def persistent(ctas: int | None = None) -> Persistent:
    """Return the grid of a persistent kernel: as many CTAs as the GPU's SMs have room for, one or
    `ctas_per_sm` (`CompilerParams`) each (or `ctas`), each looping over `numpipe.tiles`.

    With clusters, the grid is as many whole clusters as can run at once, which is queried from the
    driver at the first call. The simulated grid has 2 CTAs unless `ctas` is given, or 2 clusters if
    the kernel names its cluster axes, so that tiles are divided between them. `numpipe.verify` also
    runs it on 132 CTAs.
    """
    require("persistent()", locals(), ctas=POSITIVE | NONE)
    return Persistent(ctas)
