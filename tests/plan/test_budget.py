"""The table in a shared-memory overflow error: every operand, output, allocation and store slot,
with bytes that add up to the total."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, SpecError, ds
from tests.kernels.refusals import EXECUTIONS

A = np.zeros((128, 512), np.float16)
W = np.zeros((64, 64), np.float32)
O = np.zeros((128, 512), np.float32)  # noqa: E741


def table(kernel: Any, execution: str, *args: Any) -> dict[str, int]:
    """Return the bytes of each row, after checking that they add up to the reported total."""
    with pytest.raises(SpecError, match="shared memory: .* B, but a CTA has 232448 B") as caught:
        EXECUTIONS[execution](kernel, *args)
    told = str(caught.value)
    rows = {
        re.sub(r"(pipeline at|@) \S+:\d+", r"\1 …", what): int(size)
        for size, what in re.findall(r"^ +(\d+) B  (.*)$", told, re.M)
    }
    found = re.search(r"shared memory: (\d+) B", told)
    assert found and int(found[1]) == sum(rows.values()) > 232448
    return rows


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_rings_outputs_scratch_and_stores_are_listed(execution: str) -> None:
    @numpipe.kernel(num_compute_wgs=2, compiler_params=CompilerParams(store_slots=5))
    def everything(a, w, o, more):
        wg = numpipe.axis_index("wg")
        numpipe.run_scoped(lambda tile, landed: 1, SMEM((32, 64), np.float32), Barrier())
        numpipe.run_scoped(lambda tile: 1, SMEM((64, 64), np.float16), collective_axes="wg")
        more[ds(wg * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(4,),
            max_concurrent_steps=3,
            in_specs=(
                BlockSpec((128, 64), lambda k: (0, k)),
                BlockSpec((64, 24), lambda k: (0, k)),
                BlockSpec((64, 64), lambda k: (0, 0)),
            ),
            out_specs=(BlockSpec((128, 64), lambda k: (0, k), buffer_count=2),),
        )
        for (k,), (x, y, z, t) in pipe(a, a, w, o):
            t[ds(wg * 64, 64), :] = numpipe.zeros((64, 64), np.float32)

    more = np.zeros((128, 64), np.float32)
    assert table(everything, execution, A, W, O, more) == {
        "barriers": 1024,
        "in_specs[0] for 'a': 3 slots x 16384 B, pipeline at …": 49152,
        "in_specs[1] for 'a': 3 slots x 3072 B, pipeline at …": 9216,
        "in_specs[2] for 'w': 1 slot x 16384 B, pipeline at …": 16384,
        "out_specs[0] for 'o': 2 output slots x 32768 B, pipeline at …": 65536,
        "SMEM((32, 64), float32) @ … (0): 2 warpgroups x 8192 B": 16384,
        "SMEM((64, 64), float16) @ …": 8192,
        "'array[…] = tile': 2 warpgroups x 5 store slots x 8192 B": 81920,
    }


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_slots_that_each_warpgroup_has_for_itself_are_counted_for_each(execution: str) -> None:
    @numpipe.kernel(num_compute_wgs=3, warp_specialized=False)
    def alone(a, o):
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            max_concurrent_steps=5,
            in_specs=(BlockSpec((128, 64), lambda k: (0, k)),),
        )
        for (k,), (x,) in pipe(a):
            pass

    assert table(alone, execution, A, O) == {
        "barriers": 1024,
        "in_specs[0] for 'a': 3 warpgroups x 5 slots x 16384 B, pipeline at …": 245760,
    }


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_operands_of_two_types_are_named_before_the_sizes_and_the_fix_fits(execution: str) -> None:
    @numpipe.kernel(grid=1)
    def product(a, b, c):
        pipe = numpipe.pipeline(
            grid=(4,),
            max_concurrent_steps=4,
            in_specs=(
                BlockSpec((64, 64), lambda k: (0, k)),
                BlockSpec((256, 64), lambda k: (0, k)),
            ),
        )
        acc = numpipe.zeros((64, 256), np.float32)
        for (k,), (x, y) in pipe(a, b):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(0, 64), ds(0, 256)] = acc

    a = np.ones((64, 256), np.float16)
    b = np.ones((256, 256), np.float32)
    c = np.zeros((64, 256), np.float32)
    with pytest.raises(
        SpecError,
        match="product: shared memory: 295936 B, but",
    ) as caught:
        EXECUTIONS[execution](product, a, b, c)
    assert (
        "; 'b' is float32 and 'a' float16, and wgmma multiplies two of one type: pass "
        "b.astype('float16') if they are multiplied\n" in str(caught.value)
    )
    EXECUTIONS[execution](product, a, b.astype("float16"), c)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_packed_weights_that_do_not_fit_are_not_taken_for_operands(execution: str) -> None:
    @numpipe.kernel(grid=1, num_compute_wgs=1)
    def product(a, w, c):
        pipe = numpipe.pipeline(
            grid=(8,),
            max_concurrent_steps=8,
            in_specs=(
                BlockSpec((64, 64), lambda k: (0, k)),
                BlockSpec((256, 128), lambda k: (0, k)),
            ),
        )
        acc = numpipe.zeros((64, 64), np.float32)
        for (k,), (x, y) in pipe(a, w):
            acc = numpipe.wgmma(acc, x, x.T)
        c[ds(0, 64), ds(0, 64)] = acc

    a, w = np.ones((64, 512), np.float16), np.ones((256, 1024), np.uint8)
    with pytest.raises(SpecError, match="product: shared memory") as caught:
        EXECUTIONS[execution](product, a, w, np.zeros((64, 64), np.float32))
    assert "multiplies" not in str(caught.value) and "fewer slots" in str(caught.value)


def test_an_array_without_a_block_is_passed_as_the_error_for_none_says() -> None:
    @numpipe.kernel(grid=1)
    def passed(a, b, c):
        pipe = numpipe.pipeline(
            grid=(1,),
            in_specs=(
                BlockSpec((64, 64), lambda k: (0, k)),
                (BlockSpec(memory_space=numpipe.GMEM),),
            ),
        )
        for _, (tile, (array,)) in pipe(a, (b,)):
            c[ds(0, 64), ds(0, 64)] = tile[...] + array[ds(0, 64), ds(0, 64)]

    a = np.ones((64, 64), np.float16)
    b = np.ones((64, 64), np.float16)
    c = np.zeros((64, 64), np.float16)
    passed.simulate(a, b, c)
    assert (c == 2).all()
