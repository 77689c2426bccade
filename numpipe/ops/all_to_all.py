"""``all_to_all``: rows that each GPU has for each other one go there, as many as counts in GPU
memory say.

Rows lie in the order of the GPUs that they go to, ``counts[r]`` for GPU r. Each CTA reads the
counts of all GPUs where they lie: they say where this GPU's rows begin on the others, and how many
they are. Then it loads some of these rows, so that no number has to come to the host. Blocks of
rows begin anywhere (`Element`), and the last one of a GPU's rows is stored in part. A launch ends
when the others have read this GPU's arrays: each CTA that has read all it wanted tells them so. Its
one warpgroup loads for itself: a memory role could still read counts then.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import launch
from ..core.arith import cdiv
from ..diagnostics.argument_checks import NONE, require, whole
from ..diagnostics.argument_checks import a as a_kind
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.memory.copies import copy_smem_to_gmem, wait_smem_to_gmem
from ..language.memory.peer_arrays import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..plan.context import axis_index, axis_size
from ..plan.specs import ArrayType, BlockSpec, Element, persistent
from .declaration import Operand, P
from .sharded_calls import ShardedOp, Shards, sharded_op

__all__ = ["all_to_all"]

TYPES = ("float16", "bfloat16", "float32")
COUNTS = np.dtype(np.int32)


@dataclass(frozen=True)
class Config:
    """How the copy is cut: blocks of `rows` x `row_bytes`, `slots` of them in shared memory; one
    CTA of `own` copies own rows."""

    rows: int = 64
    row_bytes: int = 256
    slots: int = 8
    own: int = 6

    def __post_init__(self) -> None:
        require("all_to_all: Config", vars(self), **dict.fromkeys(vars(self), whole(1)))


@functools.cache
def kernel(config: Config = Config()) -> Kernel:
    """Return the kernel."""
    rows = config.rows

    @numpipe_kernel(
        grid=persistent(), grid_names="cta", num_compute_wgs=1, semaphores=1, warp_specialized=False
    )
    def all_to_all(x, counts, received, out, done):  # type: ignore[no-untyped-def]
        """out = the rows for this GPU, received[r] = how many GPU r had; x (rows, columns),
        counts[r] rows of it go to GPU r"""
        me, gpus, cta, ctas = (
            axis_index("gpu"),
            axis_size("gpu"),
            axis_index("cta"),
            axis_size("cta"),
        )
        columns = config.row_bytes // np.dtype(x.dtype).itemsize
        near = max(ctas // config.own, 1)  # CTAs that copy the own rows
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
                if k + 1 < steps and row + rows <= end:
                    # the block before has been read: its slot is released
                    wait_smem_to_gmem(1, wait_read_only=True)
                else:
                    wait_smem_to_gmem(0, wait_read_only=True)

        at = 0
        for r in range(gpus):
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
            f"{x.shape} of {x.dtype.name}: pad its columns"
        )
    if out is None:
        return ArrayType((gpus * x.shape[0], x.shape[1]), x.dtype)
    if len(out.shape) != 2 or out.shape[1] != x.shape[1]:
        raise SpecError(
            f"all_to_all: 'out' must have {x.shape[1]} columns, as 'x' has, got {out.shape}"
        )
    if out.dtype != x.dtype:
        raise SpecError(
            f"all_to_all: 'out' is {out.dtype.name} and 'x' is {x.dtype.name}: give both one type"
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
    x: list[ArrayInfo],
    counts: list[ArrayInfo],
    out: list[ArrayInfo] | None,
    rows: list[ArrayInfo] | None,
    received: list[ArrayInfo],
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
    """An op whose ``out`` is an operand: rows for which nothing comes stay as they are."""

    place = ("mesh", "stream")

    def call(  # type: ignore[override]
        self,
        arrays: tuple[Any, ...],
        options: tuple[Any, ...],
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
    checks={"config": a_kind(Config) | NONE},
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
    """Return the rows that all GPUs have for each one, and how many each of them had.

    x       (rows, columns) on each GPU, of float16, bfloat16 or float32: first the rows for GPU 0,
            then those for GPU 1, …
    counts  (GPUs,) of int32 on each GPU: how many rows go to each, none where it is negative; their
            sum is at most the rows of x
    mesh    the `numpipe.Mesh`; under `simulated` and `local` arrays are lists of an array for each
            GPU. Under `Mesh.torch` kernels read x and counts where they lie if they are of
            `Mesh.empty`, else they are copied first
    out     (as many rows as may come, columns) on each GPU, where they go; else it is allocated,
            for all rows of all GPUs. Rows that find no room are lost, and rows behind the last one
            are left as they are
    config  how the copy is cut
    stream  as of any kernel

    Returns (out, received): the rows of GPU 0, then those of GPU 1, …, and a (GPUs,) int32 array of
    their numbers; all stays on the GPUs. All ranks make the same call. Raises SpecError for arrays
    that do not fit, and for rows that TMA cannot copy.

    >>> x = [np.full((3, 8), gpu, np.float32) for gpu in range(2)]
    >>> counts = [np.array(each, np.int32) for each in ((1, 2), (2, 1))]
    >>> rows, received = all_to_all(x, counts, mesh=Mesh.simulated(2))
    >>> rows[0][:3, 0], received[0]
    (array([0., 1., 1.], dtype=float32), array([1, 2], dtype=int32))
    """
