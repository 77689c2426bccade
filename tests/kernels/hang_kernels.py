"""Kernels that never end: each waits for an mbarrier whose phase does not complete. Simulated a deadlock, and on the GPU too where
they are built with ``debug=True``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, ds

HANGS: dict[str, Any] = {}
DEBUG = CompilerParams(debug=True)
STEPS = 4


def hang(warpgroups: int = 1, **options: Any) -> Callable[[Any], Any]:
    """Enter a kernel over arrays x and y of (64, 64 * STEPS) float16."""
    def enter(function: Any) -> Any:
        made = numpipe.kernel(function, grid=2, num_compute_wgs=warpgroups, compiler_params=DEBUG, **options)
        HANGS[function.__name__] = made
        return made
    return enter


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).integers(-2, 3, (64, 64 * STEPS)).astype(np.float16)
    return x, np.zeros_like(x)


@hang()
def a_slot_is_not_released(x, y):
    def body(indices, tile, tile_consumed):
        k, = indices
        y[ds(0, 64), ds(k * 64, 64)] = tile[...]
        if k != 1:
            numpipe.barrier_arrive(tile_consumed)

    numpipe.emit_pipeline_warp_specialized(body, grid=(STEPS,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
                                           manual_consumed_barriers=True)(x)


@hang(2)
def one_warpgroup_releases_nothing(x, y):
    wg = numpipe.axis_index("wg")

    def body(indices, tile, tile_consumed):
        k, = indices
        if wg == 0:
            y[ds(0, 64), ds(k * 64, 64)] = tile[...]
            numpipe.barrier_arrive(tile_consumed)

    numpipe.emit_pipeline_warp_specialized(body, grid=(STEPS,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
                                           manual_consumed_barriers=True)(x)


@hang()
def nobody_arrives(x, y):
    told = numpipe.scratch(Barrier())
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(y.dtype)
    numpipe.barrier_wait(told)


@hang(2, warp_specialized=False)
def one_of_two_arrives(x, y):
    def body(told):
        if numpipe.axis_index("wg") == 0:
            numpipe.barrier_arrive(told)
        numpipe.barrier_wait(told)

    numpipe.run_scoped(body, Barrier(num_arrivals=2), collective_axes="wg")


@hang(2)
def each_waits_for_the_other(x, y):
    def body(turns):
        wg = numpipe.axis_index("wg")
        numpipe.barrier_wait(turns.at[wg])
        numpipe.barrier_arrive(turns.at[1 - wg])

    numpipe.run_scoped(body, Barrier(num_barriers=2), collective_axes="wg")


@hang()
def a_copy_that_is_not_made(x, y):
    tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
    if x.shape[0] < 64:
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@hang()
def more_waits_than_copies(x, y):
    tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
    for k in range(STEPS):
        if k < 2:
            numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(k * 64, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        y[ds(0, 64), ds(k * 64, 64)] = tile[...]
        numpipe.commit_smem()


@hang()
def a_barrier_for_more_copies_than_there_are(x, y):
    tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier(num_arrivals=2)))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 64)] = tile[...]


@hang(2, warp_specialized=False)
def a_warpgroup_that_stops_early(x, y):
    def body(done):
        wg = numpipe.axis_index("wg")
        for k in range(STEPS):
            if k < STEPS - 2 * wg:
                numpipe.barrier_arrive(done)
                numpipe.barrier_wait(done)

    numpipe.run_scoped(body, Barrier(num_arrivals=2), collective_axes="wg")


@hang(warp_specialized=False)
def polling_for_ever(x, y):
    told = numpipe.scratch(Barrier())
    tries = 0
    while not numpipe.barrier_test(told):
        tries += 1
    numpipe.barrier_wait(told)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(y.dtype)


@numpipe.kernel(num_compute_wgs=1, compiler_params=DEBUG)
def never(x, y):
    """Waits for ever, and then again."""
    told = numpipe.scratch(Barrier())
    k = x.shape[0]
    while k > 0:
        numpipe.barrier_wait(told)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(y.dtype)


@numpipe.kernel(num_compute_wgs=1, compiler_params=DEBUG)
def healthy(x, y):
    """y = x"""
    pipe = numpipe.pipeline(grid=(STEPS,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
                            out_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[...] = x_tile[...]
