"""``reduce_scatter``: each GPU's share of the sum of arrays of all GPUs, read from their memory and added in one order.

A tile of the result is the sum of a tile of each GPU, which come through one ring in the order of the GPUs: sums are float32, and
the result has the same bits each time. Half of what a pair of GPUs adds comes over the link, the rest from the own memory. A launch
ends when the others have read this GPU's array, as that of `all_gather` does.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.arith import cdiv
from ..diagnostics.arguments import NONE, require
from ..diagnostics.arguments import a as a_kind
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernels import Kernel
from ..language.memory.peers import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..plan.context import axis_index, axis_size
from ..plan.specs import BlockSpec, persistent
from .shards import Shards, as_rows, check_out

__all__ = ["reduce_scatter"]

TYPES = tuple(ELEMENTS[name].dtype for name in ("float16", "bfloat16", "float32"))


@dataclass(frozen=True)
class Config:
    """How the sum is cut: rows of 64 elements, or of fewer, that a warpgroup adds at a time, and tiles of 16 bits in shared memory."""

    rows: int = 64
    slots: int = 8


@functools.cache
def kernel(columns: int, config: Config = Config()) -> Kernel:
    """Return the kernel, for arrays seen as rows of so many elements."""
    rows = config.rows

    @numpipe_kernel(grid=persistent(), grid_names="cta", num_compute_wgs=2, wg_axis="wg", semaphores=1)
    def reduce_scatter(x, out, done):  # type: ignore[no-untyped-def]
        """out = the sum over r of x of GPU r, [own GPU]; x (GPUs, rows, columns), out (rows, columns)"""
        me, gpus, wg = axis_index("gpu"), axis_size("gpu"), axis_index("wg")
        cta, ctas = axis_index("cta"), axis_size("cta")
        slots = config.slots * 2 // np.dtype(x.dtype).itemsize
        for i in range(cta, cdiv(out.shape[0], 2 * rows), ctas):
            total = zeros((rows, columns), np.float32)
            for r in range(gpus):
                pipe = pipeline(grid=(1,), in_specs=(BlockSpec((None, 2 * rows, columns), lambda k: (me, i + k, 0),
                                                               buffer_count=slots),))
                for _, (tile,) in pipe(peer(x, r)):
                    total = total + tile[ds(wg * rows, rows), :].astype(np.float32)
            out[ds(i * 2 * rows + wg * rows, rows), ds(0, columns)] = total.astype(out.dtype)
        for distance in range(1, gpus):
            signal(done.at[0], (me + distance) % gpus)
        wait(done.at[0], (gpus - 1) * ctas * axis_size("wg"))

    return reduce_scatter  # type: ignore[no-any-return]


def reduce_scatter(x: Any, *, mesh: Any, out: Any = None, config: Config | None = None, stream: Any = None) -> Any:
    """Return each GPU's share, along the first dimension, of the sum of all GPUs' arrays.

    x       (rows, …) on each GPU, of float16, bfloat16 or float32; contiguous, and rows a multiple of the number of GPUs. Under
            `Mesh.torch` kernels read it where it lies if it is of `Mesh.empty`, else it is copied first
    mesh    the `numpipe.Mesh`; under `simulated` and `local` x and the result are lists of an array for each GPU
    out     (rows / GPUs, …) on each GPU, where the result goes; else it is allocated
    config  how the sum is cut
    stream  as of any kernel

    Sums are float32, in the order of the GPUs, and rounded once: the same inputs give the same bits. All ranks make the same call.
    Raises SpecError for arrays that differ in shape, of other types, and for such as TMA cannot copy.

    >>> reduce_scatter([np.full((2, 8), 1 + gpu, np.float32) for gpu in range(2)], mesh=Mesh.simulated(2))[0][0, 0]
    np.float32(3.0)
    """
    shards = Shards("reduce_scatter", mesh, stream)
    require("reduce_scatter", locals(), config=a_kind(Config) | NONE)
    infos = shards.described({"x": x, "out": out}, TYPES)
    first = infos["x"][0].shape
    if not first or first[0] % mesh.size:
        raise SpecError(f"reduce_scatter: 'x' is {first}: {mesh.size} GPUs cannot share its first dimension evenly; pad it")
    shape = (first[0] // mesh.size, *first[1:])
    results = infos["out"] if out is not None else shards.made(infos["x"], shape)
    check_out("reduce_scatter", results, shape)
    if math.prod(shape):
        source = shards.reached("x", as_rows("reduce_scatter", "x", infos["x"], mesh.size))
        targets = as_rows("reduce_scatter", "out", results)
        shards.run(kernel(source[0].shape[2], config or Config()), source, targets)
    return out if out is not None else shards.delivered(infos["x"], results)
