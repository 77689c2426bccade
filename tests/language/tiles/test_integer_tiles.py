"""Register tiles of int8, uint8, int32 and uint32: NumPy's bits, wrapping where it is asked for, and code with a clean gate."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.compile.build import toolchain
from numpipe.compile.check import gate
from tests.kernels.compilers import compiles
from tests.kernels.integer_kernels import (
    NUMBERS,
    SAME_SIZE,
    TYPES,
    arrays_of_operations,
    bits_wrong,
    conversion_is_numpys,
    converted,
    extremes_of_negations,
    extremes_wrong,
    operations,
    operations_wrong,
    same_bits,
    unsigned_reductions,
    unsigned_wrong,
    wrapping,
    wrapping_wrong,
)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_operation_of_integers_is_numpys(dtype: str, target: str) -> None:
    assert operations_wrong(dtype, target) == []


@pytest.mark.parametrize(("have", "want"), [pair for pair in itertools.permutations(NUMBERS, 2) if set(pair) & set(TYPES)],
                         ids=str)
def test_conversions_of_integers_are_numpys(have: str, want: str, target: str) -> None:
    assert conversion_is_numpys(have, want, target)


@pytest.mark.parametrize(("have", "want"), SAME_SIZE)
def test_a_bitcast_keeps_the_bits(have: str, want: str, target: str) -> None:
    assert not bits_wrong(have, want, target)


def test_int32_wraps_where_it_is_computed_in_uint32(target: str) -> None:
    assert not wrapping_wrong(target)


def test_reductions_and_atomics_of_uint32_are_numpys(target: str) -> None:
    assert unsigned_wrong(target) == []


@pytest.mark.parametrize(("dtype", "largest", "mend"), [
    (np.int32, 2**31 - 1, r"compute in uint32, x.astype\(np.uint32\)"), (np.int8, 127, r"compute in int32, x.astype\(np.int32\)")])
def test_a_signed_overflow_is_an_error_simulated_and_an_unsigned_one_wraps(dtype: Any, largest: int, mend: str) -> None:
    @numpipe.kernel(num_compute_wgs=1)
    def one_more(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] + 1

    x = np.full((64, 64), largest, dtype)
    with pytest.raises(numpipe.SimulationError, match=f"'\\+': an element {largest + 1} overflows {np.dtype(dtype)}, .*{mend}"):
        one_more.simulate(x, np.zeros_like(x))
    unsigned = np.dtype(dtype.__name__.replace("int", "uint"))
    y = np.ones((64, 64), unsigned)
    one_more.simulate(np.full((64, 64), np.iinfo(unsigned).max, unsigned), y)
    assert (y == 0).all()


@pytest.mark.parametrize("execution", ["simulate", "compiled"])
def test_a_constant_that_the_type_cannot_hold_is_refused(execution: str) -> None:
    @numpipe.kernel(num_compute_wgs=1)
    def too_large(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] + 300

    if execution == "compiled" and toolchain() is not None:
        pytest.skip("no compiler")
    x = np.zeros((64, 64), np.uint8)
    with pytest.raises(numpipe.SpecError, match="the constant 300 does not fit uint8"):
        getattr(too_large, execution)(x, x.copy())


ZEROS = {name: np.zeros((64, 64), name) for name in (*TYPES, "float32")}
COMPILED: dict[str, tuple[Any, Any]] = {
    **{f"operations of {name}": (operations, lambda name=name: tuple(arrays_of_operations(name).values())) for name in TYPES},
    "conversion": (converted, lambda: (ZEROS["uint32"], ZEROS["float32"], ZEROS["float32"][0])),
    "bits": (same_bits, lambda: (ZEROS["uint32"], ZEROS["float32"], ZEROS["float32"][0])),
    "wrapping": (wrapping, lambda: (ZEROS["int32"], np.zeros((128, 64), np.int32))),
    "reductions": (unsigned_reductions, lambda: (ZEROS["uint32"], np.zeros((7, 64), np.uint32), np.zeros((65, 64), np.uint32)))}


@compiles
@pytest.mark.variants(1, thorough=4)
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_of_integers_compile_and_the_gate_finds_nothing(case: str) -> None:
    kernel, arrays = COMPILED[case]
    built = kernel.compiled(*arrays())
    assert gate.findings(built) == ()
    assert ("cvt.rn.f32.u32" in built.ptx) == (case in ("conversion", "reductions"))


@compiles
def test_bytes_of_either_sign_are_the_same_registers() -> None:
    built = converted.compiled(ZEROS["int8"], ZEROS["uint8"], ZEROS["uint8"][0])
    assert "bfe." not in built.ptx and "cvt.pack" not in built.ptx


def test_extremes_of_negations_are_numpys(target: str) -> None:
    assert extremes_wrong(target) == []


@compiles
def test_no_chain_of_extremes_has_a_negation_whose_sign_ptxas_could_drop() -> None:
    """In ``max.s32(max.s32(a, -b), c)`` the assembler of CUDA 13.0 drops the sign, and says nothing."""
    ptx = extremes_of_negations.compiled(np.zeros((128, 64), np.int32), *[np.zeros(64, np.int32)] * 2,
                                         np.zeros((64, 64), np.int32), np.zeros(2, np.int32)).ptx
    negations = set(re.findall(r"neg\.s32\s+(%r\d+)", ptx))
    chained = re.findall(r"(?:max|min)\.s32\s+%r\d+, (%r\d+), (%r\d+);", ptx)
    assert negations and not any(negations & set(operands) for operands in chained)
