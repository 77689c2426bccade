"""Values that must not reach the memory role, and values that must not steer it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import cg
from numba.cuda.extending import register_jitable

from numpipe import SpecError
from tests.kernels.refusals import Cases


# hidden in helpers
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


refused = Cases(cg=cg, counting=counting, cuda=cuda, inner=inner, outer=outer, staged=staged)

# written in the kernel
refused(
    "syncthreads",
    """
    cuda.syncthreads()
  # ^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "cuda.syncthreads(…) is a Numba function, which runs only on a GPU and not on the "
        "simulated SM; fix: use numpipe's operations (NotImplementedError: <intrinsic "
        "syncthreads> is not usable in pure-python)"
    ),
    compiled=(
        "a grid, CTA or warp barrier reaches the memory role, where one lane runs the kernel's "
        "control flow to issue copies; fix: use numpipe's own operations (barriers, c[…] = "
        "tile), which depend on the role"
    ),
)
refused(
    "syncwarp",
    """
    cuda.syncwarp()
  # ^^^^^^^^^^^^^^^
""",
    "cuda.syncwarp is per-lane code, which is supported only in the body of a body-form pipeline, "
    "in a kernel with CompilerParams(lowering_semantics=LoweringSemantics.Lane); here the code is "
    "the warpgroup's",
    kind=SpecError,
)
refused(
    "syncthreads_count",
    """
    n = cuda.syncthreads_count(1)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "cuda.syncthreads_count(…) is a Numba function, which runs only on a GPU and not on the "
        "simulated SM; fix: use numpipe's operations (NotImplementedError: <intrinsic "
        "syncthreads_count> is not usable in pure-python)"
    ),
    compiled=(
        "a grid, CTA or warp barrier reaches the memory role, where one lane runs the kernel's "
        "control flow to issue copies; fix: use numpipe's own operations (barriers, c[…] = "
        "tile), which depend on the role"
    ),
)
refused(
    "grid_sync",
    """
    g = cg.this_grid()
    g.sync()
  # ^^^^^^^^
""",
    compiled=(
        "a grid, CTA or warp barrier reaches the memory role, where one lane runs the kernel's "
        "control flow to issue copies; fix: use numpipe's own operations (barriers, c[…] = "
        "tile), which depend on the role"
    ),
)
refused(
    "shuffle",
    """
    x = cuda.shfl_sync(0xFFFFFFFF, 1, 0)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "cuda.shfl_sync is per-lane code, which is supported only in the body of a body-form "
    "pipeline, in a kernel with CompilerParams(lowering_semantics=LoweringSemantics.Lane); here "
    "the code is the warpgroup's",
    kind=SpecError,
)
refused(
    "vote",
    """
    x = cuda.all_sync(0xFFFFFFFF, True)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "cuda.all_sync(…) is a Numba function, which runs only on a GPU and not on the simulated "
        "SM; fix: use numpipe's operations (NotImplementedError: <intrinsic all_sync> is not "
        "usable in pure-python)"
    ),
    compiled=(
        "a warp vote reaches the memory role, where one lane runs the kernel's control flow to "
        "issue copies; fix: use numpipe's own operations (barriers, c[…] = tile), which depend "
        "on the role"
    ),
)
refused(
    "match",
    """
    x = cuda.match_any_sync(0xFFFFFFFF, 3)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "cuda.match_any_sync(…) is a Numba function, which runs only on a GPU and not on the "
        "simulated SM; fix: use numpipe's operations (TypeError: Stub.__new__() takes 1 "
        "positional argument but 3 were given)"
    ),
    compiled=(
        "a warp vote reaches the memory role, where one lane runs the kernel's control flow to "
        "issue copies; fix: use numpipe's own operations (barriers, c[…] = tile), which depend "
        "on the role"
    ),
)
refused(
    "atomic_of_floats",
    """
    s = cuda.local.array(4, np.float32)
    cuda.atomic.add(s, 0, 1.0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "an atomic reaches the memory role, where one lane runs the kernel's control flow to "
        "issue copies; fix: use numpipe's own operations (barriers, c[…] = tile), which depend "
        "on the role"
    ),
)
refused(
    "atomic_of_integers",
    """
    s = cuda.local.array(4, np.int32)
    cuda.atomic.max(s, 0, 1)
  # ^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "an atomic reaches the memory role, where one lane runs the kernel's control flow to "
        "issue copies; fix: use numpipe's own operations (barriers, c[…] = tile), which depend "
        "on the role"
    ),
)
refused(
    "compare_and_swap",
    """
    s = cuda.local.array(4, np.int32)
    cuda.atomic.cas(s, 0, 1, 2)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "an atomic reaches the memory role, where one lane runs the kernel's control flow to "
        "issue copies; fix: use numpipe's own operations (barriers, c[…] = tile), which depend "
        "on the role"
    ),
)
refused(
    "shared_array",
    """
    s = cuda.shared.array(4, np.float32)
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    s[0] = 1.0
""",
    simulated=(
        "cuda.shared.array(…) is a Numba function, which runs only on a GPU and not on the "
        "simulated SM; fix: use numpipe's operations (NotImplementedError: <function "
        "shared.array> cannot be called from host code)"
    ),
    compiled=(
        "shared memory of its own reaches the memory role, where one lane runs the kernel's "
        "control flow to issue copies; fix: use numpipe's own operations (barriers, c[…] = "
        "tile), which depend on the role"
    ),
)
refused(
    "atomic_on_an_argument",
    """
    cuda.atomic.add(a, 0, 1.0)
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "cuda.atomic.add(…) is a Numba function, which runs only on a GPU and not on the "
        "simulated SM; fix: use numpipe's operations (TypeError: Stub.__new__() takes 1 "
        "positional argument but 4 were given)"
    ),
    compiled=(
        "`cuda.atomic.add(a, 0, 1.0)` cannot be compiled: AttributeError: 'GmemType' object has "
        "no attribute 'dtype'"
    ),
)
refused(
    "barrier_two_helpers_deep",
    """
    x = outer(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "outer(…) is a Numba function, which runs only on a GPU and not on the simulated SM; "
        "fix: use numpipe's operations (ValueError: Kernel launch configuration was not "
        "specified)"
    ),
    compiled=(
        "a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    ),
)
refused(
    "barrier_below_a_nested_function",
    """
    def rows(n):
        return outer(n)
    #          ^^^^^^^^

    x = rows(a.shape[0])
""",
    compiled=(
        "a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    ),
)
refused(
    "barrier_in_an_index_map",
    """
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (0, outer(k))),))
    #                                     ^^^^^^^^
    for (k,), (x,) in pipe(a):
        pass
