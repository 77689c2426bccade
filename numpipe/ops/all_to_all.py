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

from ..arch.dtypes import ELEMENTS
from ..core.arith import cdiv
from ..diagnostics.argument_checks import NONE, require, whole
from ..diagnostics.argument_checks import a as a_kind
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.noted_calls import noted
from ..language.memory.copies import copy_smem_to_gmem, wait_smem_to_gmem
from ..language.memory.peer_arrays import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.refs import ds
from ..plan.context import axis_index, axis_size
from ..plan.specs import BlockSpec, Element, persistent
from .sharded_calls import Shards, call, check_out

__all__ = ["all_to_all"]

TYPES = tuple(ELEMENTS[name].dtype for name in ("float16", "bfloat16", "float32"))
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


@noted
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
    arrays = (x, counts) if out is None else (x, counts, out)
    made = call(
        "all_to_all",
        lambda shards: exchanged(shards, x, counts, out, config),
        arrays,
        mesh,
        None,
        config,
        stream,
    )
    return made if out is None else (out, made)


def exchanged(shards: Shards, x: Any, counts: Any, out: Any, config: Config | None) -> Any:
    """Make a call that was not made before; returns what it allocated."""
    require("all_to_all", locals(), config=a_kind(Config) | NONE)
    infos = shards.described({"x": x, "out": out}, TYPES)
    numbers = shards.described({"counts": counts}, (COUNTS,))["counts"]
    shape = infos["x"][0].shape
    if len(shape) != 2 or shape[1] * infos["x"][0].dtype.itemsize % 16:
        raise SpecError(
            "all_to_all: 'x' must be a matrix whose rows have a multiple of 16 bytes, got "
            f"{shape} of {infos['x'][0].dtype.name}: pad its columns"
        )
    if numbers[0].shape != (shards.size,):
        raise SpecError(
            f"all_to_all: 'counts' must be ({shards.size},), a number of rows for each GPU, got "
            f"{numbers[0].shape}"
        )
    results = (
        infos["out"]
        if out is not None
        else shards.made(infos["x"], (shards.size * shape[0], shape[1]))
    )
    if len(results[0].shape) != 2 or results[0].shape[1] != shape[1]:
        raise SpecError(
            f"all_to_all: 'out' must have {shape[1]} columns, as 'x' has, got {results[0].shape}"
        )
    check_out("all_to_all", results, results[0].shape)
    received = shards.made(numbers, (shards.size,))
    source = shards.reached("x", shards.rows("x", infos["x"]))
    shards.run(
        kernel(config or Config()), source, shards.reached("counts", numbers), received, results
    )
    numbered = shards.delivered(numbers, received)
    return numbered if out is not None else (shards.delivered(infos["x"], results), numbered)
