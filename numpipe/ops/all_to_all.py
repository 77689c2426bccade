"""``all_to_all``: send rows from each GPU to each other one, as many as counts in GPU memory say.

Rows are sorted by destination, ``counts[r]`` of them for GPU r. Each CTA reads the counts of all
GPUs in place to find out how many rows this GPU gets and where they start on the others. Then it
loads some of these rows, so no count has to be copied to the host. Blocks of rows may start at any
row (`Element`), and the last block of a GPU's rows is stored in part. A launch ends when the others
have read this GPU's arrays: each CTA signals them when it has read all its rows. The single
warpgroup of a CTA does its own loads, because a memory role could still be reading counts at that
point.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import launch
from ..core.arith import cdiv
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import copy_smem_to_gmem
from ..language.memory.peer_arrays import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..plan.context import axis_index, axis_size
from ..plan.specs import ArrayType, BlockSpec, Element, persistent
from .declaration import Operand, P
from .sharded_calls import OnGpus, ShardedOp, Shards, Sizes, config_check, sharded_op, wait_for_slot
from .tiled import TYPES


@dataclass(frozen=True)
class Config(Sizes):
    """How the copy is tiled: blocks of `rows` x `row_bytes`, `slots` of them in shared memory; one
    in `own` CTAs copies this GPU's own rows."""

    rows: int = 64
    row_bytes: int = 256
    slots: int = 8
    own: int = 6


