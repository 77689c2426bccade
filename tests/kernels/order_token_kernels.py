"""Kernels whose warpgroups process blocks in turn: results that depend on the order, and products
in attention's order."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, ds
from tests.kernels.barrier_loop_kernels import Case, cases, integers

ROUNDS = 4


@functools.cache
def written(warpgroups: int, **options: Any) -> Any:
    """Read and write a tile in every warpgroup in turn; the value of y depends on the order.

    Nothing else orders the accesses.
    """

    @numpipe.kernel(grid=2, num_compute_wgs=warpgroups, **options)
    def written(y):
        wg, cta = numpipe.axis_index("wg"), numpipe.program_id(0)
        tile = numpipe.scratch(SMEM((64, 32), np.float32))
        for k in range(ROUNDS):
            with numpipe.turn("tile"):
                if numpipe.axis_index("wg") + k == 0:
                    tile[...] = numpipe.zeros((64, 32), np.float32) + 1.0
                else:
                    tile[...] = tile[...] * 2.0 + (wg + 1)
        with numpipe.turn("tile"):
            if wg == 0:
                y[ds(cta * 64, 64), ds(0, 32)] = tile[...]

    return written


def value_of(warpgroups: int) -> np.ndarray:
    value = 1.0
    for number in range(1, ROUNDS * warpgroups):
        value = value * 2 + number % warpgroups + 1
    return np.full((128, 32), value)


@numpipe.kernel(grid=1, num_compute_wgs=2)
def rotated(q, k, v, o, *, less: numpipe.Static = 0, tokens: numpipe.Static = 1):
    """Compute `barrier_loop_kernels.rotated` with its products in turn.

    With a second token its scores take turns too; a fence is optional.
    """
    wg = numpipe.axis_index("wg")
    blocks = k.shape[0] // 64
    queries = numpipe.pipeline(
        grid=(1,), max_concurrent_steps=1, in_specs=(BlockSpec((128, 64), lambda _: (0, 0)),)
    )
    for _, (q_tile,) in queries(q):
        acc = numpipe.zeros((64, 64), np.float32)
        p = numpipe.full((64, 64), 0.0, np.float32).astype(q.dtype)
        pipe = numpipe.pipeline(
            grid=(blocks + 1,),
            max_concurrent_steps=2,
            steps_of=(lambda wg: blocks + 1 - less * wg) if less else None,
            manual_produced_barriers=True,
            manual_consumed_barriers=True,
            in_specs=(
                BlockSpec((64, 64), lambda j: (j, 0)),
                BlockSpec((64, 64), lambda j: (j - 1, 0)),
            ),
        )
        for _, (k_tile, v_tile), (k_ready, v_ready), (k_consumed, v_consumed) in pipe(k, v):
            numpipe.barrier_wait(k_ready)
            with numpipe.turn("products"):
                s = numpipe.wgmma(None, q_tile.at[ds(wg * 64, 64), :], k_tile.T)
                numpipe.barrier_wait(v_ready)
                acc = numpipe.wgmma(acc, p, v_tile)
            s = numpipe.wgmma_wait(s)
            numpipe.barrier_arrive(k_consumed)
            if tokens > 1:
                with numpipe.turn("scores"):
                    scores = np.maximum(s, -1000.0)
            else:
                scores = np.maximum(s, -1000.0)
            numpipe.schedule_fence()
            acc = numpipe.wgmma_wait(acc)
            p = scores.astype(q.dtype)
            numpipe.barrier_arrive(v_consumed)
        o[ds(wg * 64, 64), ds(0, 64)] = acc


@numpipe.function
def in_turn(acc, x, y):
    """Issue a product in turn."""
    with numpipe.turn("products"):
        acc = numpipe.wgmma(acc, x, y)
    return acc


@numpipe.kernel(grid=1, num_compute_wgs=3)
def in_functions(a, b, c):
    """Compute c = a @ b.T in the body form, with turns in the body and in a function of the
    body."""
    wg = numpipe.axis_index("wg")

    def body(indices, x, y, acc):
        acc = in_turn(acc, x.at[ds(wg * 64, 64), :], y.T)
        acc = numpipe.wgmma_wait(acc, 0)
        with numpipe.turn("sums"):
            acc = acc + 1.0
        return acc

    def compute(pipeline):
        c[ds(wg * 64, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(a.shape[1] // 64,),
        compute_context=compute,
        in_specs=(BlockSpec((192, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(a, b)


@functools.cache
def kernels() -> dict[str, Case]:
    """Return the kernels, by name."""
    plain, fewer = cases()["rotated"], cases()["rotated, fewer steps"]
    without = {"warp_specialized": False}
    a, b = integers(192, 192), integers(64, 192)
    return {
        "two": Case(written(2, **without), (), value_of(2)),
        "three": Case(written(3, **without), (), value_of(3)),
        "six": Case(written(6, **without), (), value_of(6)),
        "one": Case(written(1, **without), (), value_of(1)),
        "products": Case(rotated, plain.inputs, plain.expected),
        "two tokens": Case(rotated, plain.inputs, plain.expected, (("tokens", 2),)),
        "in functions": Case(
            in_functions, (a, b), a.astype(np.float64) @ b.astype(np.float64).T + 3
        ),
        "fewer steps": Case(rotated, fewer.inputs, fewer.expected, fewer.options),
    }
