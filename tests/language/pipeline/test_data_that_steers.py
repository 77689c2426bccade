"""Integer arrays that steer blocks, steps, branches, loops and tiles by their elements, in every
role."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import BlockSpec, CompileError, PipelineRace, ds
from tests.kernels.covering import examples
from tests.kernels.steered_kernels import KERNELS, arrays, check, wanted

TYPES = np.int32, np.int64
RINGS = (1, 0), (2, 1), (3, 1), (4, 0)
"""(slots, delay_release)"""
CASES = [
    (name, dtype, *RINGS[(n + m) % 4])
    for n, name in enumerate(KERNELS)
    for m, dtype in enumerate(TYPES)
]


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize(("name", "dtype", "slots", "delay"), CASES)
def test_a_kernel_steered_by_arrays_compiles_and_computes_what_numpy_does(
    name: str, dtype: Any, slots: int, delay: int
) -> None:
    def run(kernel: Any, *arrays: np.ndarray, **statics: int) -> None:
        assert kernel.inspect("gate", *arrays, **statics) == ()
        kernel.simulate(*arrays, seed=7, **statics)

    check(name, run, 1, dtype, slots, delay)


common: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
drawn = {
    "name": st.sampled_from(list(KERNELS)),
    "seed": st.integers(0, 2**16),
    "dtype": st.sampled_from(TYPES),
    "ring": st.sampled_from(RINGS),
    "schedule": st.none() | st.integers(0, 2**16),
    "zeros": st.booleans(),
}


def simulated(
    name: str, seed: int, dtype: Any, ring: tuple[int, int], schedule: int | None, zeros: bool
) -> None:
    check(
        name,
        lambda kernel, *arrays, **statics: kernel.simulate(*arrays, seed=schedule, **statics),
        seed,
        dtype,
        *ring,
        zeros,
    )


@given(**drawn)
@settings(max_examples=examples(60), derandomize=True, **common)
def test_any_tables_and_counts_give_what_numpy_does(**choices: Any) -> None:
    simulated(**choices)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@given(**drawn)
@settings(max_examples=2000, print_blob=True, **common)
def test_any_of_many_tables_and_counts_give_what_numpy_does(**choices: Any) -> None:
    simulated(**choices)


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", KERNELS)
def test_without_a_step_every_tile_is_zero(name: str) -> None:
    *given, c = arrays(np.random.default_rng(3), np.int32, zeros=True)
    KERNELS[name].simulate(*given, c, slots=2, delay=1)
    np.testing.assert_array_equal(c, wanted(name, *given, np.zeros_like(c)))


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", KERNELS)
def test_the_verifier_finds_nothing_in_them(name: str) -> None:
    report = numpipe.verify(
        KERNELS[name], *arrays(np.random.default_rng(2), np.int64), slots=3, delay=1, schedules=4
    )
    assert report.ok, report


@numpipe.kernel
def stepped(a, counts, c):
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (x,) in numpipe.pipeline(
        grid=(counts[0, 0],), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),)
    )(a):
        acc = numpipe.wgmma(acc, x, x.T)
    c[ds(0, 64), ds(0, 64)] = acc.astype(c.dtype)


def test_explain_counts_with_the_numbers_of_the_array_and_says_where_it_has_none() -> None:
    a, c = np.ones((256, 64), np.float16), np.zeros((64, 64), np.float32)
    given = numpipe.explain(stepped, a, np.array([[4]]), c, compiled=False)
    blank = numpipe.explain(stepped, a, numpipe.ArrayType((1, 1), np.int64), c, compiled=False)
    assert (
        given.steps == 4
        and given.flop == 4 * 2 * 64**3
        and given.data == ()
        and given.given == ("counts",)
    )
    assert (
        blank.steps == 0
        and blank.data == ("counts",)
        and "depends on data, zeros here: counts" in str(blank)
    )


def test_an_array_that_steers_and_is_written_under_another_name_is_a_hazard() -> None:
    a, counts = np.ones((256, 64), np.float16), np.full((64, 64), 2, np.int32)
    with pytest.raises(PipelineRace) as raised:
        stepped.simulate(a, counts, counts)
    assert raised.value.report.hazard == "steering-data-written"
    assert "store to a different array: 'counts' must not change until the launch has ended" in str(
        raised.value
    )
    stepped.simulate(a, counts, made := counts.copy())
    assert (made == 128).all()


@pytest.mark.parametrize("run", ["simulate", "compiled"])
def test_an_array_that_the_kernel_stores_to_does_not_steer(run: str) -> None:
    @numpipe.kernel
    def stored(a, c):
        pipe = numpipe.pipeline(grid=(c[0, 0],), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),))
        for _, (x,) in pipe(a):
            c[ds(0, 64), ds(0, 64)] = x[...].astype(np.int32)

    with pytest.raises(
        CompileError,
        match=r"grid: an element of array 'c' \(an output of the call: those of an array steer "
        r"that nothing stores to, passed before the first output\) steers control flow",
    ):
        getattr(stored, run)(np.ones((64, 64), np.float16), np.ones((64, 64), np.int32))


@pytest.mark.parametrize("run", ["simulate", "compiled"])
def test_an_array_of_floats_does_not_steer(run: str) -> None:
    @numpipe.kernel
    def of_floats(a, x, c):
        if x[0] > 0.0:
            for _, (tile,) in numpipe.pipeline(
                grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),)
            )(a):
                c[ds(0, 64), ds(0, 64)] = tile[...]

    with pytest.raises(
        CompileError,
        match=r"an element of array 'x' \(of float32: those of int32 and int64 steer\) decides "
        r"what is loaded",
    ):
        getattr(of_floats, run)(
            np.ones((64, 64), np.float16), np.ones(1, np.float32), np.zeros((64, 64), np.float16)
        )


@pytest.mark.parametrize("run", ["simulate", "compiled"])
def test_an_element_that_the_memory_role_cannot_find_does_not_steer(run: str) -> None:
    @numpipe.kernel(num_compute_wgs=2)
    def by_warpgroup(a, counts, c):
        pipe = numpipe.pipeline(
            grid=(counts[numpipe.axis_index("wg")],),
            in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
        )
        for _, (x,) in pipe(a):
            c[ds(0, 64), ds(0, 64)] = x[...]

    with pytest.raises(CompileError, match="grid: the warpgroup axis steers control flow"):
        getattr(by_warpgroup, run)(
            np.ones((64, 64), np.float16), np.ones(2, np.int32), np.zeros((64, 64), np.float16)
        )