""",
    compiled=(
        "a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    ),
)
refused(
    "barrier_in_the_body_of_a_pipeline",
    """
    for (k,), (x,) in pipe(a):
        n = outer(k)
    #       ^^^^^^^^
""",
    compiled=(
        "a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    ),
)
refused(
    "barrier_below_a_function_that_such_a_body_hands_on",
    """
    def columns(x, first):
        return x * outer(first)
    #              ^^^^^^^^^^^^

    for (k,), (x,) in pipe(a):
        y = numpipe.map_columns(columns, numpipe.zeros((64, 64), np.float32), 32)
""",
    compiled=(
        "a grid, CTA or warp barrier in 'outer' reaches the memory role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    ),
)
refused(
    "atomic_in_a_helper",
    """
    x = counting(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "an atomic in 'counting' reaches the memory role, where one lane runs the kernel's "
        "control flow to issue copies; fix: use numpipe's own operations (barriers, c[…] = "
        "tile), which depend on the role"
    ),
)
refused(
    "shared_memory_in_a_helper",
    """
    x = staged(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^^
""",
    compiled=(
        "shared memory of its own in 'staged' reaches the memory role, where one lane runs the "
        "kernel's control flow to issue copies; fix: use numpipe's own operations (barriers, "
        "c[…] = tile), which depend on the role"
    ),
)
refused(
    "a_jitable_helper",
    """
    x = inner(a.shape[0])
    #   ^^^^^^^^^^^^^^^^^
""",
    "'inner' is a plain Python function: a kernel calls functions that are nested in it or "
    "decorated with @numpipe.function; put @numpipe.function above 'def inner'",
)

