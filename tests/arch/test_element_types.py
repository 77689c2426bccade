"""8-bit types and tf32: products agree with NumPy, conversions have NumPy's bits, and the machine
code has the instructions that the type's record names."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineRace, ds
from numpipe.arch.dtypes import ELEMENTS, Element
from numpipe.arch.products import INTEGER_WIDTHS, WGMMA
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import gate
from tests.kernels.compilers import compiles
from tests.kernels.element_kernels import (
    E4M3,
    E5M2,
    F16,
    F32,
    NARROW,
    PAIRS,
    S8,
    U8,
    conversion_arrays,
    conversions,
    conversions_wrong,
    operands,
    product,
    shapes,
    wrong,
)


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.mark.variants(4)
@pytest.mark.parametrize("pair", PAIRS)
def test_products_are_numpys(pair: str) -> None:
    rng = np.random.default_rng(7)
    assert [
        said
        for shape in [(1, 1, 1), (129, 65, 33), *shapes(2, 7)]
        if (said := wrong(pair, shape, rng, target="sim"))
    ] == []


@pytest.mark.parametrize("pair", PAIRS)
def test_one_wrong_element_of_an_operand_is_detected(
    pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(a: np.ndarray, *others: np.ndarray, **how: Any) -> None:
        a = a.copy()
        if a.dtype.kind in "iu":
            a.view(np.uint8)[0, -1] ^= 1
        else:
            a[0, -1] = 16
        product(a, *others, **how)

    monkeypatch.setattr("tests.kernels.element_kernels.product", changed)
    assert wrong(pair, (20, 20, 40), np.random.default_rng(7), target="sim") != ""


@pytest.mark.parametrize("to", [F16, E4M3, E5M2, ELEMENTS["bfloat16"].dtype], ids=str)
def test_sums_of_float8_are_stored_in_other_types(to: np.dtype) -> None:
    assert (
        wrong(f"{E4M3} x {E4M3}", (70, 80, 100), np.random.default_rng(1), to=to, target="sim")
        == ""
    )


def test_sums_of_integers_keep_their_low_bits_where_they_are_stored_as_bytes() -> None:
    assert wrong(f"{S8} x {S8}", (70, 80, 100), np.random.default_rng(1), to=S8, target="sim") == ""
    assert wrong(f"{S8} x {U8}", (70, 80, 100), np.random.default_rng(1), to=U8, target="sim") == ""


def test_sums_of_integers_wrap_beyond_32_bits() -> None:
    a = np.full((64, 40000), 255, np.uint8)
    c = np.zeros((64, 64), np.int32)
    product(a, a, c, depth=128, target="sim")
    assert (c == np.int64(40000 * 255 * 255 - 2**32)).all()


def test_tf32_does_not_look_at_the_low_13_bits() -> None:
    a = np.full((64, 32), np.uint32(0x3F801FFF)).view(F32)
    c = np.zeros((64, 64), F32)
    product(a, a, c, depth=32, target="sim")
    assert (c == 32).all()  # of ones; rounded up they would be 1.0009765625


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_conversions_have_numpys_bits(dtype: np.dtype) -> None:
    assert conversions_wrong(dtype, target="sim") == []


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_one_wrong_bit_of_a_conversion_is_detected(
    dtype: np.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*arrays: np.ndarray, **how: Any) -> None:
        conversions(*arrays, **how)
        arrays[4].view(np.uint8)[70, 3] ^= 1

    monkeypatch.setattr("tests.kernels.element_kernels.conversions", changed)
    assert conversions_wrong(dtype, target="sim") == ["made"]


@pytest.mark.variants(1, thorough=2)
@compiles
@pytest.mark.parametrize(
    "pair",
    [f"{E4M3} x {E5M2}", f"{E5M2} x {E4M3}", f"{S8} x {U8}", f"{U8} x {S8}", f"{F32} x {F32}"],
)
def test_the_machine_code_of_a_product_fits_its_types_and_passes_the_gate(
    pair: str,
) -> None:
    a, b = operands(pair, (128, 64, 256), np.random.default_rng(1))
    record, other = (WGMMA.by_dtype[x.dtype] for x in (a, b))
    k = WGMMA.k(a.dtype)
    given = a, b, np.zeros((128, 64), record.sums)
    how = {"depth": 128 // a.dtype.itemsize}
    types = f"{record.name}.{other.name}"
    shape = f"64x64x{k}"
    ptx, sass = product.inspect("ptx", *given, **how), product.inspect("sass", *given, **how)
    assert set(
        re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n64k(\d+)\.\w+\.(\w+\.\w+)", ptx)
    ) == {(str(k), types)}
    made = gate.Sass(sass, HOPPER).find(HOPPER.opcodes)
    assert len(made) == 4 and {i.opcode.partition(".")[0] for i in made} == {record.opcode}
    assert all(i.opcode.startswith(f"{record.opcode}.{shape}") for i in made)
    assert product.inspect("gate", *given, **how) == ()


@pytest.mark.thorough
@compiles
@pytest.mark.parametrize("dtype", [E5M2, U8], ids=str)
def test_the_gate_finds_nothing_in_conversions(dtype: np.dtype) -> None:
    assert conversions.inspect("gate", *conversion_arrays(dtype).values()) == ()


@pytest.mark.thorough
@compiles
def test_a_product_of_another_type_than_the_ptx_has_is_found() -> None:
    a, b = operands(f"{S8} x {S8}", (128, 64, 256), np.random.default_rng(1))
    given = a, b, np.zeros((128, 64), np.int32)
    ptx, sass = (product.inspect(what, *given, depth=128) for what in ("ptx", "sass"))
    assert list(gate.tensor_cores(gate.Sass(sass, HOPPER), ptx)) == []
    found = list(gate.tensor_cores(gate.Sass(sass.replace("IGMMA", "QGMMA"), HOPPER), ptx))
    assert found[0].startswith("a product nobody asked for") and found[1:] == [
        "no IGMMA 64x64x32, although the PTX has it"
    ]


@numpipe.kernel
def every_width(a, b, c, *, n: numpipe.Static):
    """Compute c = a @ b.T without an initial accumulator."""
    for (_,), (x, y) in numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 32), lambda _: (0, 0)), BlockSpec((n, 32), lambda _: (0, 0))),
    )(a, b):
        c[ds(0, 64), ds(0, n)] = numpipe.wgmma_wait(numpipe.wgmma(None, x, y.T))


@pytest.mark.parametrize("n", INTEGER_WIDTHS)
def test_integers_have_every_width_that_there_is(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-128, 128, (rows, 32)).astype(np.int8) for rows in (64, n))
    c = np.zeros((64, n), np.int32)
    every_width(a, b, c, n=n, target="sim")
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32).T)


def test_reading_sums_of_integers_in_flight_is_a_race() -> None:
    @numpipe.kernel
    def early(a, c):
        for (_,), (x,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 32), lambda _: (0, 0)),)
        )(a):
            c[ds(0, 64), ds(0, 64)] = numpipe.wgmma(None, x, x.T)

    with pytest.raises(PipelineRace, match="read before"):
        early(np.ones((64, 32), np.int8), np.zeros((64, 64), np.int32), target="sim")


def test_a_step_along_k_takes_the_same_time_in_all_types() -> None:
    def predicted(dtype: Any, k: int) -> Any:
        a = numpipe.ArrayType((4096, k), dtype)
        to = numpipe.ArrayType((4096, 4096), WGMMA.by_dtype[np.dtype(dtype)].sums)
        return numpipe.explain(
            product, a, a, to, depth=128 // np.dtype(dtype).itemsize, compiled=False
        )

    whole = {name: predicted(ELEMENTS[name].dtype, 8192) for name in ("int8", "float16", "float32")}
    assert len({found.flop for found in whole.values()}) == 1
    cores = {name: found.limits["tensor cores"] for name, found in whole.items()}
    # clocks vary with the load
    assert cores["float16"] == pytest.approx(2 * cores["int8"], rel=0.25)
    assert cores["float32"] == pytest.approx(2 * cores["float16"], rel=0.25)
    assert [
        HOPPER.product.rate(record)
        for record in map(ELEMENTS.get, whole)
        if isinstance(record, Element)
    ] == [4096, 2048, 1024]
