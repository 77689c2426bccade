"""Kernels whose compute warpgroups take turns on tiles, in every form that a tile's pipelines can
have: ``c = a @ b.T`` or a part of it.

`cases` gives calls of them: a kernel, its arguments with the output last, and the expected output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds
from tests.kernels.kernels_for_tests import (
    Config,
    by_trip_count,
    gemm,
    gemm_by_table,
    nested_gemm,
    operands,
    product,
)

CFG = Config(tm=64, tn=64, tk=64, slots=3, delay=1, group=2)
FULL = replace(CFG, delay=0)
TABLE = np.array([(2, 1, 3), (0, 0, 1), (1, 1, 5), (0, 1, 0), (2, 0, 2), (1, 0, 4)], np.int32)
"""tile (m, n) and its number of steps"""


def pingpong(
    function: Callable[..., Any], warpgroups: int = 2, ctas: int = 2, **options: Any
) -> Any:
    """Make a kernel of this function whose warpgroups take turns."""
    return numpipe.kernel(
        function,
        grid=numpipe.persistent(ctas),
        num_compute_wgs=warpgroups,
        schedule="pingpong",
        **options,
    )


@numpipe.function
def some_steps(a, b, acc, m, n, first, steps, cfg):
    """Return acc + blocks `first` … `first + steps` of K."""
    pipe = numpipe.pipeline(
        grid=(steps,),
        max_concurrent_steps=cfg.slots,
        in_specs=(
            BlockSpec((cfg.tm, cfg.tk), lambda k: (m, first + k)),
            BlockSpec((cfg.tn, cfg.tk), lambda k: (n, first + k)),
        ),
    )
    for (k,), (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    return acc


def by_helper(a, b, c, *, cfg: numpipe.Static = CFG):
    """Run a ring twice per tile, in a function: 2 steps, then the rest."""
    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):
        acc = some_steps(a, b, numpipe.zeros((cfg.tm, cfg.tn), np.float32), m, n, 0, 2, cfg)
        acc = some_steps(a, b, acc, m, n, 2, cdiv(a.shape[1], cfg.tk) - 2, cfg)
        c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


def with_skips(a, b, c, *, cfg: numpipe.Static = CFG):
    """Skip tiles by `continue` before, between and after pipelines.

    Tile m = 0 is skipped for every n, (1, 0) gets the first 2 steps, and m = 2 with odd n has no
    pipeline at all.
    """
    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), dynamic=cfg.dynamic
    ):
        if m == 0:
            continue
        acc = numpipe.zeros((cfg.tm, cfg.tn), np.float32)
        if m != 2 or n % 2 == 0:
            acc = some_steps(a, b, acc, m, n, 0, 2, cfg)
        if m == 1 and n == 0:
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)
            continue
        if m != 2 or n % 2 == 0:
            acc = some_steps(a, b, acc, m, n, 2, cdiv(a.shape[1], cfg.tk) - 2, cfg)
        if n % 3 == 1:
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)
            continue
        c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)


def skipped(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the result of `with_skips`, stored into zeros."""
    c = product(a, b)
    c[:64] = 0
    c[64:128, :64] = product(a[64:128, :128], b[:64, :128])
    for n in range(1, len(b) // 64, 2):
        c[128:192, 64 * n : 64 * n + 64] = 0
    return c


def in_bands(a, b, c, *, cfg: numpipe.Static = CFG):
    """Loop over the tiles of each band of rows; the next loop continues with the next warpgroup's
    turn."""
    for m in range(cdiv(a.shape[0], cfg.tm)):
        for (n,) in numpipe.nd_loop((cdiv(b.shape[0], cfg.tn),)):
            acc = numpipe.zeros((cfg.tm, cfg.tn), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(a.shape[1], cfg.tk),),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                    BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile, b_tile.T)
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)
    for (i,) in numpipe.tiles(cdiv(b.shape[0], cfg.tn)):  # no pipelines, so no turns
        c[ds(a.shape[0], cfg.tm), ds(i * cfg.tn, cfg.tn)] = numpipe.zeros(
            (cfg.tm, cfg.tn), np.float32
        ).astype(c.dtype)


def in_body_form(a, b, c, *, cfg: numpipe.Static = CFG):
    """Pass the turn at the end of a body-form pipeline. The memory role is the first warpgroup."""

    def body(indices, a_tile, b_tile, acc):
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), dynamic=cfg.dynamic
    ):

        def compute(pipeline):
            acc = pipeline(numpipe.zeros((cfg.tm, cfg.tn), np.float32))
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            compute_context=compute,
            memory_thread_idx=0,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )(a, b)


def through_scratch(a, b, c, *, cfg: numpipe.Static = CFG):
    """Copy each tile out of the warpgroup's own shared memory, after waiting at its own barrier."""
    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):
        acc = some_steps(
            a,
            b,
            numpipe.zeros((cfg.tm, cfg.tn), np.float32),
            m,
            n,
            0,
            cdiv(a.shape[1], cfg.tk),
            cfg,
        )

        def out(tile, seen):
            numpipe.wait_smem_to_gmem(0, wait_read_only=True)
            tile[...] = acc.astype(c.dtype)
            numpipe.barrier_arrive(seen)
            numpipe.barrier_wait(seen)
            numpipe.commit_smem()
            numpipe.copy_smem_to_gmem(tile, c.at[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)])

        numpipe.run_scoped(out, numpipe.SMEM((cfg.tm, cfg.tn), c.dtype), numpipe.Barrier())


