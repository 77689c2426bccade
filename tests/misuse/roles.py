"""What must not reach the memory role, and what must not steer it."""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import cg
from numba.cuda.extending import register_jitable

import numpipe
from numpipe import BlockSpec, SpecError, ds
from tests.kernels.refusals import Cases

refused = Cases()


# ---- written in the kernel -------------------------------------------------------------------------------------------
@refused(simulated="cuda.syncthreads(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use numpipe's "
                   "operations (NotImplementedError: <intrinsic syncthreads> is not usable in pure-python)",
         compiled="a grid, CTA or warp barrier reaches the memory role, where one lane runs the kernel's control flow to issue "
                  "copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def syncthreads(a, b, c):
    cuda.syncthreads()
  # ^^^^^^^^^^^^^^^^^^


@refused("cuda.syncwarp is code for a lane: it stands in the body of a body-form pipeline, in a kernel with "
         "CompilerParams(lowering_semantics=LoweringSemantics.Lane); here the code is the warpgroup's", kind=SpecError)
def syncwarp(a, b, c):
    cuda.syncwarp()
  # ^^^^^^^^^^^^^^^


@refused(simulated="cuda.syncthreads_count(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use "
                   "numpipe's operations (NotImplementedError: <intrinsic syncthreads_count> is not usable in pure-python)",
         compiled="a grid, CTA or warp barrier reaches the memory role, where one lane runs the kernel's control flow to issue "
                  "copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def syncthreads_count(a, b, c):
    n = cuda.syncthreads_count(1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="a grid, CTA or warp barrier reaches the memory role, where one lane runs the kernel's control flow to issue "
                  "copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def grid_sync(a, b, c):
    g = cg.this_grid()
    g.sync()
  # ^^^^^^^^


@refused("cuda.shfl_sync is code for a lane: it stands in the body of a body-form pipeline, in a kernel with "
         "CompilerParams(lowering_semantics=LoweringSemantics.Lane); here the code is the warpgroup's", kind=SpecError)
def shuffle(a, b, c):
    x = cuda.shfl_sync(0xFFFFFFFF, 1, 0)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="cuda.all_sync(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use numpipe's "
                   "operations (NotImplementedError: <intrinsic all_sync> is not usable in pure-python)",
         compiled="a warp vote reaches the memory role, where one lane runs the kernel's control flow to issue copies: use "
                  "numpipe's own operations (barriers, c[…] = tile), which know their role")
def vote(a, b, c):
    x = cuda.all_sync(0xFFFFFFFF, True)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="cuda.match_any_sync(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use "
                   "numpipe's operations (TypeError: Stub.__new__() takes 1 positional argument but 3 were given)",
         compiled="a warp vote reaches the memory role, where one lane runs the kernel's control flow to issue copies: use "
                  "numpipe's own operations (barriers, c[…] = tile), which know their role")
def match(a, b, c):
    x = cuda.match_any_sync(0xFFFFFFFF, 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="an atomic reaches the memory role, where one lane runs the kernel's control flow to issue copies: use "
                  "numpipe's own operations (barriers, c[…] = tile), which know their role")
def atomic_of_floats(a, b, c):
    s = cuda.local.array(4, np.float32)
    cuda.atomic.add(s, 0, 1.0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="an atomic reaches the memory role, where one lane runs the kernel's control flow to issue copies: use "
                  "numpipe's own operations (barriers, c[…] = tile), which know their role")
def atomic_of_integers(a, b, c):
    s = cuda.local.array(4, np.int32)
    cuda.atomic.max(s, 0, 1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^


@refused(compiled="an atomic reaches the memory role, where one lane runs the kernel's control flow to issue copies: use "
                  "numpipe's own operations (barriers, c[…] = tile), which know their role")
def compare_and_swap(a, b, c):
    s = cuda.local.array(4, np.int32)
    cuda.atomic.cas(s, 0, 1, 2)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="cuda.shared.array(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use numpipe's "
                   "operations (NotImplementedError: <function shared.array> cannot be called from host code)",
         compiled="shared memory of its own reaches the memory role, where one lane runs the kernel's control flow to issue "
                  "copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def shared_array(a, b, c):
    s = cuda.shared.array(4, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    s[0] = 1.0


@refused(simulated="cuda.atomic.add(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use numpipe's "
                   "operations (TypeError: Stub.__new__() takes 1 positional argument but 4 were given)",
         compiled="`cuda.atomic.add(a, 0, 1.0)` cannot be compiled: AttributeError: 'GmemType' object has no attribute 'dtype'")
def atomic_on_an_argument(a, b, c):
    cuda.atomic.add(a, 0, 1.0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^


# ---- hidden in helpers ---------------------------------------------------------------------------------------------------
@register_jitable
def inner(x: Any) -> Any:
    cuda.syncthreads()
    return x


@cuda.jit(device=True)
def outer(x):
    return inner(x) + 1


@cuda.jit(device=True)
def counting(x):
    s = cuda.local.array(4, np.int32)
    cuda.atomic.max(s, 0, x)
    return s[0]


@cuda.jit(device=True)
def staged(x):
    s = cuda.shared.array(4, np.int32)
    s[0] = x
    return s[0]


@refused(simulated="outer(…) is Numba's: it runs on a GPU only, and the simulated SM cannot run it; use numpipe's operations "
                   "(ValueError: Kernel launch configuration was not specified)",
         compiled="a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the kernel's control "
                  "flow to issue copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def barrier_two_helpers_deep(a, b, c):
    x = outer(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^


@refused(compiled="a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the kernel's control "
                  "flow to issue copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def barrier_below_a_nested_function(a, b, c):
    def rows(n):
        return outer(n)
        #      ^^^^^^^^

    x = rows(a.shape[0])


@refused(compiled="a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the kernel's control "
                  "flow to issue copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def barrier_in_an_index_map(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (0, outer(k))),))
        #                                 ^^^^^^^^
    for (k,), (x,) in pipe(a):
        pass


@refused(compiled="a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the kernel's control "
                  "flow to issue copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def barrier_in_the_body_of_a_pipeline(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):
        n = outer(k)
        #   ^^^^^^^^


@refused(compiled="a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the kernel's control "
                  "flow to issue copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def barrier_below_a_function_that_such_a_body_hands_on(a, b, c):
    def columns(x, first):
        return x * outer(first)
        #          ^^^^^^^^^^^^

    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    for (k,), (x,) in pipe(a):
        y = numpipe.map_columns(columns, numpipe.zeros((64, 64), np.float32), 32)


@refused(compiled="an atomic in 'counting' reaches the memory role, where one lane runs the kernel's control flow to issue "
                  "copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def atomic_in_a_helper(a, b, c):
    x = counting(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^^^


@refused(compiled="shared memory of its own in 'staged' reaches the memory role, where one lane runs the kernel's control flow "
                  "to issue copies: use numpipe's own operations (barriers, c[…] = tile), which know their role")
def shared_memory_in_a_helper(a, b, c):
    x = staged(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^


@refused("'inner' is a plain Python function: a kernel calls functions that are nested in it or decorated with "
         "@numpipe.function; put @numpipe.function above 'def inner'")
def a_jitable_helper(a, b, c):
    x = inner(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^


# ---- what steers loads ---------------------------------------------------------------------------------------------------
@refused(", pipeline at {file}:{line}: grid: the warpgroup axis steers control flow, a grid or an index: loads must not depend on "
         "tile data or on the warpgroup axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_grid_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(grid=(wg,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused(simulated="the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the "
                   "warpgroup axis, because the memory role has no such value; use it in tile.at[…] and in stores",
         compiled=", pipeline at {file}:{line}: in_specs[0] for 'a': index_map: the warpgroup axis steers control flow, a grid "
                  "or an index: loads must not depend on tile data or on the warpgroup axis, because the memory role has no "
                  "such value; use it in tile.at[…] and in stores")
def an_index_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (wg, k)),))(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused(simulated="the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the "
                   "warpgroup axis, because the memory role has no such value; use it in tile.at[…] and in stores",
         compiled=", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map: the warpgroup axis steers control flow, a "
                  "grid or an index: loads must not depend on tile data or on the warpgroup axis, because the memory role has "
                  "no such value; use it in tile.at[…] and in stores")
def an_index_by_the_axis_within_the_lambda(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (numpipe.axis_index("wg") * 2, k)),))
    for (k,), (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_branch_around_a_pipeline(a, b, c):
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    if wg == 0:
  # ^^^^^^^^^^
        for (k,), (x,) in pipe(a):
            pass


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_range_by_the_axis(a, b, c):
    for i in range(numpipe.axis_index("wg") + 1):
    #        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_while_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    while wg < 1:
  # ^^^^^^^^^^^^
        wg = wg + 1


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def tiles_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    for m, in numpipe.tiles(wg):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def and_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = wg and a.shape[0]
    #   ^^^^^^^^^^^^^^^^^


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def not_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = not wg
    #   ^^^^^^


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_choice_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = 1 if wg > 0 else 2
    #   ^^^^^^^^^^^^^^^^^^


@refused("the warpgroup axis steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def an_int_of_the_axis(a, b, c):
    x = int(numpipe.axis_index("wg"))
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^


@refused("a register tile steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_branch_by_a_tile(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    if acc:
  # ^^^^^^
        x = 1


@refused(simulated="a register tile steers control flow, a grid or an index: loads must not depend on tile data or on the "
                   "warpgroup axis, because the memory role has no such value; use it in tile.at[…] and in stores",
         compiled=", pipeline at {file}:{line}: in_specs[0] for 'a': index_map: a register tile steers control flow, a grid or "
                  "an index: loads must not depend on tile data or on the warpgroup axis, because the memory role has no such "
                  "value; use it in tile.at[…] and in stores")
def an_index_by_a_tile(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (acc, k)),))(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass


@refused("a shared-memory tile steers control flow, a grid or an index: loads must not depend on tile data or on the warpgroup "
         "axis, because the memory role has no such value; use it in tile.at[…] and in stores")
def a_branch_by_a_loaded_tile(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        if x:
      # ^^^^
            y = 1


@refused(simulated="ds(start, size): size must be a positive compile-time int, got the warpgroup axis",
         compiled="ds(start, size): size must be a compile-time constant, not the warpgroup axis: pass a literal, a constant "
                  "of the module or a Static field", kind=SpecError)
def a_size_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = ds(0, wg)
    #   ^^^^^^^^^
