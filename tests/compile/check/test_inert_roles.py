"""The memory role: values that may reach it, code that it does not have, and the check of its
machine code (misuse: tests/misuse)."""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numpipe
from numpipe import BlockSpec, CompileError, PipelineRace, ds
from numpipe.compile.check import inert_roles
from numpipe.plan.roles import MEMORY
from tests.kernels.refusals import EXECUTIONS, A, B, C, marked


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@cuda.jit(device=True)
def pure(x):
    return x + 1


# ---- allowed code ---------------------------------------------------------------------------
@numpipe.kernel
def named_like_one(a, c):
    def atomic_rows(n):
        return n + 1

    def bar_sync(n):
        return atomic_rows(n)

    c[ds(bar_sync(a.shape[0]), 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@numpipe.kernel
def atomic_gemm(a, c):
    s = cuda.local.array(4, np.int32)
    s[0] = pure(a.shape[0])
    for (k,), (x,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        pass
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@pytest.mark.variants(1)
@pytest.mark.parametrize("kernel", [named_like_one, atomic_gemm], ids=lambda kernel: kernel.name)
def test_helpers_local_arrays_and_names_are_allowed(kernel: Any) -> None:
    kernel.compiled(A, C)


def test_numpipes_own_barriers_stay_out_of_the_memory_role() -> None:
    """The store ring synchronizes its warpgroup; the check reads the memory role's instance, which
    has no stores."""
    library = named_like_one.compiled(A, C).kernel._codelibrary
    bodies = inert_roles.functions(library)
    assert any(inert_roles.violation(body) for body in bodies.values())
    root = next(
        name for name in bodies if f"named_like_one{inert_roles.SUFFIX.format(MEMORY)}" in name
    )
    assert not any(
        inert_roles.violation(bodies[path[-1]]) for path in inert_roles.reachable(bodies, root)
    )


@pytest.mark.parametrize(
    "line, what",
    [
        ("  call void @llvm.nvvm.barrier0()", "a grid, CTA or warp barrier"),
        ('  call void asm sideeffect "bar.sync 0;", ""()', "a grid, CTA or warp barrier"),
        (
            '  call void asm sideeffect "barrier.cluster.arrive;", ""()',
            "a grid, CTA or warp barrier",
        ),
        (
            '  %1 = call i32 asm "shfl.sync.idx.b32 $0, $1, 0, 31, -1;", "=r,r"(i32 %0)',
            "a warp shuffle",
        ),
        ("  %1 = call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 %0)", "a warp vote"),
        ("  %1 = atomicrmw add i32* %0, i32 1 monotonic", "an atomic"),
        ('  call void asm sideeffect "red.global.add.u32 [$0], 1;", "l"(i64 %0)', "an atomic"),
        ('  call void asm sideeffect "st.global.b32 [$0], $1;", "l,r"(i64 %0, i32 %1)', "a store"),
        ("  store i32 1, i32 addrspace(3)* @mine", "shared memory of its own"),
        ("  %1 = add i32 1, 2", None),
        (
            '  call void asm sideeffect "mbarrier.arrive.shared::cta.b64 _, [$0];", "r"(i32 %0)',
            None,
        ),
    ],
)
def test_values_known_to_the_check(line: str, what: str | None) -> None:
    found = inert_roles.violation(f"define void @f() {{\n{line}\n  ret void\n}}")
    assert (found and found[0]) == what


# ---- code that may depend on the axis --------------------------------------------------------
@numpipe.kernel(num_compute_wgs=2)
def steered_rightly(a, c):
    wg = numpipe.axis_index("wg")
    rows = wg * 64 + (a.shape[0] - 128)
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (x, y) in numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((128, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(a, a):
        acc = numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T)
    c[ds(rows, 64), ds(0, 64)] = acc


@pytest.mark.variants(1)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_views_and_stores_may_depend_on_the_axis(execution: str) -> None:
    EXECUTIONS[execution](steered_rightly, A, C)


# ---- accumulators in flight ----------------------------------------------------------------------
@numpipe.kernel
def stored_in_flight(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 64), ds(0, 64)] = acc  # <-


@numpipe.kernel
def scaled_in_flight(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x, y.T)
        acc = acc * 2.0  # <-


@numpipe.kernel
def converted_in_flight(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for (k,), (x, y) in pipe(a, b):
        half = numpipe.wgmma(acc, x, y.T).astype(np.float16)  # <-


@numpipe.kernel
def waited_for(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, x, y.T), 0) * 2.0
    c[ds(0, 64), ds(0, 64)] = acc


IN_FLIGHT = pytest.mark.parametrize(
    "kernel", [stored_in_flight, scaled_in_flight, converted_in_flight], ids=lambda k: k.name
)


@IN_FLIGHT
def test_reading_an_accumulator_in_flight_is_a_race_on_the_simulator(kernel: Any) -> None:
    with pytest.raises(PipelineRace, match="is read before wgmma_wait has covered it") as caught:
        kernel.simulate(A, B, C)
    assert str(caught.value).startswith(f"{marked(kernel)}: warpgroup 0 (compute)")


@IN_FLIGHT
def test_reading_an_accumulator_in_flight_does_not_compile(kernel: Any) -> None:
    with pytest.raises(
        CompileError,
        match=r"the accumulator is in flight, .*; fix: write acc = numpipe.wgmma_wait\(acc, 0\)",
    ) as caught:
        kernel.compiled(A, B, C)
    assert str(caught.value).startswith(f"{marked(kernel)}: kernel {kernel.name}")


@pytest.mark.variants(1)
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_after_a_wait_it_may_be_read(execution: str) -> None:
    EXECUTIONS[execution](waited_for, A, B, C)


# ---- a loop of one step is not a loop --------------------------------------------------------
def _one_of_many(drain: bool, count: int | None) -> Any:
    """Load a block once for `count` steps of a loop in the body (None: known at the call)."""

    @numpipe.kernel(compiler_params=numpipe.CompilerParams(drain=drain))
    def product(a, b, c, n):  # type: ignore[no-untyped-def]
        for t, _ in numpipe.tiles(2, 1):
            acc = numpipe.zeros((64, 64), np.float32)
            once = numpipe.pipeline(
                grid=(n if count is None else count,),
                in_specs=(BlockSpec((64, 64), lambda _: (t, 0), buffer_count=2),),
            )
            inner = numpipe.pipeline(grid=(n,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),))
            last = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda _: (0, t)),))
            for _, (x,) in once(a):
                for _, (y,) in inner(b):
                    acc = numpipe.wgmma(acc, x, y.T)
            for _, (y,) in last(b):
                acc = numpipe.wgmma(acc, y, y.T)
            c[ds(t * 64, 64), ds(0, 64)] = acc

    return product


