"""``all_gather``: collect the shards of all GPUs on each of them, sent by their owners.

Most CTAs load blocks of their GPU's shard into the ring's slots and store them from there to the
other GPUs, using TMA both ways; the remaining CTAs meanwhile copy the shard to the local result. If
the result is not in memory that other GPUs can access, shards arrive in a workspace, chunk by
chunk, and the remaining CTAs copy each chunk from there when it has arrived. Shards are stored
rather than loaded because stores to a peer reach 370 GB/s; loads are slower when both GPUs load,
because their requests travel against the data. Source: PTX ISA, "cp.async.bulk.tensor".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import copy_smem_to_gmem
from ..language.memory.peer_arrays import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..plan.context import axis_index, axis_size
from ..plan.specs import ArrayType, BlockSpec, persistent
from .sharded_calls import (
    COPIED,
    OnGpus,
    Shards,
    Sizes,
    config_check,
    divided_ctas,
    sharded_op,
    wait_for_slot,
)


@dataclass(frozen=True)
class Config(Sizes):
    """How the copy is tiled.

    block   4-byte words that a warpgroup moves at a time
    slots   blocks of all warpgroups in shared memory at once
    near    one in this many CTAs copies on its own GPU
    chunks  pieces of a shard that are signaled separately, if shards arrive in a workspace
    """

    block: int = 2048
    slots: int = 8
    near: int = 3
    chunks: int = 8


@functools.cache
def kernel(config: Config = Config(), direct: bool = False) -> Kernel:
    """Return the kernel for shards of int32 words; with `direct`, shards arrive in the result
    itself."""
    block, whole, chunks = config.block, 2 * config.block, 1 if direct else config.chunks

    @numpipe_kernel(
        grid=persistent(),
        grid_names="cta",
        num_compute_wgs=2,
        wg_axis="wg",
        semaphores=lambda room: room.shape[0] * chunks,
    )
    def all_gather(x, room, out, arrived):  # type: ignore[no-untyped-def]
        """Compute out[r] = x of GPU r, for x (1, words), room and out (GPUs, words). The other
        GPUs' shards arrive in `room`."""
        me, gpus, wg = axis_index("gpu"), axis_size("gpu"), axis_index("wg")
        cta, far, near, first = divided_ctas(config.near)
        blocks = cdiv(x.shape[1], whole)

        shared = pipeline(
            grid=(blocks,),
            max_concurrent_steps=config.slots,
            in_specs=(  # type: ignore[var-annotated]
                BlockSpec((None, whole), lambda k: (0, k)),
            ),
        ).get_allocations(x)

        def copy(source, row, result, place, begin, end, stride):
            # copies blocks begin, begin + stride, … before end
            steps = cdiv(max(end - begin, 0), stride)
            pipe = pipeline(
                grid=(steps,),
                max_concurrent_steps=config.slots,
                delay_release=1,
                in_specs=(BlockSpec((None, whole), lambda k: (row, begin + k * stride)),),
            )
            for (k,), (tile,) in pipe(source, allocations=shared):
                start = (begin + k * stride) * whole + wg * block
                copy_smem_to_gmem(
                    tile.at[ds(wg * block, block)], result.at[place, ds(start, block)]
                )
                wait_for_slot(k + 1 < steps)

        if cta < far:
            for distance in range(1, gpus):
                to = (me + distance) % gpus
                for chunk in range(chunks):
                    copy(
                        x,
                        0,
                        peer(room, to),
                        me,
                        chunk * blocks // chunks + cta,
                        (chunk + 1) * blocks // chunks,
                        far,
                    )
                    signal(arrived.at[me * chunks + chunk], to)
        if first >= 0:
            copy(x, 0, out, me, first, blocks, near)
        for distance in range(1, gpus):
            source = (me + gpus - distance) % gpus
            for part in range(chunks):
                wait(arrived.at[source * chunks + part], far * axis_size("wg"))
                if not direct and first >= 0:
                    copy(
                        room,
                        source,
                        out,
                        source,
                        part * blocks // chunks + first,
                        (part + 1) * blocks // chunks,
                        near,
                    )

    return all_gather  # type: ignore[no-any-return]


def _result(x: Any, gpus: int) -> ArrayType:
    shape = tuple(x.shape)
    return ArrayType((gpus * shape[0], *shape[1:]) if shape else (gpus,), x.dtype)


def launch(shards: Shards, x: OnGpus, out: OnGpus, config: Any) -> None:
    """Launch the kernel."""
    words = shards.as_words("x", x, 1)
    targets = shards.as_words("out", out, shards.size)
    direct = shards.reaches(targets)
    room = targets if direct else shards.workspace("room", words, targets[0].shape)
    chosen = config or (Config(near=12) if direct else Config())
    shards.run(kernel(chosen, direct), words, room, targets)


@sharded_op(
    operands={"x": ""},
    results={"out": _result},
    types=COPIED,
    launch=launch,
    checks=config_check(Config),
    gradients={
        "x": lambda xp, grad_out, mesh: xp(
            "reduce_scatter", [xp.contiguous(grad) for grad in grad_out], mesh=mesh
        )
    },
)
def all_gather(
    x: Any, *, mesh: Any, out: Any = None, config: Config | None = None, stream: Any = None
) -> Any:
    """Return the shards of all GPUs, concatenated along the first dimension.

    x       the shard of each GPU: contiguous, of the same shape on all GPUs, of any element type,
            with a multiple of 16 bytes
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, x and the result are lists with one
            array per GPU
    out     (GPUs * rows, …) on each GPU, to write to; allocated by default. Under `Mesh.torch`,
            shards arrive directly in an `out` from `Mesh.empty`, which is faster, and otherwise in
            a workspace from which they are copied
    config  how the copy is tiled
    stream  as for any kernel

    All ranks must make the same call. Raises SpecError if shards differ in shape or type, and for
    shards that TMA cannot copy.

    >>> all_gather(
    ...     [np.full((2, 4), gpu, np.float32) for gpu in range(2)], mesh=Mesh.simulated(2)
    ... )[1][:, 0]
    array([0., 0., 1., 1.], dtype=float32)
    """
