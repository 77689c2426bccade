"""c = a @ b by Pallas' Hopper kernel (jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu), on
arrays of PyTorch. This module imports jax.

JAX has its own stream. Each group of calls takes a PyTorch tensor that orders it after the work on
PyTorch's stream, and PyTorch's stream waits for the group's last result, so that events on that
stream time it. The calls of a group are one JAX program, because dispatching one takes the host
longer than a short product takes the GPU.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

# leave GPU memory for the other competitors
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import torch
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper
from pallas_sweeps import remembered

TOGETHER = 16
"""most calls in a JAX program, because each takes time to compile"""


class Pallas:
    """The kernel with the best configuration of its own sweep, on sets of arrays in turn.

    a, b  for each set: a (M, K), b (N, K); the kernel takes b as (K, N), so b is copied

    Raises ValueError if no configuration supports the shape.
    """

    def __init__(self, a: Sequence[Any], b: Sequence[Any]) -> None:
        self.a = [jax.dlpack.from_dlpack(x) for x in a]
        self.b = [jax.dlpack.from_dlpack(x.T.contiguous()) for x in b]
        self.token = torch.zeros(1, device=a[0].device)
        self.results: list[Any] = [None] * len(a)
        self.config = self._best()

    def __call__(self, i: int) -> None:
        self.many(i, 1)

    def many(self, first: int, calls: int) -> None:
        for at in range(first, first + calls, TOGETHER):
            sets = [i % len(self.a) for i in range(at, min(at + TOGETHER, first + calls))]
            behind = jax.dlpack.from_dlpack(self.token)
            found = _products(
                self.config, behind, [self.a[s] for s in sets], [self.b[s] for s in sets]
            )
            torch.from_dlpack(found[-1])  # makes PyTorch's stream wait
            for s, result in zip(sets, found, strict=True):
                self.results[s] = result

    @property
    def outs(self) -> list[Any]:
        """The latest result of each set, or None for a set that was not called."""
        return [None if result is None else torch.from_dlpack(result) for result in self.results]

    def poison(self) -> None:
        """Forget the results: each call allocates new arrays."""
        self.results = [None] * len(self.a)

    def _best(self) -> hopper.TuningConfig:
        """Return the fastest configuration of `_space`: first the best tile, then with that tile
        the best order. Types of the same size share the result."""

        def find() -> int:
            first, behind = hopper.MatmulDimension.M, 8
            tiles = self._fastest(
                [c for c in _space() if (c.grid_minor_dim, c.grid_tile_width) == (first, behind)]
            )
            best = self._fastest(
                [
                    c
                    for c in _space()
                    if replace(c, grid_minor_dim=first, grid_tile_width=behind) == tiles
                ]
            )
            return _space().index(best)

        return _space()[remembered(f"matmul {self.a[0].shape} {self.b[0].shape}", find)]

    def _fastest(self, configs: Sequence[hopper.TuningConfig]) -> hopper.TuningConfig:
        """Return the fastest of the configurations that support the shape."""
        times, refused = {}, ""
        for number, config in enumerate(configs):
            try:
                times[number] = self._seconds(config)
            # the shape is not divisible, or shared memory does not suffice
            except Exception as error:
                refused = str(error)
        if not times:
            raise ValueError(f"no configuration of Pallas' kernel takes this shape: {refused}")
        return configs[min(times, key=times.__getitem__)]

    def _seconds(self, config: hopper.TuningConfig, calls: int = 8) -> float:
        a, b = ([x[i % len(x)] for i in range(calls)] for x in (self.a, self.b))
        behind = jax.dlpack.from_dlpack(self.token)
        taken = []
        for _ in range(4):
            jax.block_until_ready(behind)
            begun = time.perf_counter()
            jax.block_until_ready(_products(config, behind, a, b))
            taken.append(time.perf_counter() - begun)
        return min(taken[1:])


_product = jax.jit(hopper.matmul, static_argnums=3)
"""compiled once, even if a program calls it several times"""


@functools.partial(jax.jit, static_argnums=0)
def _products(config: hopper.TuningConfig, behind: Any, a: list[Any], b: list[Any]) -> list[Any]:
    """Return the products, computed one after another and after an array, so that equal products
    are not merged into one."""
    found = []
    for x, y in zip(a, b, strict=True):
        x, behind = jax.lax.optimization_barrier((x, behind))
        behind = _product(x, y, None, config)
        found.append(behind)
    return found


def _space() -> list[hopper.TuningConfig]:
    sides = hopper.MatmulDimension
    return [
        hopper.TuningConfig(
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=64,
            max_concurrent_steps=4,
            epi_tile_n=64,
            epi_tile_m=64,
            grid_minor_dim=minor,
            grid_tile_width=width,
            wg_dimension=split,
        )
        for tile_m, tile_n, minor, width, split in itertools.product(
            (128, 256), (64, 128), sides, (4, 8, 16), sides
        )
    ]