@functools.cache
def kernel(config: Config = Config()) -> Kernel:
    """Return the kernel."""
    rows = config.rows

    @numpipe_kernel(
        grid=persistent(), grid_names="cta", num_compute_wgs=1, semaphores=1, warp_specialized=False
    )
    def all_to_all(x, counts, received, out, done):  # type: ignore[no-untyped-def]
        """Compute out = the rows for this GPU and received[r] = how many of them GPU r had, for x
        (rows, columns), of which counts[r] rows go to GPU r."""
        me, gpus, cta, ctas = (
            axis_index("gpu"),
            axis_size("gpu"),
            axis_index("cta"),
            axis_size("cta"),
        )
        columns = config.row_bytes // np.dtype(x.dtype).itemsize
        near = max(ctas // config.own, 1)  # CTAs that copy this GPU's own rows
        far = max(ctas - near, 1)
        wide = cdiv(x.shape[1], columns)

        def asked(r, to):  # type: ignore[no-untyped-def]
            return max(peer(counts, r)[to], 0)  # type: ignore[index]

        def copy(r, at, number, first, stride):  # type: ignore[no-untyped-def]
            begin = 0
            for other in range(me):
                begin = begin + asked(r, other)
            end = min(at + number, out.shape[0])
            blocks = cdiv(end - at, rows) * wide
            steps = cdiv(max(blocks - first, 0), stride)
            pipe = pipeline(
                grid=(steps,),
                max_concurrent_steps=config.slots,
                delay_release=1,
                in_specs=(  # type: ignore[var-annotated]
                    BlockSpec(
                        (Element(rows), columns),
                        lambda k: (
                            begin + (first + k * stride) // wide * rows,
                            (first + k * stride) % wide,
                        ),
                    ),
                ),
            )
            for (k,), (tile,) in pipe(peer(x, r)):
                row = at + (first + k * stride) // wide * rows
                column = (first + k * stride) % wide * columns
                if row + rows <= end:
                    copy_smem_to_gmem(tile, out.at[ds(row, rows), ds(column, columns)])
                else:
                    out[ds(row, rows, stop=end), ds(column, columns)] = tile[...]
                wait_for_slot(k + 1 < steps and row + rows <= end)

        at = 0
        for r in range((me + 1) % gpus):
            at = at + asked(r, me)
        for distance in range(gpus):
            # all GPUs load from different ones at a time: the port of each has one user
            r = (me + 1 + distance) % gpus
            if r == 0:
                at = 0
            number = asked(r, me)
            if cta == 0:
                received[r] = number
            if r != me and cta < far:
                copy(r, at, number, cta, far)
            if r == me and cta >= ctas - near:
                copy(r, at, number, cta - (ctas - near), near)
            at = at + number
        for distance in range(1, gpus):
            signal(done.at[0], (me + distance) % gpus)  # type: ignore[call-arg]
        wait(done.at[0], (gpus - 1) * ctas)

    return all_to_all  # type: ignore[no-any-return]


def _rows(x: Any, out: Any, gpus: int) -> ArrayType | None:
    if len(x.shape) != 2 or x.shape[1] * x.dtype.itemsize % 16:
        raise SpecError(
            "all_to_all: 'x' must be a matrix whose rows have a multiple of 16 bytes, got "
            f"{x.shape} of {x.dtype.name}; fix: pad its columns"
        )
    if out is None:
        return ArrayType((gpus * x.shape[0], x.shape[1]), x.dtype)
    if len(out.shape) != 2 or out.shape[1] != x.shape[1]:
        raise SpecError(
            f"all_to_all: 'out' must have {x.shape[1]} columns, as 'x' has, got {out.shape}"
        )
    if out.dtype != x.dtype:
        raise SpecError(
            f"all_to_all: 'out' is {out.dtype.name} and 'x' is {x.dtype.name}; fix: give both "
            "one type"
        )
    return None


def _received(counts: Any, gpus: int) -> ArrayType:
    if counts.shape != (gpus,):
        raise SpecError(
            f"all_to_all: 'counts' must be ({gpus},), a number of rows for each GPU, got "
            f"{counts.shape}"
        )
    return ArrayType(counts.shape, counts.dtype)


def _launch(
    shards: Shards,
    x: OnGpus,
    counts: OnGpus,
    out: OnGpus | None,
    rows: OnGpus | None,
    received: OnGpus,
    config: Any,
) -> None:
    targets = out or rows
    assert targets is not None
    for info in targets:
        launch.check_writable(info, "out", "all_to_all")
    source = shards.reached("x", shards.rows("x", x))
    numbers = shards.reached("counts", counts)
    shards.run(kernel(config or Config()), source, numbers, received, targets)


class _AllToAll(ShardedOp[P]):
    """An op whose ``out`` is an operand, because rows that receive nothing keep their contents."""

    place = ("mesh", "stream")

    def call(  # type: ignore[override]
        self,
        arrays: tuple,
        options: tuple,
        mesh: Any = None,
        stream: Any = None,
        *_: Any,
    ) -> Any:
        made = super().call(arrays, options, None, mesh, stream)
        return made if arrays[-1] is None else (arrays[-1], made)


@sharded_op(
    _AllToAll,
    operands={"x": "", "counts": Operand(types=("int32",)), "out": Operand(types=TYPES)},
    results={"rows": _rows, "received": _received},
    types=TYPES,
    launch=_launch,
    checks=config_check(Config),
)
def all_to_all(
    x: Any,
    counts: Any,
    *,
    mesh: Any,
    out: Any = None,
    config: Config | None = None,
    stream: Any = None,
) -> Any:
    """Return the rows that all GPUs have for each GPU, and how many each of them had.

    x       (rows, columns) on each GPU, of float16, bfloat16 or float32: first the rows for GPU 0,
            then those for GPU 1, …
    counts  (GPUs,) of int32 on each GPU: how many rows go to each GPU, a negative number meaning
            none; the sum must not exceed the rows of x
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, arrays are lists with one array per
            GPU. Under `Mesh.torch`, kernels read x and counts in place if they are from
            `Mesh.empty`; otherwise they are copied first
    out     (capacity in rows, columns) on each GPU, to write to; by default allocated with room for
            all rows of all GPUs. Rows that do not fit are lost, and rows after the last one keep
            their contents
    config  how the copy is tiled
    stream  as for any kernel

    Returns (out, received): the rows of GPU 0, then those of GPU 1, …, and a (GPUs,) int32 array
    with their numbers; everything stays on the GPUs. All ranks must make the same call. Raises
    SpecError if shapes do not match, and for rows that TMA cannot copy.

    >>> x = [np.full((3, 8), gpu, np.float32) for gpu in range(2)]
    >>> counts = [np.array(each, np.int32) for each in ((1, 2), (2, 1))]
    >>> rows, received = all_to_all(x, counts, mesh=Mesh.simulated(2))
    >>> rows[0][:3, 0], received[0]
    (array([0., 1., 1.], dtype=float32), array([1, 2], dtype=int32))
    """
