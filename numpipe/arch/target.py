"""`Target`: an architecture, as plans, the compiler, the simulator and the model know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .products import Product

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
    advisories: str
    """regular expression of ptxas' notes on products that it serialises, and on registers"""

    products: tuple[Product, ...] = field(repr=False)
    """its matrix products, the one that kernels use unless they name another first"""

    @property
    def product(self) -> Product:
        """Return the product that kernels use unless they name another."""
        return self.products[0]

    def product_of(self, dtype: np.dtype[Any], name: str = "") -> Product | None:
        """Return the first product, or the first of that name, that multiplies elements of a type;
        None where there is none."""
        return next(
            (
                product
                for product in self.products
                if name in ("", product.name) and product.operand(dtype)
            ),
            None,
        )

    @property
    def opcodes(self) -> str:
        """Return a regular expression that matches the opcodes of matrix products in SASS:
        ``HGMMA|IGMMA|…``."""
        return "|".join(product.opcodes for product in self.products)

    def registers_of(self, warpgroups: int) -> int:
        """Return how many registers a lane has at launch in a CTA of `warpgroups`: a multiple of
        8."""
        return self.registers // (128 * warpgroups) // 8 * 8
