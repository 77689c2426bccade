"""The memory role: what must not reach it, found in the code that reaches it; what must not steer it; what it does not have."""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import cg
from numba.cuda.extending import register_jitable
from refusals import EXECUTIONS, A, B, C, Case, Cases, marked

import numpipe
from numpipe import BlockSpec, CompileError, PipelineRace, ds
from numpipe.compile import roles

refused = Cases()
ON_GPU = ("compiled",)
NUMBAS = "is Numba's: it runs on a GPU only, and the simulated SM cannot run it"


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- written in the kernel -------------------------------------------------------------------------------------------
@refused("a grid, CTA or warp barrier reaches the memory role", "use numpipe's own operations", executions=ON_GPU)
def syncthreads(a, b, c):
    cuda.syncthreads()  # <-


@refused("a grid, CTA or warp barrier reaches the memory role", executions=ON_GPU)
def syncwarp(a, b, c):
    cuda.syncwarp()  # <-


@refused("a grid, CTA or warp barrier reaches the memory role", executions=ON_GPU)
def syncthreads_count(a, b, c):
    n = cuda.syncthreads_count(1)  # <-


@refused("a grid, CTA or warp barrier reaches the memory role", executions=ON_GPU)
def grid_sync(a, b, c):
    g = cg.this_grid()
    g.sync()  # <-


@refused("a warp shuffle reaches the memory role", executions=ON_GPU)
def shuffle(a, b, c):
    x = cuda.shfl_sync(0xFFFFFFFF, 1, 0)  # <-


@refused("a warp vote reaches the memory role", executions=ON_GPU)
def vote(a, b, c):
    x = cuda.all_sync(0xFFFFFFFF, True)  # <-


@refused("a warp vote reaches the memory role", executions=ON_GPU)
def match(a, b, c):
    x = cuda.match_any_sync(0xFFFFFFFF, 3)  # <-


@refused("an atomic reaches the memory role", executions=ON_GPU)
def atomic_of_floats(a, b, c):
    s = cuda.local.array(4, np.float32)
    cuda.atomic.add(s, 0, 1.0)  # <-


@refused("an atomic reaches the memory role", executions=ON_GPU)
def atomic_of_integers(a, b, c):
    s = cuda.local.array(4, np.int32)
    cuda.atomic.max(s, 0, 1)  # <-


@refused("an atomic reaches the memory role", executions=ON_GPU)
def compare_and_swap(a, b, c):
    s = cuda.local.array(4, np.int32)
    cuda.atomic.cas(s, 0, 1, 2)  # <-


@refused("shared memory of its own reaches the memory role", executions=ON_GPU)
def shared_array(a, b, c):
    s = cuda.shared.array(4, np.float32)  # <-
    s[0] = 1.0


@refused("cannot be compiled", executions=ON_GPU)
def atomic_on_an_argument(a, b, c):
    cuda.atomic.add(a, 0, 1.0)  # <-


for _kernel in (syncthreads, syncwarp, syncthreads_count, shuffle, vote, match, shared_array, atomic_on_an_argument):
    refused.also(_kernel, NUMBAS, "use numpipe's operations", executions=("simulated",))


# ---- hidden in helpers -----------------------------------------------------------------------------------------------
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


@cuda.jit(device=True)
def pure(x):
    return x + 1


@refused("a grid, CTA or warp barrier in 'outer' reaches the memory role", executions=ON_GPU)
def barrier_two_helpers_deep(a, b, c):
    x = outer(a.shape[0])  # <-


@refused("a grid, CTA or warp barrier in 'outer' reaches the memory role", executions=ON_GPU)
def barrier_below_a_nested_function(a, b, c):
    def rows(n):
        return outer(n)  # <-

    x = rows(a.shape[0])


@refused("a grid, CTA or warp barrier in 'outer' reaches the memory role", executions=ON_GPU)
def barrier_in_an_index_map(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(
        BlockSpec((64, 64), lambda k: (0, outer(k))),))  # <-
    for (k,), (x,) in pipe(a):
        pass


