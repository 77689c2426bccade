"""A kernel of raw intrinsics on the simulated SM: load by TMA, multiply, store by stmatrix and
TMA."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe.core.machine import Machine, TensorMap
from numpipe.errors import PipelineRace
from numpipe.intrinsics import (
    barrier,
    convert,
    cp_async_bulk,
    fence,
    mbarrier,
    special,
    stmatrix,
    wgmma,
)
from numpipe.sim import simulate

BF16 = np.dtype(ml_dtypes.bfloat16)
PANEL = 64 * 64 * 2
A, B, C, READY = 0, PANEL, 2 * PANEL, 3 * PANEL
SEEDS = range(5)


class Product:
    """C = A Bᵀ of 64 × 64 tiles; `without` leaves one step out."""

    def __init__(self, without: str = "") -> None:
        self.without = without
        rng = np.random.default_rng(3)
        self.a, self.b = rng.integers(-3, 4, (2, 64, 64)).astype(np.float32)
        self.c = np.zeros((64, 64), BF16)
        self.maps = [
            TensorMap(array, (64, 64), 128, name)
            for array, name in (
                (self.a.astype(BF16), "a"),
                (self.b.astype(BF16), "b"),
                (self.c, "c"),
            )
        ]

    def run(self, seed: int | None) -> None:
        simulate(self.body, grid=(1, 1, 1), warpgroups=1, smem_bytes=3 * PANEL + 8, seed=seed)

    def body(self, machine: Machine) -> None:
        machine.scoped("one", self.load, ())
        barrier.sync(0, 128)
        if self.without != "wait":
            mbarrier.wait(READY, 0, -1)
        a, b = wgmma.descriptor(A, 16, 1024, 128), wgmma.descriptor(B, 16, 1024, 128)
        acc: Any = wgmma.fence_accumulators(wgmma.accumulators(64))
        for k in range(4):
            acc = wgmma.mma_async(acc, a + 2 * k, b + 2 * k, "bf16", "k", "k")
        wgmma.commit_group()
        acc = acc.read() if self.without == "wgmma.wait" else wgmma.wait(acc, 0)
        self.put(acc)
        if self.without != "fence":
            fence.proxy_async()
        barrier.sync(0, 128)
        machine.scoped("one", self.store, ())

    def load(self) -> None:
        mbarrier.init(READY, 1)
        fence.mbarrier_init()
        mbarrier.arrive_expect_tx(READY, 2 * PANEL)
        cp_async_bulk.load(A, self.maps[0], (0, 0), READY)
        cp_async_bulk.load(B, self.maps[1], (0, 0), READY)

    def put(self, acc: np.ndarray) -> None:
        thread, lane = special.thread_index(), special.lane_index()
        row = 16 * (thread // 32) + lane % 16
        for j in range(4):
            d = [
                acc[
                    16 * (thread // 32) + lane // 4 + 8 * (i // 2 % 2),
                    16 * j + 8 * (i // 4) + 2 * (lane % 4) + i % 2,
                ]
                for i in range(8)
            ]
            chunk = (2 * j + lane // 16) ^ (row % 8)
            stmatrix.store_x4(
                C + 128 * row + 16 * chunk,
                *(convert.pack_bf16x2(*d[i : i + 2]) for i in (0, 2, 4, 6)),
            )

    def store(self) -> None:
        cp_async_bulk.store(self.maps[2], (0, 0), C)
        cp_async_bulk.commit_group()
        cp_async_bulk.wait_group(0)


@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_product_of_two_tiles(seed: int | None) -> None:
    product = Product()
    product.run(seed)
    assert np.array_equal(product.c, (product.a @ product.b.T).astype(BF16))


@pytest.mark.parametrize("without", ["wait", "wgmma.wait", "fence"])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_step_left_out_is_found_under_every_schedule(without: str, seed: int) -> None:
    with pytest.raises(PipelineRace):
        Product(without).run(seed)
