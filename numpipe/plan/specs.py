"""Frozen records of what the user says about blocks and arrays; each is validated where it is
made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from ..core.arith import named
from ..core.machine import check_policy
from ..core.op import Op, constant, op
from ..diagnostics.argument_checks import NONE, element_type, is_int, require, word
from ..diagnostics.errors import SpecError
from .params import CompilerParams as CompilerParams
from .transforms import SwizzleTransform, TilingTransform, Transform, TransposeTransform
from .transforms import check as check_transforms

__all__ = ["GMEM", "ArrayType", "BlockSpec", "Element", "Static", "Workspace", "persistent"]


MAX_SIDE = 1 << 16
"""elements of a block along a dimension: more than shared memory has room for"""


@dataclass(frozen=True)
class Element:
    """A side of a block whose index map returns the *element* where the block starts, not a block
    index.

    In a `BlockSpec`'s block_shape: ``BlockSpec((numpipe.Element(64), 64), lambda i, k: (i * 16,
    k))`` has blocks of 64 rows that start 16 rows apart, so they overlap. A block may lie partly
    before or behind the array: what lies outside reads as the BlockSpec's `oob_fill`. One that lies
    outside as a whole is a mistake, unless the BlockSpec has a `mode`. Along the contiguous
    dimension a block must start at a multiple of 16 bytes (TMA stops the SM otherwise): constant
    starts are checked when the kernel is compiled, run-time ones by the simulator.

    The block starts where the index map says and nowhere else: there is no padding before or behind
    the array, as `pl.Element` of Pallas has it; subtract it in the index map instead.

    Raises SpecError for a size outside 1…65536 elements.

    >>> Element(64).size
    64
    """

    size: int

    def __post_init__(self) -> None:
        if not is_int(self.size) or not 1 <= self.size <= MAX_SIDE:
            raise SpecError(
                f"Element: size must be an int of 1…{MAX_SIDE} elements, got {self.size!r}"
            )


MAX_RANK = 5  # dimensions of a tensor map (PTX ISA, "Tensor dimension")
Side = int | None | Element
"""of a block along one dimension of its array"""


class MemorySpace:
    """Where an operand of a pipeline is: `numpipe.GMEM`."""

    def __init__(self, name: str) -> None:
        self.memory_space = name

    def __repr__(self) -> str:
        return f"numpipe.{self.memory_space}"


GMEM = MemorySpace("GMEM")
"""Global memory: a `BlockSpec` with ``memory_space=numpipe.GMEM`` passes its array to the body as
it is; nothing is loaded."""


@dataclass(frozen=True)
class BlockSpec:
    """How an array is cut into blocks, and which block a grid step needs.

    block_shape    a side for each dimension of the array, in the array's order (1 to 5 dimensions,
                   which is what TMA addresses):

                   ===============  ========  ==================================  ==================
                   side             elements  the index map returns               in the tile
                   ===============  ========  ==================================  ==================
                   ``64``           64        index i of the block from 64 i on   a dimension of 64
                   ``Element(64)``  64        the element where the block starts  a dimension of 64
                   ``None``         1         the element                         left out: squeezed
                   ===============  ========  ==================================  ==================

                   Two dimensions are left for the tile, or one for a vector:
                   ``BlockSpec((256,))``, ``BlockSpec((None, 512))``. Along the contiguous
                   dimension, which cannot be squeezed, a side is a multiple of 16 bytes, along the
                   other one of 8 elements; a block is copied in as many TMA boxes as it takes.
                   Sides are compile-time constants and shapes of arrays are not, so a block that is
                   the whole array states its sides: ``BlockSpec((64, 128))`` is all of an array of
                   up to 64 x 128 elements.
    index_map      grid indices -> a tuple of integers, one per dimension: with (128, 64),
                   ``lambda k: (m, k)`` selects elements
                   ``[m * 128 : m * 128 + 128, k * 64 : k * 64 + 64]``. None: the block at the
                   array's origin, loaded once.
    memory_space   where the body finds the operand: None or numpipe.SMEM, in shared memory;
                   numpipe.GMEM, in global memory: it gets the array itself (block_shape and
                   index_map must be left out).
    transforms     how the block lies in shared memory: TilingTransform, SwizzleTransform,
                   TransposeTransform; those left out are inferred (see `transforms`).
    delay_release  steps a slot is kept after the step that used it (None: the pipeline's own).
    oob_fill       what elements outside the array read as: "zeros", or "nan" for float types.
    buffer_count   slots of this operand (None: 1 where its block never changes, else the pipeline's
                   max_concurrent_steps).
    eviction_policy  which of its lines the L2 cache evicts: "evict_first", before others,
                   "evict_last", after others; None: neither. It changes no result.
    collective_axes  name of an axis of the kernel's cluster, or a tuple of names: all CTAs along it
                   load the same block. Each loads its share, rows across the contiguous dimension
                   (a multiple of 8), and multicasts it to all of them. For these CTAs the index map
                   returns the same, and they run the same steps (the simulator checks both).
    mode           what to do when the index map returns, for a squeezed dimension or an `Element`,
                   a place where the array has no element. None: report a mistake, in the simulator
                   and with ``debug=True`` (`out-of-bounds`). "zero": the block reads as `oob_fill`
                   there, and is not stored. "clip": use the nearest place at which the block lies
                   inside.

    An operand is loaded when its block changes, and only then. Which grid dimensions its index map
    reads is known from the map's source, if it is a lambda or a nested function: ``lambda m, k: (m,
    0)`` of a grid (M, K) has a new block every K steps, and ``lambda m, k: (0, 0)`` one in all.
    Maps that are defined elsewhere are taken to read every index.

    Raises SpecError for sides and options that cannot be; what depends on the array is checked
    where a pipeline is called.

    >>> BlockSpec((128, 64), lambda k: (0, k)).block_shape
    (128, 64)
    >>> BlockSpec((None, 128, 64), lambda b, m, k: (b, m, k), oob_fill="nan").block_shape
    (None, 128, 64)
    """

    block_shape: tuple[Side, ...] | None = None
    index_map: Callable[..., Any] | None = None
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
        """Which grid indices the index map reads; None: all of them, as far as is known."""
        return () if self.index_map is None else self._depends

    @property
    def block(self) -> tuple[Any, ...]:
        """The parts that the plan of a ring depends on; of the index map these are the indices that
        it returns as constants."""
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
        for name, least in (("buffer_count", 1), ("delay_release", 0)):
            value = getattr(self, name)
            if value is not None and not (is_int(value) and value >= least):
                raise SpecError(f"BlockSpec: {name} must be an int >= {least}, got {value!r}")
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
        if self.index_map is not None and not callable(self.index_map):
            raise SpecError(
                "BlockSpec: index_map must be a function of the grid indices, got "
                f"{self.index_map!r}"
            )
        require("BlockSpec", vars(self), oob_fill=word("zeros", "nan"))
        check_policy("BlockSpec", self.eviction_policy)
        check_mode("BlockSpec", self.mode)
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


def check_mode(what: str, mode: Any) -> None:
    """Raise SpecError for a `mode` that there is not."""
    require(what, {"mode": mode}, mode=word("zero", "clip") | NONE)


def axis_names(what: str, given: Any) -> tuple[str, ...]:
    """Return `collective_axes` as a tuple of names; SpecError for other values."""
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
    """Return a block_shape as a kernel writes it."""
    sides = [f"Element({side.size})" if isinstance(side, Element) else str(side) for side in shape]
    return f"({', '.join(sides)}{',' * (len(sides) == 1)})"


def space_of(given: Any) -> str | None:
    """Return "SMEM" or "GMEM" for a value of memory_space=, None for any other value."""
    # numpipe.SMEM is a class too: one of its values is an allocation, no space
    named = isinstance(given, (MemorySpace, type))
    name = "SMEM" if given is None else getattr(given, "memory_space", None) if named else None
    return name if name in ("SMEM", "GMEM") else None


OPTIONS = tuple(field.name for field in dataclasses.fields(BlockSpec) if field.init)


@op
def block_spec(*given: Any) -> BlockSpec:
    """`BlockSpec(...)` inside a kernel, given all `OPTIONS`, of `memory_space` its name.

    Behind them come the indices that the map returns, None for each that is no constant, and which
    grid indices it reads.
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