def _loops_of_the_memory_role(ptx: str) -> int:
    """Return the backward branches in PTX that has the memory role before the other role."""
    role = ptx[ptx.index("setmaxnreg.dec") : ptx.index("setmaxnreg.inc")]
    places = {found[1]: found.start() for found in re.finditer(r"^(\$\w+):", role, re.M)}
    return sum(
        places.get(found[1], found.start()) < found.start()
        for found in re.finditer(r"bra(?:\.uni)?\s+(\$\w+)", role)
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize(("drain", "count"), [(False, 1), (True, 1), (False, None)])
def test_the_memory_role_has_no_loop_around_the_loads_of_one_step(
    drain: bool, count: int | None
) -> None:
    """The loops over tiles and inner steps remain.

    With drain=True the end of the step waits until the body's loads are used, and a loop of unknown
    length is kept.
    """
    loops = _loops_of_the_memory_role(_one_of_many(drain, count).compiled(A, B, C, 1).ptx)
    assert (loops == 2) == (not drain and count == 1)


@pytest.mark.parametrize("drain", [False, True])
def test_a_loop_of_one_step_around_others_gives_the_same(drain: bool) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((128, 192)).astype(np.float16) for _ in range(2))
    c = np.zeros((128, 64), np.float32)
    _one_of_many(drain, 1)(a, b, c, 3, target="sim")
    exact = np.zeros((128, 64))
    for t in range(2):
        x = a[64 * t : 64 * t + 64, :64].astype(np.float64)
        last = b[:64, 64 * t : 64 * t + 64].astype(np.float64)
        exact[64 * t : 64 * t + 64] = (
            sum(x @ b[:64, 64 * k : 64 * k + 64].astype(np.float64).T for k in range(3))
            + last @ last.T
        )
    np.testing.assert_allclose(c, exact, atol=1e-2)
