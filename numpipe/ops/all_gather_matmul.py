"""``all_gather_matmul``: multiply the rows of all GPUs by each GPU's own matrix, while the rows are
being transferred.

GPU r of n has a_r, some of the rows, and b_r, some columns of one large matrix (tensor
parallelism). One kernel runs on each GPU::

    CTAs 0 … senders - 1   load their GPU's rows into the ring's slots, store them from there to all
                           other GPUs by TMA, and then continue with tiles like all CTAs
    all CTAs               compute tiles of the GPU's own rows, a_r @ b_r, which need no transfer;
                           then tiles of the rows of GPU r - 1, r - 2, …, each as soon as its rows
                           have arrived

CTAs take tiles from a counter, so senders compute fewer. A sending step loads the same two blocks
as a step of the product, so both share their slots (`get_allocations`), and all of shared memory
can be in flight to other GPUs. While other CTAs multiply, 8 senders reach some 200 GB/s. Arrivals
are signaled per *piece*, a part of the columns of a band of rows: each band has a semaphore that
counts the pieces that have arrived. If several senders share a band, bands arrive one after
another, and the last ones hold up fewer tiles.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.grid.tile_loop import tiles
from ..language.memory.copies import copy_smem_to_gmem, wait_smem_to_gmem
from ..language.memory.peer_arrays import peer
from ..language.memory.semaphores import signal, wait
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.mma import wgmma
from ..language.tiles.refs import ds
from ..language.tiles.tile import zeros
from ..plan.context import axis_index, axis_size
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, BlockSpec, persistent
from .matmul import TYPES
from .sharded_calls import (
    OnGpus,
    Shards,
    Sizes,
    check_matrices,
    config_check,
    gathered_rows,
    planes,
    right_gradient,
    sharded_op,
)


@dataclass(frozen=True)
class Config(Sizes):
    """How the product and the transfer are tiled. Sizes are in elements.

    tm, tn, tk  tile of the output, and depth of a step
    slots       steps in shared memory at once
    group       rows of tiles that share blocks of b in L2
    senders     CTAs that send
    parts       pieces that the columns are cut into
    """

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int = 4
    group: int = 16
    senders: int = 8
    parts: int = 4


@functools.cache
def kernel(config: Config = Config(), turned: bool = False) -> Kernel:
    """Return the kernel. With `turned`, b is given as (N, K) with rows contiguous along K, else as
    (K, N)."""
    tm, tn, tk = config.tm, config.tn, config.tk
    right, high = (tn, tk) if turned else (tk, tn), tn // tk
    cell = (None, *right)

    @numpipe_kernel(
        grid=persistent(),
        grid_names="cta",
        num_compute_wgs=2,
        wg_axis="wg",
        memory_registers=40,
        semaphores=lambda a, gathered: gathered.shape[0] * cdiv(a.shape[1], tm + tn),
        compiler_params=CompilerParams(store_eviction_policy="evict_first"),
    )
    def all_gather_matmul(a, b, gathered, c, arrived):  # type: ignore[no-untyped-def]
        """Compute c[r] = (a of GPU r) @ b for each r, for a (M, K) and c (GPUs, M, N). The other
        GPUs' rows arrive in `gathered`, padded to a multiple of 16 bytes with zeros."""
        me, gpus, wg = axis_index("gpu"), axis_size("gpu"), axis_index("wg")
        rows, half = tm // axis_size("wg"), tn // axis_size("wg")
        m_tiles, n_tiles, steps = cdiv(a.shape[1], tm), cdiv(c.shape[2], tn), cdiv(a.shape[2], tk)
        # a slot holds tn rows of a band and tm more rows, from the range after those of all bands
        bands = cdiv(a.shape[1], tm + tn)

        shared = pipeline(
            grid=(steps,),
            max_concurrent_steps=config.slots,
            in_specs=(  # type: ignore[var-annotated]
                BlockSpec((None, tm, tk), lambda k: (0, 0, k)),
                BlockSpec(right, lambda k: (0, k)),
            ),
        ).get_allocations(a, b)
        cta, senders = axis_index("cta"), min(axis_size("cta"), config.senders)
        if cta < senders:
            length = steps if turned else cdiv(steps, high) * high
            for piece in range(cta, (gpus - 1) * bands * config.parts, senders):
                part, band = piece % config.parts, piece // config.parts % bands
                to = (me + 1 + piece // config.parts // bands) % gpus
                other = peer(gathered, to)
                begin, end = part * length // config.parts, (part + 1) * length // config.parts
                send = pipeline(
                    grid=(end - begin,),
                    max_concurrent_steps=config.slots,
                    delay_release=1,
                    in_specs=(
                        BlockSpec(
                            (None, tm, tk), lambda k: (0, bands * tn // tm + band, begin + k)
                        ),
                        BlockSpec(
                            cell,
                            lambda k: (
                                (0, band, begin + k)
                                if turned
                                else (0, band * high + (begin + k) % high, (begin + k) // high)
                            ),
                        ),
                    ),
                )
                for (k,), (x, y) in send(a, a, allocations=shared):
                    step = begin + k
                    copy_smem_to_gmem(
                        x.at[ds(wg * rows, rows), :],
                        other.at[
                            me, ds(bands * tn + band * tm + wg * rows, rows), ds(step * tk, tk)
                        ],
                    )
                    if turned:
                        copy_smem_to_gmem(
                            y.at[ds(wg * half, half), :],
                            other.at[me, ds(band * tn + wg * half, half), ds(step * tk, tk)],
                        )
                    else:
                        copy_smem_to_gmem(
                            y.at[:, ds(wg * half, half)],
                            other.at[
                                me,
                                ds((band * high + step % high) * tk, tk),
                                ds(step // high * tn + wg * half, half),
                            ],
                        )
                    if k + 1 < end - begin:
                        # the previous step has been read, so its slot can be released
                        wait_smem_to_gmem(2, wait_read_only=True)
                    else:
                        wait_smem_to_gmem(0, wait_read_only=True)
                signal(arrived.at[me * bands + band], to)

        def product(left, plane, source, y, x):
            acc = zeros((rows, tn), np.float32)
            pipe = pipeline(
                grid=(steps,),
                max_concurrent_steps=config.slots,
                in_specs=(
                    BlockSpec((None, tm, tk), lambda k: (plane, y, k)),
                    BlockSpec(right, lambda k: (x, k) if turned else (k, x)),
                ),
            )
            for _, (a_tile, b_tile) in pipe(left, b, allocations=shared):
                acc = wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T if turned else b_tile)
            c[source, ds(y * tm + wg * rows, rows), ds(x * tn, tn)] = acc.astype(c.dtype)

        for y, x in tiles(m_tiles, n_tiles, order="grouped", group=config.group, dynamic=True):
            product(a, 0, me, y, x)
        for i, y, x in tiles(
            gpus - 1, m_tiles, n_tiles, order="grouped", group=config.group, dynamic=True
        ):
            source = (me + gpus - 1 - i) % gpus
            there = y // (tn // tm) if y < bands * (tn // tm) else y - bands * (tn // tm)
            wait(arrived.at[source * bands + there], config.parts * axis_size("wg"))
            product(gathered, source, source, y, x)

    return all_gather_matmul  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1024)
def choose(rows: int, columns: int, depth: int, gpus: int, turned: bool) -> Config:
    """Return the config for products of `rows` x `depth` on each GPU by `depth` x `columns`.

    If 8 senders take more than 0.6 of the product's time, which depends on the columns of all GPUs,
    there are 16. Otherwise the number of pieces is chosen to balance the senders: a step takes a
    sender about 1 us, and the end of a piece 3 us.

    >>> choose(4096, 4096, 8192, 2, True).parts, choose(2048, 2048, 8192, 4, True).senders
    (5, 16)
    """
    base = Config(tn=256 if columns > 128 else 128)
    if columns * gpus < 6000 * (gpus - 1):
        return replace(base, senders=16)
    bands, steps = cdiv(rows, base.tm + base.tn), cdiv(depth, base.tk)

    def cost(parts: int) -> float:
        return cdiv(bands * parts * max(gpus - 1, 1), base.senders) * (steps / parts + 3)  # type: ignore[no-any-return]

    return replace(base, parts=min(range(1, min(steps, 16) + 1), key=cost, default=1))


def _result(a: Any, b: Any, gpus: int) -> ArrayType:
    rows, columns = check_matrices("all_gather_matmul", a.shape, b.shape)
    return ArrayType((gpus * rows, columns), a.dtype)


def _launch(shards: Shards, a: OnGpus, b: OnGpus, out: OnGpus, config: Any) -> None:
    (m, k), n = a[0].shape, b[0].shape[1]
    left = shards.rows("a", a)
    right, turned = shards.laid("b", b)
    # pad rows to a multiple of 16 bytes
    gathered = shards.workspace("gathered", left, (shards.size, m, round_up(k, 8)))
    shards.run(
        kernel(config or choose(m, n, k, shards.size, turned), turned),
        planes(left, 1),
        right,
        gathered,
        planes(out, shards.size),
    )


@sharded_op(
    operands={"a": "", "b": ""},
    results={"out": _result},
    types=TYPES,
    launch=_launch,
    checks=config_check(Config),
    gradients={
        "a": lambda xp, b, grad_out, mesh: xp(
            "matmul_reduce_scatter", grad_out, [xp.transposed(x) for x in b], mesh=mesh
        ),
        # gathers the rows again: the forward pass keeps only this GPU's own
        "b": lambda xp, a, grad_out, mesh: right_gradient(xp, gathered_rows(xp, mesh, a), grad_out),
    },
    operations=lambda a, out: 2.0 * math.prod(out.shape) * a.shape[1],
)
def all_gather_matmul(
    a: Any, b: Any, *, mesh: Any, out: Any = None, config: Config | None = None, stream: Any = None
) -> Any:
    """Return the rows of all GPUs, concatenated, times each GPU's own matrix:
    ``concatenate(all a) @ b``.

    a       (M, K) on each GPU, of float16 or bfloat16
    b       (K, N) on each GPU, of the same type
    mesh    the `numpipe.Mesh`; under `simulated` and `local`, a, b and the result are lists with
            one array per GPU
    out     (GPUs * M, N) on each GPU, to write to; allocated by default
    config  how the product and the transfer are tiled; by default what `choose` returns
    stream  as for any kernel

    Rows are transferred while each GPU multiplies its own. Results are deterministic, bit by bit.
    All ranks must make the same call. Raises SpecError if shapes do not match, for other element
    types, and if shards differ in shape.

    >>> a = [np.full((4, 8), gpu, np.float16) for gpu in range(2)]
    >>> b = [np.ones((8, 16), np.float16) for _ in range(2)]
    >>> all_gather_matmul(a, b, mesh=Mesh.simulated(2))[0][:, 0]
    array([0., 0., 0., 0., 8., 8., 8., 8.], dtype=float16)
    """
