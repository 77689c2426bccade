"""`Target`: an architecture, as plans, the compiler, the simulator and the model know it."""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import K_BYTES, OPERANDS, Element

SECTOR, LINE = 32, 128
"""bytes that the L2 reads at a time, and bytes that it keeps together"""


@dataclass(frozen=True)
class Target:
    """A GPU architecture: all numbers and patterns that depend on it."""

    name: str
    gpus: str
    """its GPUs, as a message names them"""
    capability: tuple[int, int, str]
    sms: int
    """SMs of its largest GPU: for plans and simulations where no GPU says otherwise"""
    smem_bytes: int
    """dynamic shared memory of a CTA"""
    registers: int
    """32-bit registers of an SM"""
    lane_registers: int
    """32-bit registers of a lane, at most"""
    multiply_adds: int
    """multiply-adds of 16-bit elements that all tensor cores of an SM do in a cycle"""
    smem_rate: int
    """bytes a cycle that the tensor cores read from shared memory"""
    advisories: str
    """regular expression of ptxas' notes on products that it serialises, and on registers"""

    @property
    def product(self) -> str:
        """Return a regular expression that matches the opcodes of matrix products in SASS:
        ``HGMMA|IGMMA|…``."""
        return "|".join(sorted({kind.opcode for _, kind in OPERANDS.values()}))

    def rate(self, element: Element) -> int:
        """Return the multiply-adds of an SM in a cycle, on elements of a type: a wgmma takes the
        same time with any type.

        >>> from .dtypes import ELEMENTS
        >>> from .hopper import HOPPER
        >>> [HOPPER.rate(ELEMENTS[name]) for name in ("int8", "float16", "float32")]
        [4096, 2048, 1024]
        """
        return self.multiply_adds * 2 // element.dtype.itemsize

    def product_cycles(self, n: int) -> float:
        """Return the cycles of a wgmma m64nN with A in shared memory: it multiplies, or waits for
        both operands to be read."""
        return max(64 * n * K_BYTES / 2 / self.multiply_adds, (64 + n) * K_BYTES / self.smem_rate)

    def registers_of(self, warpgroups: int) -> int:
        """Return how many registers a lane has at launch in a CTA of `warpgroups`: a multiple of
        8."""
        return self.registers // (128 * warpgroups) // 8 * 8