# values that steer loads
refused(
    "a_grid_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(grid=(wg,), in_specs=(spec,))
    #      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ", pipeline at {file}:{line}: grid: the warpgroup axis steers control flow, a grid or an "
    "index, but loads must not depend on tile data or on the warpgroup axis, because the memory "
    "role has no such value: use it in tile.at[…] and in stores",
)
refused(
    "an_index_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    spec = BlockSpec((64, 64), lambda k: (wg, k))
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        "the warpgroup axis steers control flow, a grid or an index, but loads must not depend "
        "on tile data or on the warpgroup axis, because the memory role has no such value: use "
        "it in tile.at[…] and in stores"
    ),
    compiled=(
        ", pipeline at {file}:{line}: in_specs[0] for 'a': index_map: the warpgroup axis steers "
        "control flow, a grid or an index, but loads must not depend on tile data or on the "
        "warpgroup axis, because the memory role has no such value: use it in tile.at[…] and in "
        "stores"
    ),
)
refused(
    "an_index_by_the_axis_within_the_lambda",
    """
    spec = BlockSpec((64, 64), lambda k: (numpipe.axis_index("wg") * 2, k))
    pipe = numpipe.pipeline(grid=(1,), in_specs=(spec,))
    for (k,), (x,) in pipe(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        "the warpgroup axis steers control flow, a grid or an index, but loads must not depend "
        "on tile data or on the warpgroup axis, because the memory role has no such value: use "
        "it in tile.at[…] and in stores"
    ),
    compiled=(
        ", pipeline at {file}:{line-1}: in_specs[0] for 'a': index_map: the warpgroup axis "
        "steers control flow, a grid or an index, but loads must not depend on tile data or on the "
        "warpgroup axis, because the memory role has no such value: use it in tile.at[…] and in "
        "stores"
    ),
)
refused(
    "a_branch_around_a_pipeline",
    """
    wg = numpipe.axis_index("wg")
    if wg == 0:
     # ^^^^^^^
        for (k,), (x,) in pipe(a):
            pass
""",
    "the warpgroup axis decides what is loaded at line {line+2}, but the memory role, which issues "
    "the loads, has no such value; fix: move that out of the 'if', and leave stores, atomics and "
    "arrivals in it",
)
refused(
    "a_range_by_the_axis",
    """
    for i in range(numpipe.axis_index("wg") + 1):
    #        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "the warpgroup axis steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "a_while_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    while wg < 1:
  # ^^^^^^^^^^^^
        wg = wg + 1
""",
    "the warpgroup axis steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "tiles_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    for m, in numpipe.tiles(wg):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    "the warpgroup axis steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "and_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    x = wg and a.shape[0]
    #   ^^^^^^^^^^^^^^^^^
""",
    "the warpgroup axis steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "not_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    x = not wg
    #   ^^^^^^
""",
    "the warpgroup axis steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "a_choice_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    x = 1 if wg > 0 else 2
    #   ^^^^^^^^^^^^^^^^^^
""",
    "the warpgroup axis steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "a_branch_by_a_tile",
    """
    if acc:
  # ^^^^^^
        x = 1
""",
    "a register tile steers control flow, a grid or an index, but loads must not depend on tile "
    "data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "an_index_by_a_tile",
    """
    spec = BlockSpec((64, 64), lambda k: (acc, k))
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(spec,))(a):
  # ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        pass
""",
    simulated=(
        "a register tile steers control flow, a grid or an index, but loads must not depend on "
        "tile data or on the warpgroup axis, because the memory role has no such value: use it "
        "in tile.at[…] and in stores"
    ),
    compiled=(
        ", pipeline at {file}:{line}: in_specs[0] for 'a': index_map: a register tile steers "
        "control flow, a grid or an index, but loads must not depend on tile data or on the "
        "warpgroup axis, because the memory role has no such value: use it in tile.at[…] and in "
        "stores"
    ),
)
refused(
    "a_branch_by_a_loaded_tile",
    """
    for (k,), (x,) in pipe(a):
        if x:
    #   ^^^^
            y = 1
""",
    "a shared-memory tile steers control flow, a grid or an index, but loads must not depend on "
    "tile data or on the warpgroup axis, because the memory role has no such value: use it in "
    "tile.at[…] and in stores",
)
refused(
    "a_size_by_the_axis",
    """
    wg = numpipe.axis_index("wg")
    x = ds(0, wg)
    #   ^^^^^^^^^
""",
    simulated="ds(start, size): size must be an int >= 1, got the warpgroup axis",
    compiled=(
        "ds(start, size): size must be a compile-time constant, not the warpgroup axis: pass a "
        "literal, a constant of the module or a Static field"
    ),
    kind=SpecError,
)
