"""Kernels that never end: each waits for an mbarrier phase that does not complete.

The simulator reports a deadlock, and so does the GPU for kernels built with ``debug=True``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ClusterBarrier, CompilerParams, Workspace, ds

HANGS: dict[str, Any] = {}
DEBUG = CompilerParams(debug=True)
STEPS = 4


def hang(warpgroups: int = 1, **options: Any) -> Callable[[Any], Any]:
    """Register a kernel over arrays x and y of (64, 64 * STEPS) float16."""

    def enter(function: Any) -> Any:
        made = numpipe.kernel(
            function, grid=2, num_compute_wgs=warpgroups, compiler_params=DEBUG, **options
        )
        HANGS[function.__name__] = made
        return made

    return enter


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).integers(-2, 3, (64, 64 * STEPS)).astype(np.float16)
    return x, np.zeros_like(x)


@hang()
def a_slot_is_not_released(x, y):
    def body(indices, tile, tile_consumed):
        (k,) = indices
        y[ds(0, 64), ds(k * 64, 64)] = tile[...]
        if k != 1:
            numpipe.barrier_arrive(tile_consumed)

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(STEPS,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        manual_consumed_barriers=True,
    )(x)


@hang(2)
def one_warpgroup_releases_nothing(x, y):
    wg = numpipe.axis_index("wg")

    def body(indices, tile, tile_consumed):
        (k,) = indices
        if wg == 0:
            y[ds(0, 64), ds(k * 64, 64)] = tile[...]
            numpipe.barrier_arrive(tile_consumed)

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(STEPS,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        manual_consumed_barriers=True,
    )(x)


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


@numpipe.kernel(compiler_params=DEBUG)
def never(x, y):
    """Wait forever, and then wait again."""
    told = numpipe.scratch(Barrier())
    k = x.shape[0]
    while k > 0:
        numpipe.barrier_wait(told)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(y.dtype)


@numpipe.kernel(compiler_params=DEBUG)
def healthy(x, y):
    """Copy x to y."""
    pipe = numpipe.pipeline(
        grid=(STEPS,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[...] = x_tile[...]


# ---- rings, clusters and other CTAs: called with x and y alone, or with the arguments from `given`
CLUSTER: dict[str, Any] = {
    "grid": 2,
    "grid_names": "cta",
    "cluster": 2,
    "cluster_names": "pair",
    "compiler_params": DEBUG,
}


@numpipe.kernel(**CLUSTER)
def a_cta_that_waits_while_its_peer_loads(x, y):
    never = numpipe.scratch(Barrier())
    for (k,), (tile,) in numpipe.pipeline(
        grid=(STEPS,),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),),
    )(x):
        if numpipe.axis_index("cta") == 1 and k == 1:
            numpipe.barrier_wait(never)
        if k == STEPS - 1:
            y[ds(0, 64), ds(numpipe.axis_index("cta") * 64, 64)] = tile[...]


@numpipe.kernel(**CLUSTER)
def a_cta_that_does_not_tell_its_peer(x, y):
    both = numpipe.scratch(ClusterBarrier("pair"))
    if numpipe.axis_index("cta") == 0:
        numpipe.barrier_arrive(both)
    numpipe.barrier_wait(both)
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(y.dtype)


@numpipe.kernel(**CLUSTER)
def a_cta_that_releases_a_shared_slot_never(x, y):
    def body(indices, tile, tile_consumed):
        (k,) = indices
        if k == 0:
            y[ds(0, 64), ds(numpipe.axis_index("cta") * 64, 64)] = tile[...]
        if numpipe.axis_index("cta") == 0:
            numpipe.barrier_arrive(tile_consumed)

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(STEPS,),
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),),
    )(x)


@numpipe.kernel(grid=numpipe.persistent(2), compiler_params=DEBUG)
def a_tile_of_a_counter_that_is_not_left(x, y):
    """Hang the memory role, which draws tiles from the launch's counter, in the ring of tile
    numbers.

    It waits for room in the ring.
    """
    never = numpipe.scratch(Barrier())
    for (m,) in numpipe.tiles(64, dynamic=True):
        for (k,), (tile,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(x):
            if m == 5:
                numpipe.barrier_wait(never)
            if m < STEPS:
                y[ds(0, 64), ds(m * 64, 64)] = tile[...]


@numpipe.kernel(grid=2, workspace=Workspace((64, 64), 2), compiler_params=DEBUG)
def a_part_that_nobody_hands_over(y, work):
    for m, n, part in numpipe.split_tiles(1, 1, steps=2, split=2):
        acc = numpipe.zeros((64, 64), np.float32) + 1.0
        if part.begin == 0:
            acc = numpipe.combine(acc, part, work)
            y[ds(m * 64, 64), ds(n * 64, 64)] = acc


@numpipe.kernel(compiler_params=DEBUG)
def a_step_that_is_released_once_too_few_for_two_operands(x, y):
    def body(indices, a, b, a_consumed, b_consumed):
        (k,) = indices
        y[ds(0, 64), ds(k * 64, 64)] = a[...]
        numpipe.barrier_arrive(a_consumed)
        if k == 0:
            numpipe.barrier_arrive(b_consumed)

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(STEPS,),
        manual_consumed_barriers=True,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(x, x)


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False, compiler_params=DEBUG)
def a_turn_that_one_warpgroup_leaves_out(x, y):
    """Hang at a named barrier, where one warpgroup leaves out its turn."""
    for k in range(STEPS):
        if numpipe.axis_index("wg") == 0:
            with numpipe.turn("store"):
                y[ds(0, 64), ds(k * 64, 64)] = numpipe.zeros((64, 64), np.float32).astype(y.dtype)


MORE: dict[str, Any] = {
    kernel.name: kernel
    for kernel in (
        a_cta_that_waits_while_its_peer_loads,
        a_cta_that_does_not_tell_its_peer,
        a_cta_that_releases_a_shared_slot_never,
        a_tile_of_a_counter_that_is_not_left,
        a_part_that_nobody_hands_over,
        a_step_that_is_released_once_too_few_for_two_operands,
        a_turn_that_one_warpgroup_leaves_out,
    )
}


def given(name: str) -> tuple[np.ndarray, ...]:
    """Return the arguments of a kernel that hangs."""
    return (
        (np.zeros((64, 64), np.float32),) if name == "a_part_that_nobody_hands_over" else arrays()
    )


TWELVE = {
    "a_slot_is_not_released": ("ready", "compute", r"(ready|consumed)\[1\] (for \S+ 'x' )?of x"),
    "one_warpgroup_releases_nothing": (
        "consumed",
        "memory",
        r"consumed\[0\] for in_specs\[0\] 'x' of x",
    ),
    "a_step_that_is_released_once_too_few_for_two_operands": (
        "consumed",
        "memory",
        r"consumed\[1\] for in_specs\[1\] 'x' of x, x",
    ),
    "a_tile_of_a_counter_that_is_not_left": (
        "consumed",
        "memory",
        r"consumed\[\d\] of (x|tile numbers)",
    ),
    "nobody_arrives": ("by hand", "compute", "barrier"),
    "each_waits_for_the_other": ("by hand", "compute", r"barrier\[0\]"),
    "a_warpgroup_that_stops_early": ("by hand", "compute", "barrier"),
    "a_copy_that_is_not_made": ("of a copy", "compute", "barrier"),
    "more_waits_than_copies": ("of a copy", "compute", "barrier"),
    "a_cta_that_waits_while_its_peer_loads": ("of a cluster", "memory", r"consumed\[1\] of x"),
    "a_cta_that_does_not_tell_its_peer": ("of a cluster", "compute", "barrier"),
    "a_part_that_nobody_hands_over": (
        "flag",
        "compute",
        "the flag of (another part of 'work'|work)",
    ),
}
"""hangs -> (kind of barrier, role that waits there, name of the barrier)"""
