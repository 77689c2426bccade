"""`Target`: the description of a GPU architecture that plans, the compiler, the simulator and the
model share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .products import Product

SECTOR, LINE = 32, 128
"""Bytes that the L2 reads at a time, and bytes of one of its cache lines."""


@dataclass(frozen=True)
class Target:
    """A GPU architecture: all numbers and patterns that depend on it."""

    name: str
    gpus: str
    """Its GPUs, as messages name them."""
    capability: tuple[int, int, str]
    sms: int
    """SMs of its largest GPU, for plans and simulations that are not for a specific GPU."""
    smem_bytes: int
    """Dynamic shared memory of a CTA, in bytes."""
    registers: int
    """32-bit registers of an SM."""
    lane_registers: int
    """Maximum number of 32-bit registers of a lane."""
    advisories: str
    """Regular expression for ptxas' notes on products that it serializes, and on registers."""

    products: tuple[Product, ...] = field(repr=False)
    """Its matrix products; kernels use the first one by default."""

    @property
    def product(self) -> Product:
        """The product that kernels use by default."""
        return self.products[0]

    def product_of(self, dtype: np.dtype, name: str = "") -> Product | None:
        """Return the first product, or the first with this name, that multiplies elements of a
        type; None if there is none."""
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
        """A regular expression that matches the opcodes of matrix products in SASS:
        ``HGMMA|IGMMA|…``."""
        return "|".join(product.opcodes for product in self.products)

    def registers_of(self, warpgroups: int) -> int:
        """Return how many registers a lane has at launch in a CTA of `warpgroups`: a multiple of
        8."""
        return self.registers // (128 * warpgroups) // 8 * 8