def by_hand(a, b, c, *, cfg: numpipe.Static = CFG):
    """Wait for tiles and release them in the body.

    The pipeline is bound to a name, so the turn is passed after it.
    """

    def body(indices, a_tile, b_tile, a_ready, b_ready, a_consumed, b_consumed, acc):
        numpipe.barrier_wait(a_ready)
        numpipe.barrier_wait(b_ready)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 0)
        numpipe.barrier_arrive(a_consumed)
        numpipe.barrier_arrive(b_consumed)
        return acc

    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):

        def compute(pipeline):
            acc = pipeline(numpipe.zeros((cfg.tm, cfg.tn), np.float32))
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

        emitted = numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            compute_context=compute,
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
            delay_release=0,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )
        emitted(a, b)


def by_hand_in_place(a, b, c, *, cfg: numpipe.Static = CFG):
    """The same, with a pipeline called where it is made: its end passes the turn, after its slots
    are released."""

    def body(indices, a_tile, b_tile, a_ready, b_ready, acc):
        numpipe.barrier_wait(a_ready)
        numpipe.barrier_wait(b_ready)
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):

        def compute(pipeline):
            acc = pipeline(numpipe.zeros((cfg.tm, cfg.tn), np.float32))
            c[ds(m * cfg.tm, cfg.tm), ds(n * cfg.tn, cfg.tn)] = acc.astype(c.dtype)

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=2,
            compute_context=compute,
            manual_produced_barriers=True,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
        )(a, b)


@dataclass(frozen=True)
class Case:
    """A call: `inputs`, and the expected output; the output begins as zeros."""

    kernel: Any
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    cfg: Config = CFG

    def output(self) -> np.ndarray:
        return np.zeros_like(self.expected)

    def check(self, run: Callable[..., Any], **options: Any) -> None:
        """Call `run`, the kernel or one of its methods, and compare all elements."""
        c = self.output()
        run(*self.inputs, c, cfg=self.cfg, **options)
        np.testing.assert_array_equal(c.astype(np.float64), self.expected.astype(np.float64))


def trip_counts(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the result of `by_trip_count` for TABLE."""
    c = np.zeros((len(a), len(b)), np.float32)
    for m, n, steps in TABLE:
        rows, columns = slice(64 * m, 64 * m + 64), slice(64 * n, 64 * n + 64)
        c[rows, columns] = product(
            a[rows, : 64 * steps], b[columns, : 64 * steps], np.dtype(np.float32)
        )
    return c


@functools.cache
def cases() -> dict[str, Case]:
    """Return calls by name; K has an odd number of steps, so that tiles begin at any slot."""
    a, b = operands(192, 128, 5 * 64)
    wide = operands(192, 320, 5 * 64)
    sums, more = product(a, b), product(*wide)
    plain, nested = gemm().function, nested_gemm().function
    return {
        "gemm": Case(pingpong(plain), (a, b), sums),
        "gemm, released at once": Case(pingpong(plain), (a, b), sums, FULL),
        "gemm, 3 warpgroups": Case(pingpong(plain, 3), wide, more),
        "gemm, 1 CTA, 4 warpgroups": Case(
            pingpong(plain, 4, 1, memory_registers=24), wide, more, replace(CFG, slots=2)
        ),
        "host table": Case(
            pingpong(gemm_by_table().function), (a, b, np.ascontiguousarray(TABLE[:, :2])), sums
        ),
        "trip counts": Case(pingpong(by_trip_count().function), (a, b, TABLE), trip_counts(a, b)),
        "trip counts, 3 warpgroups": Case(
            pingpong(by_trip_count().function, 3), (a, b, TABLE), trip_counts(a, b), FULL
        ),
        "nested": Case(pingpong(nested), (a, b), sums),
        "nested, released at once": Case(pingpong(nested), (a, b), sums, replace(FULL, slots=2)),
        "a ring that runs twice": Case(pingpong(by_helper), (a, b), sums),
        "skips": Case(pingpong(with_skips), wide, skipped(*wide)),
        "skips, 3 warpgroups": Case(pingpong(with_skips, 3, 1), wide, skipped(*wide)),
        "loops": Case(pingpong(in_bands), wide, np.concatenate([more, 0 * more[:64]])),
        "loops, 3 warpgroups, 1 CTA": Case(
            pingpong(in_bands, 3, 1), wide, np.concatenate([more, 0 * more[:64]])
        ),
        "scratch": Case(pingpong(through_scratch), (a, b), sums),
        "scratch, 3 warpgroups": Case(pingpong(through_scratch, 3, 1), wide, more),
        "body form": Case(pingpong(in_body_form), (a, b), sums),
        "barriers by hand": Case(pingpong(by_hand), (a, b), sums),
        "barriers by hand, in place": Case(pingpong(by_hand_in_place), (a, b), sums),
    }
