"""``matmul_reduce_scatter``: multiply each GPU's part of K, sum the products over the GPUs, and
keep some of the rows on each.

GPU r of n has a_r, some columns of one large matrix, and b_r, the matching rows of another (tensor
parallelism). One kernel runs on each GPU and computes all tiles of ``a_r @ b_r``. A tile that
belongs to another GPU's rows is a *part*: TMA stores it there, in float32 or in the operands' type,
and its own semaphore signals the arrival. To each tile of its own rows, a GPU adds the other GPUs'
parts in a fixed order, starting with the next GPU, so the result is deterministic. For
`matmul_all_reduce`, it then stores the tile on all GPUs.

Sending starts at once, and tiles of a GPU's own rows, which need the others' parts, follow later by
`Config.lead`. Two compute warpgroups alternate (ping-pong): while one waits for the link or adds
parts, the other multiplies. Parts are loaded into shared memory by TMA, two strips ahead, because
loads to registers would take as long as a product. A warpgroup signals that a part has arrived
after its next product; the stores have finished by then, so nothing waits for them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..diagnostics.argument_checks import NONE, POSITIVE, require, word
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.grid.tile_loop import tiles
from ..language.memory.copies import copy_gmem_to_smem
from ..language.memory.peer_arrays import peer
from ..language.memory.scratch import run_scoped
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.mma import wgmma
from ..language.tiles.refs import ds
from ..language.tiles.strips import map_columns
from ..language.tiles.tile import zeros
from ..plan.allocations import SMEM, Barrier
from ..plan.context import axis_index, axis_size
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, BlockSpec, persistent
from .matmul import TYPES
from .sharded_calls import (
    OnGpus,
    Shards,
    check_matrices,
    config_check,
    gathered_rows,
    planes,
    right_gradient,
    sharded_op,
)

PARTS = word("float32", "input")


@dataclass(frozen=True)
class Config:
    """How the product is tiled. Sizes are in elements.

    tm, tn, tk  tile of the output of one warpgroup, and depth of a step
    slots       steps in shared memory at once; None: as many as fit
    panels      staging panels of a warpgroup (64 x 32 float32, 8 KB) for parts being stored
    group       rows of tiles that share blocks of b in L2
    lead        parts that each CTA sends before it starts on tiles of its own rows
    strip       columns of a tile to which parts are added at a time
    """

    tm: int = 128
    tn: int = 192
    tk: int = 64
    slots: int | None = 4
    panels: int = 1
    group: int = 16
    lead: int = 1
    strip: int = 16

    def __post_init__(self) -> None:
        require(
            "matmul_reduce_scatter: Config",
            vars(self),
            **dict.fromkeys(vars(self), POSITIVE | NONE),
        )


@functools.cache
def kernel(config: Config = Config(), turned: bool = False, gather: bool = False) -> Kernel:
    """Return the kernel. With `turned`, b is given as (N, K) with rows contiguous along K, else as
    (K, N). With `gather`, all GPUs get the rows of all GPUs."""
    tm, tn, tk, strip = config.tm, config.tn, config.tk, config.strip
    right = (tn, tk) if turned else (tk, tn)

    @numpipe_kernel(
        grid=persistent(),
        grid_names="cta",
        schedule="pingpong",
        num_compute_wgs=2,
        wg_axis="wg",
        memory_registers=24,
        semaphores=lambda parts: (
            parts.shape[0] * cdiv(parts.shape[1], tm) * cdiv(parts.shape[2], tn) + gather
        ),
        compiler_params=CompilerParams(
            store_slots=config.panels, store_eviction_policy="evict_first"
        ),
    )
    def matmul_reduce_scatter(a, b, parts, c, arrived):  # type: ignore[no-untyped-def]
        """Compute c = the sum over all GPUs of their a[this GPU] @ b, for a (GPUs, M, K) and c (M,
        N). GPU r's part arrives in parts[r]. With `gather`, c is (GPUs, M, N), of the sums of all
        GPUs."""
        me, gpus = axis_index("gpu"), axis_size("gpu")
        m_tiles, n_tiles = cdiv(a.shape[1], tm), cdiv(c.shape[2 if gather else 1], tn)
        steps = cdiv(a.shape[2], tk)
        own = m_tiles * n_tiles
        sent = own * (gpus - 1)
        lead = min(config.lead * axis_size("cta"), sent // max(gpus - 1, 1)) * (gpus - 1)
        # then alternately: a tile of the GPU's own rows, and a part for each other GPU
        mixed = (sent - lead) // max(gpus - 1, 1) * gpus

        told, told_to = -1, 0
        for (t,) in tiles(own * gpus):  # type: ignore[var-annotated]
            # index of this tile among the tiles of the own rows, or among the parts
            after = t - lead
            mine = after >= 0 and (after >= mixed or after % gpus == 0)
            i = (
                (after // gpus if after < mixed else mixed // gpus + after - mixed)
                if mine
                else (t if after < 0 else lead + after // gpus * (gpus - 1) + after % gpus - 1)
            )
            number = i if mine else i // (gpus - 1)
            to = me if mine else (me + 1 + i % (gpus - 1)) % gpus
            band = number // (config.group * n_tiles)
            high = min(config.group, m_tiles - band * config.group)
            inside = number - band * config.group * n_tiles
            y, x = band * config.group + inside % high, inside // high

            acc = zeros((tm, tn), np.float32)
            pipe = pipeline(
                grid=(steps,),
                max_concurrent_steps=config.slots,
                in_specs=(
                    BlockSpec((None, tm, tk), lambda k: (to, y, k)),
                    BlockSpec(right, lambda k: (x, k) if turned else (k, x)),
                ),
            )
            for _, (a_tile, b_tile) in pipe(a, b):
                acc = wgmma(acc, a_tile, b_tile.T if turned else b_tile)

            row, column = y * tm, x * tn
            # signal the previous part: its stores, which this waits for, ran during the product
            if told >= 0:
                signal(arrived.at[told], told_to)
            told = -1
            if to != me:
                peer(parts, to)[me, ds(row, tm), ds(column, tn)] = acc.astype(parts.dtype)
                told, told_to = me * own + number, to
            else:

                def added(buffers, landed):  # returns the sum over all GPUs, strip by strip
                    total = acc
                    for distance in range(1, gpus):
                        source = (me + distance) % gpus
                        wait(arrived.at[source * own + number], 1, loads=False)

                        def fetch(first):
                            copy_gmem_to_smem(
                                parts.at[source, ds(row, tm), ds(column + first, strip)],
                                buffers.at[first // strip % 2],
                                landed.at[first // strip % 2],
                            )

                        def add(sums, first):
                            barrier_wait(landed.at[first // strip % 2])
                            sums = sums + buffers.at[first // strip % 2][...].astype(np.float32)
                            if first + 2 * strip < tn:
                                fetch(first + 2 * strip)
                            return sums

                        fetch(0)
                        fetch(strip)
                        total = map_columns(add, total, strip)
                    return total

                total = run_scoped(
                    added, SMEM((2, tm, strip), parts.dtype), Barrier(num_barriers=2)
                ).astype(c.dtype)
                if gather:
                    for distance in range(gpus):
                        there = peer(c, (me + distance) % gpus)
                        there[me, ds(row, tm), ds(column, tn)] = total
                else:
                    c[ds(row, tm), ds(column, tn)] = total
        if told >= 0:
            signal(arrived.at[told], told_to)  # type: ignore[call-arg]
        if gather:
            # the last semaphore counts the warpgroups that have stored all tiles, two per CTA
            for distance in range(1, gpus):
                signal(arrived.at[gpus * own], (me + distance) % gpus)  # type: ignore[call-arg]
            wait(arrived.at[gpus * own], 2 * (gpus - 1) * axis_size("cta"))

    return matmul_reduce_scatter  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1024)
def choose(rows: int, columns: int, gpus: int, gather: bool = False) -> Config:
    """Return the config for products of which each of `gpus` GPUs adds `rows` x `columns`.

    It selects the tile width that fills the SMs most evenly: the time of a tile is proportional to
    its columns plus a constant few. Narrow tiles leave room for a fifth slot.

    >>> choose(2048, 14336, 2).tn, choose(4096, 100, 2).tn
    (176, 128)
    """

    def cost(tn: int) -> float:
        return cdiv(cdiv(rows, 128) * cdiv(columns, tn) * gpus, DEFAULT.sms) * (tn + 8)  # type: ignore[no-any-return]

    # the omitted widths would spill a register, in the loops over GPUs
    wide = (192, 160, 128) if gpus != 2 else (176, 160, 128) if gather else (192, 176, 160, 128)
    tn = min(wide, key=cost)
    return Config(tn=tn, slots=5, panels=2) if tn == 128 else Config(tn=tn)


def _result(a: Any, b: Any, gpus: int) -> ArrayType:
    rows, columns = check_matrices("matmul_reduce_scatter", a.shape, b.shape)
    if rows % gpus:
        raise SpecError(
            f"matmul_reduce_scatter: 'a' has {rows} rows, which {gpus} GPUs cannot share evenly; "
            f"fix: pad it to {round_up(rows, gpus)}"
        )
    return ArrayType((rows // gpus, columns), a.dtype)


def parts_type(parts: str, dtype: np.dtype) -> np.dtype:
    """Return the type of partial sums of operands of this type."""
    return dtype if parts == "input" else np.dtype(np.float32)


def launch(
    shards: Shards,
    a: OnGpus,
    b: OnGpus,
    out: OnGpus,
    parts: str,
    config: Any,
    gather: bool = False,
) -> None:
    """Launch the kernel. With `gather`, `out` has the rows of all GPUs."""
    (m, _), n = a[0].shape, b[0].shape[1]
    rows = m // shards.size
    left = shards.rows("a", a)
    right, turned = shards.laid("b", b)
    dtype = parts_type(parts, left[0].dtype)
    # pad rows to a multiple of 16 bytes
    shape = shards.size, rows, round_up(n, 16 // dtype.itemsize)
    shards.run(
        kernel(config or choose(rows, n, shards.size, gather), turned, gather),
        planes(left, shards.size),
        right,
        shards.workspace("parts", left, shape, dtype),
        planes(out, shards.size) if gather else out,
    )


@sharded_op(
    operands={"a": "", "b": ""},
    results={"out": _result},
    types=TYPES,
    launch=launch,
    checks={"parts": PARTS} | config_check(Config),
    gradients={
        "a": lambda xp, b, grad_out, mesh: xp(
            "all_gather_matmul", grad_out, [xp.transposed(x) for x in b], mesh=mesh
        ),
        "b": lambda xp, a, grad_out, mesh: right_gradient(xp, a, gathered_rows(xp, mesh, grad_out)),
    },
    operations=lambda a, b: 2.0 * math.prod(a.shape) * b.shape[1],
)
def matmul_reduce_scatter(
    a: Any,
    b: Any,
    *,
    mesh: Any,
    parts: str = "float32",
    out: Any = None,
    config: Config | None = None,
    stream: Any = None,
) -> Any:
    """Return each GPU's share of the rows of the sum, over all GPUs, of ``a @ b``.

    a       (M, K) on each GPU, of float16 or bfloat16; M must be a multiple of the number of GPUs
    b       (K, N) on each GPU, of the same type
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, a, b and the result are lists with
            one array per GPU
    parts   the type in which GPUs send partial sums to each other: "float32", so that the result is
            rounded once; or "input", the type of a, which halves the bytes on the link and rounds
            each partial sum from another GPU, as NCCL's sum of the products does
    out     (M / GPUs, N) on each GPU, to write to; allocated by default
    config  how the product is tiled; by default what `choose` returns
    stream  as for any kernel

    Partial sums are transferred while other tiles are computed, and are added in float32 in a fixed
    order: results are deterministic, bit by bit. All ranks must make the same call. Raises
    SpecError if shapes do not match, for other element types, if shards differ in shape, and for
    other `parts`.

    >>> a = [np.full((4, 8), 1 + gpu, np.float16) for gpu in range(2)]
    >>> b = [np.ones((8, 16), np.float16) for _ in range(2)]
    >>> matmul_reduce_scatter(a, b, mesh=Mesh.simulated(2))[0][:, 0]
    array([24., 24.], dtype=float16)
    """