@refused("an atomic in 'counting' reaches the memory role", executions=ON_GPU)
def atomic_in_a_helper(a, b, c):
    x = counting(a.shape[0])  # <-


@refused("shared memory of its own in 'staged' reaches the memory role", executions=ON_GPU)
def shared_memory_in_a_helper(a, b, c):
    x = staged(a.shape[0])  # <-


refused.also(barrier_two_helpers_deep, f"outer(…) {NUMBAS}", executions=("simulated",))


@refused("'inner' is a plain Python function")
def a_jitable_helper(a, b, c):
    x = inner(a.shape[0])  # <-


# ---- what is no violation ----------------------------------------------------------------------------------------------
@numpipe.kernel(num_compute_wgs=1)
def named_like_one(a, c):
    def atomic_rows(n):
        return n + 1

    def bar_sync(n):
        return atomic_rows(n)

    c[ds(bar_sync(a.shape[0]), 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@numpipe.kernel(num_compute_wgs=1)
def atomic_gemm(a, c):
    s = cuda.local.array(4, np.int32)
    s[0] = pure(a.shape[0])
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        pass
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@pytest.mark.parametrize("kernel", [named_like_one, atomic_gemm], ids=lambda kernel: kernel.name)
def test_helpers_local_arrays_and_names_are_no_violation(kernel: Any) -> None:
    kernel.compiled(A, C)


def test_numpipes_own_barriers_stay_out_of_the_memory_role() -> None:
    """The store ring synchronises its warpgroup: the check reads the memory role's instance, which has no store."""
    library = named_like_one.compiled(A, C).library
    bodies = roles.functions(library)
    assert any(roles.violation(body) for body in bodies.values())
    root = next(name for name in bodies if f"named_like_one{roles.MEMORY_SUFFIX}" in name)
    assert not any(roles.violation(bodies[path[-1]]) for path in roles.reachable(bodies, root))


@pytest.mark.parametrize("line, what", [
    ("  call void @llvm.nvvm.barrier0()", "a grid, CTA or warp barrier"),
    ('  call void asm sideeffect "bar.sync 0;", ""()', "a grid, CTA or warp barrier"),
    ('  call void asm sideeffect "barrier.cluster.arrive;", ""()', "a grid, CTA or warp barrier"),
    ('  %1 = call i32 asm "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r"(i32 %0)', "a warp shuffle"),
    ("  %1 = call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 %0)", "a warp vote"),
    ("  %1 = atomicrmw add i32* %0, i32 1 monotonic", "an atomic"),
    ('  call void asm sideeffect "red.global.add.u32 [$0], 1;", "l"(i64 %0)', "an atomic"),
    ('  call void asm sideeffect "st.global.b32 [$0], $1;", "l,r"(i64 %0, i32 %1)', "a store"),
    ("  store i32 1, i32 addrspace(3)* @mine", "shared memory of its own"),
    ("  %1 = add i32 1, 2", None),
    ('  call void asm sideeffect "mbarrier.arrive.shared::cta.b64 _, [$0];", "r"(i32 %0)', None),
])
def test_what_the_check_knows(line: str, what: str | None) -> None:
    found = roles.violation(f"define void @f() {{\n{line}\n  ret void\n}}")
    assert (found and found[0]) == what


# ---- what steers loads ---------------------------------------------------------------------------------------------------
BY_AXIS = ("the warpgroup axis steers control flow, a grid or an index", "use it in tile.at[…] and in stores")
BY_TILE = ("a register tile steers control flow, a grid or an index",)


@refused(*BY_AXIS)
def a_grid_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(grid=(wg,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))  # <-


@refused(*BY_AXIS)
def an_index_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (wg, k)),))(a):  # <-
        pass


@refused(*BY_AXIS)
def an_index_by_the_axis_within_the_lambda(a, b, c):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (numpipe.axis_index("wg") * 2, k)),))
    for (k,), (x,) in pipe(a):  # <-
        pass