def _record(kind: type) -> Op[..., Any]:
    (field,) = dataclasses.fields(kind)

    def operation(value: Any) -> Any:
        return kind(constant(kind.__name__, field.name, value))

    return named(operation, kind.__name__, f"`{kind.__name__}(...)` inside a kernel.")


RECORDS = {
    kind: _record(kind) for kind in (Element, TilingTransform, SwizzleTransform, TransposeTransform)
}
"""the operations that make constants of one field again inside a kernel, by class"""


SYMBOLIC: list[type] = []
"""types of sizes that are not known yet, which an ArrayType may have while a framework traces a
call (`numpipe.torch`)"""


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype of an output that the call allocates (`out_type=` of a kernel)."""

    shape: tuple[int, ...]
    dtype: Any

    def __post_init__(self) -> None:
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
"""words behind a slot of a workspace, one for each compute warpgroup that a CTA may have"""


@dataclass(frozen=True)
class Workspace:
    """Global memory for partial sums of tiles (`combine`), the last parameter of a kernel: what its
    option `workspace=` says.

    tile   (rows, columns) of a tile of the output, elements
    split  as of the kernel's `split_tiles`: "stream" is a slot for each CTA, an int n is n slots
           for each tile of the last output, in clusters whose CTAs go through the same tiles for as
           many tiles as whole clusters of them have. None, or the name of an axis of the cluster:
           there is no workspace, and the parameter is None
    slots  how many sums may be on their way, if not as `split` says

    numpipe allocates ``slots * (rows * columns + 8) * 4`` bytes on the GPU when a call is first
    made on a stream, and calls on that stream share them. Raises SpecError for sizes that are not
    positive.

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
        tile = self.tile
        if (
            not isinstance(tile, (tuple, list))
            or len(tile) != 2
            or not all(is_int(n) and n > 0 for n in tile)
        ):
            raise SpecError(
                "Workspace: tile must be (rows, columns) of a tile of the output, positive ints, "
                f"got {tile!r}"
            )
        if self.split is not None and (
            not self.split
            if isinstance(self.split, str)
            else not is_int(self.split) or self.split < 1
        ):
            raise SpecError(
                'Workspace: split must be "stream", the parts of a tile, the name of an axis of '
                "the cluster, or "
                f"None, got {self.split!r}"
            )
        if self.slots is not None and (not is_int(self.slots) or self.slots < 1):
            raise SpecError(f"Workspace: slots must be a count of partial sums, got {self.slots!r}")
        object.__setattr__(self, "tile", (int(tile[0]), int(tile[1])))

    def exists(self, cluster_axes: tuple[str, ...]) -> bool:
        """Whether a kernel whose cluster has these axes has a workspace at all; SpecError for
        another axis."""
        if not isinstance(self.split, str) or self.split == "stream":
            return self.split is not None
        if self.split not in cluster_axes:
            raise SpecError(
                f'Workspace: split={self.split!r} is neither "stream" nor an axis of the cluster: '
                "cluster_names of "
                f"the kernel are {cluster_axes}"
            )
        return False

    def array(self, ctas: int, output: tuple[int, ...], cluster: int = 1) -> ArrayType:
        """Return the workspace's shape and type, given the CTAs, those of a cluster that goes
        through the same tiles, and the output's shape. SpecError for an output without tiles."""
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

    Arithmetic on it and on its fields is folded before compilation, one compile per value::

        def matmul(a, b, c, *, cfg: numpipe.Static = Config()): ...
    """


@dataclass(frozen=True)
class Persistent:
    """A grid of one CTA per SM; see `persistent`."""

    ctas: int | None = None


def persistent(ctas: int | None = None) -> Persistent:
    """Grid of a persistent kernel: as many CTAs as the GPU has SMs (or `ctas`), each looping over
    `numpipe.tiles`.

    In clusters it is as many CTAs as whole clusters run at once, which the driver is asked at the
    first call. The simulated grid has 2 CTAs unless `ctas` says otherwise, or 2 clusters where the
    kernel names their axes: enough for tiles to be shared out. `numpipe.verify` runs it once more
    on 132.
    """
    if ctas is not None and (not is_int(ctas) or ctas < 1):
        raise SpecError(f"persistent(): ctas must be an int of at least 1, got {ctas!r}")
    return Persistent(ctas)
