"""``reduce_scatter``: sum the arrays of all GPUs and keep each GPU's share of the result; shares
are sent by their owners and added in a fixed order.

Some CTAs load what their GPU has for the others into the ring's slots and store it from there to
the others' workspaces, using TMA both ways. Each sends its own chunks, because it must wait for the
stores of a chunk before it signals; meanwhile other CTAs use the link. The remaining CTAs add a
chunk when it has arrived from all GPUs: each tile of the result is the sum of one tile per GPU, in
the order of the GPUs; a GPU's own tile is read in place. Sums are float32 and the result is
deterministic, bit by bit.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import copy_smem_to_gmem
from ..language.memory.peer_arrays import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..plan.context import axis_index, axis_size
from ..plan.specs import ArrayType, BlockSpec, persistent
from .sharded_calls import (
    OnGpus,
    Shards,
    Sizes,
    config_check,
    divided_ctas,
    sharded_op,
    wait_for_slot,
)
from .tiled import TYPES


@dataclass(frozen=True)
class Config(Sizes):
    """How the sum is tiled.

    rows    rows of up to 64 elements that a warpgroup moves or adds at a time
    slots   tiles of both warpgroups in shared memory at once, for 16-bit elements
    near    one in this many CTAs adds, the others send
    chunk   most tiles, of both warpgroups, that are signaled together
    """

    rows: int = 64
    slots: int = 8
    near: int = 2
    chunk: int = 6


@functools.cache
def kernel(columns: int, config: Config = Config(), everywhere: bool = False) -> Kernel:
    """Return the kernel for arrays viewed as rows of `columns` elements. With `everywhere`, x has a
    single plane, and all GPUs get its sum."""
    rows, whole, length, most = config.rows, 2 * config.rows, config.chunk, 2 * DEFAULT.sms

    @numpipe_kernel(
        grid=persistent(),
        grid_names="cta",
        num_compute_wgs=2,
        wg_axis="wg",
        semaphores=lambda room: room.shape[0] * (cdiv(room.shape[1], length * whole) + most),
    )
    def reduce_scatter(x, room, out, arrived):  # type: ignore[no-untyped-def]
        """Compute out = the sum over r of x[this GPU] of GPU r, for x and room (GPUs, rows,
        columns) and out (rows, columns). With `everywhere`, x is (1, rows, columns), and the sum is
        that of x[0]."""
        me, gpus, wg = axis_index("gpu"), axis_size("gpu"), axis_index("wg")
        cta, far, near, adder = divided_ctas(config.near)
        slots = config.slots * 2 // np.dtype(x.dtype).itemsize
        blocks = cdiv(out.shape[0], whole)
        # full chunks of `length` tiles, the same number for each sending CTA
        full = (blocks - 1) // (length * far) * far
        rest = blocks - full * length
        # the rest is cut smaller, because nothing is sent while the last chunks are added
        last = min(rest, 2 * far)
        chunks = full + last

        def first(chunk):  # type: ignore[no-untyped-def]
            # returns the first tile of a chunk
            part = max(chunk - full, 0)
            return min(chunk, full) * length + part * (rest // last) + min(part, rest % last)

        shared = pipeline(
            grid=(blocks,),
            in_specs=(  # type: ignore[var-annotated]
                BlockSpec((None, whole, columns), lambda k: (0, k, 0), buffer_count=slots),
            ),
        ).get_allocations(x)

        if cta < far:
            # one chunk for each other GPU, then the next chunk
            for piece in range(cta, chunks * (gpus - 1), far):
                chunk, to = piece // (gpus - 1), (me + 1 + piece % (gpus - 1)) % gpus
                there = peer(room, to)
                begin, end = first(chunk), first(chunk + 1)
                send = pipeline(
                    grid=(end - begin,),
                    delay_release=1,
                    in_specs=(
                        BlockSpec(
                            (None, whole, columns),
                            lambda k: (0 if everywhere else to, begin + k, 0),
                            buffer_count=slots,
                        ),
                    ),
                )
                for (k,), (tile,) in send(x, allocations=shared):
                    copy_smem_to_gmem(
                        tile.at[ds(wg * rows, rows), :],
                        there.at[me, ds((begin + k) * whole + wg * rows, rows), ds(0, columns)],
                    )
                    wait_for_slot(begin + k + 1 < end)
                signal(arrived.at[me * chunks + chunk], to)

        if adder >= 0:
            for part in range(adder, chunks, near):
                for distance in range(1, gpus):
                    wait(arrived.at[(me + distance) % gpus * chunks + part], axis_size("wg"))
                for i in range(first(part), first(part + 1)):

                    def tile_of(source, r, total):  # adds a tile to a sum
                        pipe = pipeline(
                            grid=(1,),
                            in_specs=(
                                BlockSpec(
                                    (None, whole, columns),
                                    lambda k: (r, i + k, 0),
                                    buffer_count=slots,
                                ),
                            ),
                        )
                        for _, (tile,) in pipe(source, allocations=shared):
                            total = total + tile[ds(wg * rows, rows), :].astype(np.float32)
                        return total

                    total = zeros((rows, columns), np.float32)
                    for r in range(me):
                        total = tile_of(room, r, total)
                    total = tile_of(x, 0 if everywhere else me, total)
                    for r in range(me + 1, gpus):
                        total = tile_of(room, r, total)
                    out[ds(i * whole + wg * rows, rows), ds(0, columns)] = total.astype(out.dtype)

    return reduce_scatter  # type: ignore[no-any-return]


def _result(x: Any, gpus: int) -> ArrayType:
    shape = tuple(x.shape)
    if not shape or shape[0] % gpus:
        raise SpecError(
            f"reduce_scatter: 'x' is {shape}: {gpus} GPUs cannot share its first dimension evenly; "
            "fix: pad it"
        )
    return ArrayType((shape[0] // gpus, *shape[1:]), x.dtype)


def _launch(shards: Shards, x: OnGpus, out: OnGpus, config: Any) -> None:
    source = shards.as_rows("x", x, shards.size)
    room = shards.workspace("room", source, source[0].shape)
    targets = shards.as_rows("out", out)
    shards.run(kernel(source[0].shape[2], config or Config()), source, room, targets)


@sharded_op(
    operands={"x": ""},
    results={"out": _result},
    types=TYPES,
    launch=_launch,
    checks=config_check(Config),
    gradients={
        "x": lambda xp, grad_out, mesh: xp(
            "all_gather", [xp.contiguous(grad) for grad in grad_out], mesh=mesh
        )
    },
)
def reduce_scatter(
    x: Any, *, mesh: Any, out: Any = None, config: Config | None = None, stream: Any = None
) -> Any:
    """Return each GPU's share, along the first dimension, of the sum of all GPUs' arrays.

    x       (rows, …) on each GPU, of float16, bfloat16 or float32; contiguous, with rows a multiple
            of the number of GPUs
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, x and the result are lists with one
            array per GPU
    out     (rows / GPUs, …) on each GPU, to write to; allocated by default
    config  how the sum is tiled
    stream  as for any kernel

    Sums are float32, added in the order of the GPUs and rounded once: results are deterministic,
    bit by bit. All ranks must make the same call. Raises SpecError if arrays differ in shape, for
    other element types, and for arrays that TMA cannot copy.

    >>> reduce_scatter(
    ...     [np.full((2, 8), 1 + gpu, np.float32) for gpu in range(2)], mesh=Mesh.simulated(2)
    ... )[0][0, 0]
    np.float32(3.0)
    """
