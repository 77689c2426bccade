"""What the user says about blocks, arrays and compilation: frozen, validated where it is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._op import constant, op
from .errors import SpecError


@dataclass(frozen=True)
class BlockSpec:
    """How an array is cut into blocks, and which block a grid step needs.

    block_shape    elements per dimension, in the array's order, e.g. ``(128, 64)``. Inside (the contiguous dimension)
                   it must be a multiple of 16 bytes; no side may exceed 256 elements (the limit of a TMA box).
    index_map      grid indices -> block indices, one per dimension: ``lambda k: (m, k)`` selects elements
                   ``[m * 128 : m * 128 + 128, k * 64 : k * 64 + 64]``. What lies outside the array is read as zeros.
    delay_release  steps a slot is kept after the step that used it (None: the pipeline's own).

    >>> BlockSpec((128, 64), lambda k: (0, k)).block_shape
    (128, 64)
    """

    block_shape: tuple[int, ...]
    index_map: Callable[..., Any]
    delay_release: int | None = None

    def __post_init__(self) -> None:
        shape = self.block_shape
        if not isinstance(shape, tuple) or not shape or not all(_is_int(n) for n in shape):
            raise SpecError(f"BlockSpec: block_shape must be a tuple of ints, got {shape!r}")
        if not all(1 <= n <= 256 for n in shape):
            raise SpecError(f"BlockSpec: block_shape {shape} has a side outside 1…256 elements, the limit of a TMA box: "
                            "split the block")
        if self.delay_release is not None and (not _is_int(self.delay_release) or self.delay_release < 0):
            raise SpecError(f"BlockSpec: delay_release must be an int >= 0, got {self.delay_release!r}")
        if not callable(self.index_map):
            raise SpecError(f"BlockSpec: index_map must be a function of the grid indices, got {self.index_map!r}")


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


@op
def block_spec(block_shape: Any, index_map: Any, delay_release: Any) -> BlockSpec:
    """`BlockSpec(...)` inside a kernel."""
    constant("BlockSpec", "block_shape", block_shape)
    constant("BlockSpec", "delay_release", delay_release)
    return BlockSpec(block_shape, index_map, delay_release)


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype of an output that the call allocates (`out_type=` of a kernel)."""

    shape: tuple[int, ...]
    dtype: Any

    def __post_init__(self) -> None:
        shape = self.shape
        if not isinstance(shape, (tuple, list)) or not all(_is_int(n) and n >= 0 for n in shape):
            raise SpecError(f"ArrayType: shape must be a tuple of non-negative ints, got {shape!r}")
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        try:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        except TypeError as error:
            raise SpecError(f"ArrayType: dtype must be an element type, got {self.dtype!r} ({error})") from None


class Static:
    """Annotation of a keyword-only kernel parameter that is a compile-time constant (hashable; often a frozen dataclass).

    Arithmetic on it and on its fields is folded before compilation, one compile per value::

        def matmul(a, b, c, *, cfg: numpipe.Static = Config()): ...
    """


@dataclass(frozen=True)
class Persistent:
    """A grid of one CTA per SM; see `persistent`."""

    ctas: int | None = None


def persistent(ctas: int | None = None) -> Persistent:
    """Grid of a persistent kernel: as many CTAs as the GPU has SMs (or `ctas`), each looping over `numpipe.tiles`.

    The simulated grid has 2 CTAs unless `ctas` says otherwise: enough for tiles to be shared out.
    """
    if ctas is not None and (not _is_int(ctas) or ctas < 1):
        raise SpecError(f"persistent(): ctas must be an int of at least 1, got {ctas!r}")
    return Persistent(ctas)


@dataclass(frozen=True)
class CompilerParams:
    """Options of a kernel's compilation.

    delay_release  steps a slot is kept after use (0: a wgmma is waited for before its slots are released).
    store_slots    staging panels (64 rows x 128 bytes) per compute warpgroup of the store ring, 1…8; 0: as many as a tile
                   has panels, or as fit beside the load rings.
    asserts        compile ``assert`` on run-time values in: a condition that is false fails the launch, as that of
                   `device_assert` does. By default they cost nothing on the GPU, like those of ``python -O``; the simulator
                   checks them always.
    """

    delay_release: int = 0
    store_slots: int = 0
    asserts: bool = False

    def __post_init__(self) -> None:
        if not _is_int(self.delay_release) or self.delay_release < 0:
            raise SpecError(f"CompilerParams: delay_release must be an int >= 0, got {self.delay_release!r}")
        if not _is_int(self.store_slots) or not 0 <= self.store_slots <= 8:
            raise SpecError(f"CompilerParams: store_slots must be 1…8 (0: chosen), got {self.store_slots!r}")
        if not isinstance(self.asserts, bool):
            raise SpecError(f"CompilerParams: asserts must be True or False, got {self.asserts!r}")

    def replace(self, **changes: Any) -> CompilerParams:
        """A copy with some options changed."""
        return dataclasses.replace(self, **changes)