@refused(*BY_AXIS)
def a_branch_around_a_pipeline(a, b, c):
    wg = numpipe.axis_index("wg")
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
    if wg == 0:  # <-
        for (k,), (x,) in pipe(a):
            pass


@refused(*BY_AXIS)
def a_range_by_the_axis(a, b, c):
    for i in range(numpipe.axis_index("wg") + 1):  # <-
        pass


@refused(*BY_AXIS)
def a_while_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    while wg < 1:  # <-
        wg = wg + 1


@refused(*BY_AXIS)
def tiles_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    for m, in numpipe.tiles(wg):  # <-
        pass


@refused(*BY_AXIS)
def and_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = wg and a.shape[0]  # <-


@refused(*BY_AXIS)
def not_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = not wg  # <-


@refused(*BY_AXIS)
def a_choice_by_the_axis(a, b, c):
    wg = numpipe.axis_index("wg")
    x = 1 if wg > 0 else 2  # <-


@refused(*BY_AXIS)
def an_int_of_the_axis(a, b, c):
    x = int(numpipe.axis_index("wg"))  # <-


@refused(*BY_TILE)
def a_branch_by_a_tile(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    if acc:  # <-
        x = 1


@refused(*BY_TILE)
def an_index_by_a_tile(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (acc, k)),))(a):  # <-
        pass


@refused("a shared-memory tile steers control flow")
def a_branch_by_a_loaded_tile(a, b, c):
    for (k,), (x,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))(a):
        if x:  # <-
            y = 1


@numpipe.kernel(num_compute_wgs=2)
def steered_rightly(a, c):
    wg = numpipe.axis_index("wg")
    rows = wg * 64 + (a.shape[0] - 128)
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (x, y) in numpipe.pipeline(grid=(2,), in_specs=(
            BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))(a, a):
        acc = numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T)
    c[ds(rows, 64), ds(0, 64)] = acc


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_views_and_stores_may_depend_on_the_axis(execution: str) -> None:
    EXECUTIONS[execution](steered_rightly, A, C)


# ---- accumulators in flight ------------------------------------------------------------------------------------------------
@numpipe.kernel(num_compute_wgs=1)
def stored_in_flight(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 64), ds(0, 64)] = acc  # <-


@numpipe.kernel(num_compute_wgs=1)
def scaled_in_flight(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
        acc = acc * 2.0  # <-


@numpipe.kernel(num_compute_wgs=1)
def converted_in_flight(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        half = numpipe.wgmma(acc, x, y.T).astype(np.float16)  # <-


@numpipe.kernel(num_compute_wgs=1)
def waited_for(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(grid=(2,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))))
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, y.T), 0) * 2.0
    c[ds(0, 64), ds(0, 64)] = acc


IN_FLIGHT = pytest.mark.parametrize("kernel", [stored_in_flight, scaled_in_flight, converted_in_flight], ids=lambda k: k.name)


@IN_FLIGHT
def test_reading_an_accumulator_in_flight_is_a_race_on_the_simulator(kernel: Any) -> None:
    with pytest.raises(PipelineRace, match="is read before wgmma_wait has covered it") as caught:
        kernel.simulate(A, B, C)
    assert str(caught.value).startswith(f"{marked(kernel)}: warpgroup 0 (compute)")


@IN_FLIGHT
def test_reading_an_accumulator_in_flight_does_not_compile(kernel: Any) -> None:
    with pytest.raises(CompileError, match=r"the accumulator is in flight: .* write acc = numpipe.wgmma_wait\(acc, 0\)") as caught:
        kernel.compiled(A, B, C)
    assert str(caught.value).startswith(f"{marked(kernel)}: kernel {kernel.name}")


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_after_a_wait_it_may_be_read(execution: str) -> None:
    EXECUTIONS[execution](waited_for, A, B, C)


@refused.tests
def test_it_is_refused_at_its_line(case: Case, execution: str) -> None:
    case.check(execution)
