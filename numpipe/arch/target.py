"""What plans, the compiler, the simulator and the model know of an architecture."""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import K_BYTES, OPERANDS, Element


@dataclass(frozen=True)
class Target:
    """A GPU architecture, as far as plans, the simulator, the gate and the model depend on it."""

    name: str
    gpus: str
    """what a user calls them"""
    capability: tuple[int, int, str]
    smem_bytes: int
    """dynamic shared memory of a CTA"""
    registers: int
    """32-bit registers of an SM"""
    lane_registers: int
    """of a lane, at most"""
    multiply_adds: int
    """of 16-bit elements, a cycle of the SM's tensor cores together"""
    smem_rate: int
    """bytes a cycle that the tensor cores read from shared memory"""
    advisories: str
    """regular expression: ptxas' notes on products that it serialises, and on registers"""

    @property
    def product(self) -> str:
        """Regular expression of the opcodes of products."""
        return "|".join(sorted({kind.opcode for _, kind in OPERANDS.values()}))

    def rate(self, element: Element) -> int:
        """Multiply-adds a cycle of an SM on elements of a type: a wgmma takes the same time with any of them.

        >>> from .dtypes import ELEMENTS
        >>> from .hopper import HOPPER
        >>> [HOPPER.rate(ELEMENTS[name]) for name in ("int8", "float16", "float32")]
        [4096, 2048, 1024]
        """
        return self.multiply_adds * 2 // element.dtype.itemsize

    def product_cycles(self, n: int) -> float:
        """Cycles of one wgmma m64nN with A in shared memory: those of its multiplications, or of reading both operands."""
        return max(64 * n * K_BYTES / 2 / self.multiply_adds, (64 + n) * K_BYTES / self.smem_rate)

    def registers_of(self, warpgroups: int) -> int:
        """Registers that a lane starts with in a CTA of so many warpgroups: they come in steps of 8."""
        return self.registers // (128 * warpgroups) // 8 * 8
