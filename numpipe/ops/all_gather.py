"""``all_gather``: the shards of all GPUs on each of them, read from their memory.

Each CTA reads blocks of 16 KB from another GPU into the ring's slots, and stores them from there, by TMA both ways; some CTAs copy
the own shard meanwhile. A GPU's launch ends when the others have read its shard: each warpgroup that has read all it wanted tells
the GPUs so, and the last wait is for all of them. (PTX ISA, "cp.async.bulk.tensor"; a link of NVLink moves 375 GB/s.)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..diagnostics.arguments import NONE, require
from ..diagnostics.arguments import a as a_kind
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernels import Kernel
from ..language.memory.copies import copy_smem_to_gmem, wait_smem_to_gmem
from ..language.memory.peers import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..plan.context import axis_index, axis_size
from ..plan.specs import BlockSpec, persistent
from .shards import COPIED, Shards, as_words, check_out

__all__ = ["all_gather"]


@dataclass(frozen=True)
class Config:
    """How the copy is cut.

    block   words of 4 bytes that a warpgroup moves at a time
    slots   blocks of all warpgroups in shared memory at once
    own     one CTA of so many copies the own shard
    """

    block: int = 2048
    slots: int = 8
    own: int = 6


@functools.cache
def kernel(config: Config = Config()) -> Kernel:
    """Return the kernel, for shards of int32 words."""
    block, whole = config.block, 2 * config.block

    @numpipe_kernel(grid=persistent(), grid_names="cta", num_compute_wgs=2, wg_axis="wg", semaphores=1)
    def all_gather(x, out, done):  # type: ignore[no-untyped-def]
        """out[r] = x of GPU r; x (words,), out (GPUs, words)"""
        me, gpus, wg = axis_index("gpu"), axis_size("gpu"), axis_index("wg")
        cta, ctas = axis_index("cta"), axis_size("cta")
        near = max(ctas // config.own, 1)  # CTAs that copy the own shard
        far = max(ctas - near, 1)
        blocks = cdiv(x.shape[0], whole)

        def copy(r, first, stride):  # type: ignore[no-untyped-def]
            steps = cdiv(blocks - first, stride)
            pipe = pipeline(grid=(steps,), max_concurrent_steps=config.slots, delay_release=1,
                            in_specs=(BlockSpec((whole,), lambda k: (first + k * stride,)),))
            for (k,), (tile,) in pipe(peer(x, r)):
                start = (first + k * stride) * whole + wg * block
                copy_smem_to_gmem(tile.at[ds(wg * block, block)], out.at[r, ds(start, block)])
                if k + 1 < steps:
                    wait_smem_to_gmem(1, wait_read_only=True)  # the block before has been read: its slot is released
                else:
                    wait_smem_to_gmem(0, wait_read_only=True)

        if cta < far:
            for distance in range(1, gpus):
                copy((me + distance) % gpus, cta, far)
        if cta >= ctas - near:
            copy(me, cta - (ctas - near), near)
        for distance in range(1, gpus):
            signal(done.at[0], (me + distance) % gpus)
        wait(done.at[0], (gpus - 1) * ctas * axis_size("wg"))

    return all_gather  # type: ignore[no-any-return]


def all_gather(x: Any, *, mesh: Any, out: Any = None, config: Config | None = None, stream: Any = None) -> Any:
    """Return the shards of all GPUs, one behind the other along the first dimension.

    x       the shard of each GPU, of one shape, of any element type whose bytes, 16 or a multiple of it in all, are copied as they
            are; contiguous. Under `Mesh.torch` kernels read it where it lies if it is of `Mesh.empty`, else it is copied first
    mesh    the `numpipe.Mesh`; under `simulated` and `local` x and the result are lists of an array for each GPU
    out     (GPUs * rows, …) on each GPU, where the result goes; else it is allocated
    config  how the copy is cut
    stream  as of any kernel

    All ranks make the same call. Raises SpecError for shards that differ, and for such as TMA cannot copy.

    >>> all_gather([np.full((2, 4), gpu, np.float32) for gpu in range(2)], mesh=Mesh.simulated(2))[1][:, 0]
    array([0., 0., 1., 1.], dtype=float32)
    """
    shards = Shards("all_gather", mesh, stream)
    require("all_gather", locals(), config=a_kind(Config) | NONE)
    infos = shards.described({"x": x, "out": out}, COPIED)
    first = infos["x"][0].shape
    shape = (mesh.size * first[0] if first else mesh.size, *first[1:])
    results = infos["out"] if out is not None else shards.made(infos["x"], shape)
    check_out("all_gather", results, shape)
    if math.prod(shape):
        words = as_words("all_gather", "x", infos["x"])
        source = shards.reached("x", words)
        targets = as_words("all_gather", "out", results, mesh.size)
        shards.run(kernel(config or Config()), source, targets)
    return out if out is not None else shards.delivered(infos["x"], results)
