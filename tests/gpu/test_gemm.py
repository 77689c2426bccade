"""GEMMs on a Hopper GPU: the edges, layouts and options of test_gemm_simulated.py, with the same
kernels.

Inputs are small integers, so the result must equal the rounded exact product, bit for bit. Arrays
are inside frames of NaN: what is outside an input must read as zeros, and what is outside an output
must not change.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from cublas import load_cublas  # type: ignore[import-not-found]  # examples/cublas.py
from gemm import Config, matmul  # type: ignore[import-not-found]  # examples/gemm.py
from numpipe import CompilerParams, launch
from numpipe.launch import driver
from tests.gpu.frames import Framed
from tests.kernels.kernels_for_tests import gemm
from tests.language.pipeline import test_gemm_simulated as simulated
from tests.language.pipeline.test_gemm_simulated import (
    BF16,
    F16,
    F32,
    ORDERS,
    around,
    assert_exact,
    integers,
    product,
    variant,
    with_wgs,
)

ALONE = True  # arrays of more than 2**31 elements

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "gemm.py"
DEFAULT, SMALL = Config(), Config(tm=128, tn=64, tk=64, slots=3)
REPEATS = 10


def check(
    kernel: Any,
    a: Any,
    b: Any,
    *more: Any,
    dtype: Any = None,
    order: str = "C",
    odd: bool = False,
    **statics: Any,
) -> None:
    """Run on framed copies of host arrays and compare with the exact product."""
    c = Framed.poisoned((len(a), len(b)), dtype or a.dtype, odd, order)
    assert kernel(Framed(a), Framed(b), *more, out=c, **statics) is c
    assert_exact(c.values(), a, b, dtype)


# ---- edges of M, N and K
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("m", around(DEFAULT.tm))
def test_every_edge_of_m_n_and_k(m: int, dtype: Any) -> None:
    for n, k in itertools.product(around(DEFAULT.tn), around(DEFAULT.tk)):
        check(matmul, *integers(m, n, k, dtype))


@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
@pytest.mark.parametrize("residue", range(8))
def test_every_residue_of_k_and_n(residue: int, odd: bool) -> None:
    for other in range(8):
        check(matmul, *integers(60 + residue, 256 + other, 64 + residue), odd=odd, cfg=SMALL)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("orders", ORDERS)
def test_every_major_order_of_a_and_b(orders: str, dtype: Any) -> None:
    for m, n, k in ((129, 257, 63), (264, 520, 136), (1, 1, 1), (7, 200, 9)):
        check(matmul, *integers(m, n, k, dtype, orders))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_numpy_arrays_of_every_residue(dtype: Any) -> None:
    for n, k in itertools.product(range(256, 264), range(64, 72)):
        a, b = integers(120 + n % 8, n, k, dtype)
        assert_exact(matmul(a, b, target="gpu"), a, b)


def test_numpy_arrays_of_any_strides() -> None:
    base, _ = integers(150, 1, 140)
    for a in (
        base[::2],
        base[:, ::2],
        base[::-1],
        base.T,
        base[3:, 5:],
        np.broadcast_to(base[:1], base.shape),
    ):
        assert_exact(matmul(a, a[:37], target="gpu"), a, a[:37])
        c = np.full((2 * len(a), 40), np.nan, F16)[::2, 3:]
        matmul(a, a[:37], c, target="gpu")
        assert_exact(c, a, a[:37])


@pytest.mark.parametrize(("m", "n", "k"), [(130, 70, 0), (0, 70, 64), (130, 0, 64), (0, 0, 0)])
def test_arrays_without_elements(m: int, n: int, k: int) -> None:
    a, b = integers(m, n, k)
    expected = np.zeros((m, n), F16)
    np.testing.assert_array_equal(matmul(a, b, target="gpu"), expected)
    np.testing.assert_array_equal(
        matmul(*map(launch.DeviceArray.from_host, (a, b))).copy_to_host(), expected
    )


def test_an_input_that_tma_cannot_address_is_an_error_before_anything_runs() -> None:
    a, b = integers(130, 70, 65)
    c = Framed.poisoned((130, 70), F16)
    with pytest.raises(numpipe.SpecError, match="'b'.*TMA cannot address.*copy"):
        matmul(Framed(a), Framed(b, odd=True), out=c)
    assert np.isnan(c.values()).all()


# ---- outputs
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_outputs_whose_rows_tma_cannot_address(dtype: Any) -> None:
    for m, n in ((1, 1), (129, 257), (264, 520), (500, 255)):
        check(matmul, *integers(m, n, 72, dtype), odd=True)
        a, b = integers(m, n, 72, dtype)
        # allocated: rows of n elements without padding
        dense = matmul(Framed(a), Framed(b)).copy_to_host()
        assert_exact(dense, a, b)


@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
def test_column_major_outputs(odd: bool) -> None:
    for m, n in ((130, 67), (1, 70), (256, 264), (130, 72), (136, 67)):
        check(matmul, *integers(m, n, 70), order="F", odd=odd)


@pytest.mark.parametrize("odd", [False, True], ids=["aligned", "odd"])
def test_float32_outputs(odd: bool) -> None:
    for tn, shape in itertools.product((8, 32, 192), ((130, 67), (1, 1), (300, 400))):
        check(
            simulated.to_float32,
            *integers(*shape, 90),
            1.0,
            dtype=F32,
            odd=odd,
            cfg=Config(128, tn, 64, 3),
        )


@pytest.mark.parametrize("alpha", [0.5, 3, np.float64(4), np.int64(-2)])
def test_scalars_are_run_time_values(alpha: Any) -> None:
    a, b = integers(130, 72, 65)
    expected = np.float32(alpha) * product(a, b).astype(np.float32)
    np.testing.assert_array_equal(simulated.to_float32(a, b, alpha, target="gpu"), expected)
    np.testing.assert_array_equal(
        simulated.to_float32(Framed(a), Framed(b), alpha).copy_to_host(), expected
    )


# ---- tiles, rings, warpgroups
@pytest.mark.parametrize(
    ("tn", "tk", "slots", "orders"),
    [
        (8, 64, 3, "CC"),
        (8, 32, 3, "FF"),
        (24, 32, 3, "CC"),
        (24, 64, 3, "CF"),
        (96, 96, 3, "CC"),
        (96, 32, 3, "FF"),
        (128, 16, 5, "CC"),
        (128, 128, 3, "FF"),
        (136, 32, 2, "CC"),
        (192, 64, 3, "FC"),
        (256, 128, 2, "CC"),
    ],
)
def test_tile_shapes(tn: int, tk: int, slots: int, orders: str) -> None:
    for k in (1, tk, 7 * tk + 7):
        check(matmul, *integers(300, 2 * tn + 9, k, F16, orders), cfg=Config(128, tn, tk, slots))


@pytest.mark.parametrize(("wgs", "rows"), [(1, 64), (1, 192), (2, 128), (3, 64), (4, 64)])
def test_warpgroups_share_a_tile(wgs: int, rows: int) -> None:
    check(
        with_wgs(wgs),
        *integers(2 * wgs * rows + 9, 300, 100, BF16),
        cfg=Config(wgs * rows, 64, 32, 3),
    )


@pytest.mark.parametrize(("slots", "delay"), [(1, 0), (2, 1), (3, 1), (5, 0), (5, 1)])
def test_slots_and_delayed_release(slots: int, delay: int) -> None:
    kernel = variant(compiler_params=CompilerParams(delay_release=delay))
    for k in (1, 64, 200, 1000):
        check(kernel, *integers(900, 1100, k), cfg=Config(128, 64, 64, slots))


@pytest.mark.parametrize(("store_slots", "tn"), [(1, 256), (2, 192), (3, 256), (5, 192), (8, 256)])
def test_store_slots(store_slots: int, tn: int) -> None:
    kernel = variant(compiler_params=CompilerParams(store_slots=store_slots))
    check(kernel, *integers(2100, 2200, 40), cfg=Config(128, tn, 32, 2))


# ---- orders and grids: more tiles than CTAs
@pytest.mark.parametrize(
    ("kernel", "cfg"),
    [
        (variant(gemm()), simulated.ROWS),
        (variant(gemm()), simulated.GROUPS),
        (variant(grid=(7,)), SMALL),
        (variant(grid=numpipe.persistent(3)), SMALL),
        (variant(gemm(), grid=(2, 3, 2)), simulated.ROWS),
        (simulated.a_cta_each_tile, SMALL),
        (simulated.strided_by_axes, SMALL),
    ],
    ids=["row", "groups", "7 CTAs", "3 persistent", "3-D", "a CTA a tile", "by axes"],
)
def test_orders_and_grids(kernel: Any, cfg: Any) -> None:
    for shape in ((1300, 1500, 70), (40, 2500, 130), (2500, 30, 64)):
        check(kernel, *integers(*shape), cfg=cfg)


def test_a_host_table_gives_the_tiles() -> None:
    a, b = integers(600, 300, 70)
    table = np.array(list(itertools.product(range(5), range(5))), np.int32)
    np.random.default_rng(0).shuffle(table)
    by_table, cfg = simulated.by_table, simulated.ROWS
    check(by_table, a, b, launch.DeviceArray.from_host(table), cfg=cfg)
    assert_exact(by_table(a, b, table, cfg=cfg, target="gpu"), a, b)


# ---- real numbers, repeats, sizes
def normal(rows: int, k: int, dtype: Any, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, k), np.float32).astype(dtype)


@pytest.mark.parametrize(("dtype", "unit"), [(F16, 2**-11), (BF16, 2**-8)], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(1000, 1000, 1000), (2048, 1536, 512), (333, 777, 4104)])
def test_sums_are_kept_in_float32_and_ten_repeats_are_bit_identical(
    m: int, n: int, k: int, dtype: Any, unit: float
) -> None:
    a, b = normal(m, k, dtype, 1), normal(n, k, dtype, 2)
    on_gpu = Framed(a), Framed(b)
    results = []
    for _ in range(REPEATS):
        c = Framed.poisoned((m, n), dtype)
        matmul(*on_gpu, out=c)
        results.append(c.values())
    assert all(np.array_equal(c.view(np.uint16), results[0].view(np.uint16)) for c in results)
    exact = product(a, b)
    difference = np.abs(results[0].astype(np.float64) - exact)
    magnitudes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert (difference <= unit * np.abs(exact) + k * 2**-23 * magnitudes).all()
    assert np.linalg.norm(difference) <= unit * np.linalg.norm(exact)


def sparse(rows: int, k: int, dtype: Any, seed: int) -> Any:
    """Return numbers -1, 0 and 1, of which one in eight is not 0.

    Sums of thousands of products stay exact in every type.
    """
    return (
        np.random.default_rng(seed)
        .choice(np.array([-1, 1] + [0] * 14, np.int8), (rows, k))
        .astype(dtype)
    )


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_8192_cubed_is_right_in_every_element(dtype: Any) -> None:
    size = 8192
    a, b = sparse(size, size, dtype, 1), sparse(size, size, dtype, 2)
    c = launch.DeviceArray.from_host(np.full((size, size), np.nan, dtype))
    matmul(launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b), out=c)
    weights = np.random.default_rng(3).integers(1, 100, size).astype(np.float64)
    expected = a.astype(np.float32).astype(np.float64) @ (
        weights @ b.astype(np.float32).astype(np.float64)
    )
    np.testing.assert_array_equal(c.copy_to_host().astype(np.float32) @ weights, expected)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_8192_cubed_is_as_accurate_as_cublas(dtype: Any) -> None:
    size, rows = 8192, np.arange(0, 8192, 129)
    a, b = normal(size, size, dtype, 1), normal(size, size, dtype, 2)
    on_gpu = [launch.DeviceArray.from_host(x) for x in (a, b)]
    exact = product(a[rows], b)

    def error(c: Any) -> float:
        return float(
            np.linalg.norm(c.copy_to_host()[rows].astype(np.float64) - exact)
            / np.linalg.norm(exact)
        )

    ours = error(matmul(*on_gpu))
    assert ours < {F16: 3e-4, BF16: 2.4e-3}[dtype]
    if cublas := load_cublas():
        theirs = launch.DeviceArray((size, size), dtype)
        cublas(*on_gpu, theirs)
        assert ours <= 1.05 * error(theirs)


# ---- arrays of more than 2**31 elements
TALL, WIDE = 65_536 + 128, 32_768 + 64


@pytest.fixture
def big(request: pytest.FixtureRequest) -> Any:
    """Return a poisoned bfloat16 array on the GPU with more than 2**31 elements and this many
    columns."""
    from cuda.bindings import driver as cuda

    columns = request.param
    nbytes = TALL * columns * 2
    with driver.get().on(0):
        free = cuda.cuMemGetInfo()[1]
        if free < nbytes + (1 << 30):
            pytest.skip(f"needs {nbytes >> 20} MiB of GPU memory, {free >> 20} are free")
        array = launch.DeviceArray((TALL, columns), ml_dtypes.bfloat16)
        assert TALL * columns > 2**31
        assert int(cuda.cuMemsetD8(array.__cuda_array_interface__["data"][0], 0xFF, nbytes)[0]) == 0
    return array


@pytest.mark.parametrize("big", [WIDE], indirect=True)
def test_outputs_and_inputs_of_more_than_2_to_31_elements(big: Any) -> None:
    a, b, x = sparse(TALL, 64, BF16, 1), sparse(WIDE, 64, BF16, 2), sparse(8, WIDE, BF16, 3)
    matmul(launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b), out=big)
    through = simulated.to_float32(big, launch.DeviceArray.from_host(x), 1.0).copy_to_host()
    expected = a.astype(np.float64) @ (b.astype(np.float64).T @ x.astype(np.float64).T)
    # a single element of `big` that is wrong or still NaN would show
    np.testing.assert_array_equal(through, expected)


@pytest.mark.parametrize("big", [WIDE + 1], indirect=True)
def test_outputs_of_more_than_2_to_31_elements_stored_by_the_lanes(big: Any) -> None:
    columns = WIDE + 1
    a, b = integers(TALL, columns, 8, BF16)
    matmul(launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b), out=big)
    driver.get().synchronize(0, 0)
    start = big.__cuda_array_interface__["data"][0]
    for row in (0, 1, 2**30 // columns, 2**31 // columns, TALL - 129, TALL - 1):
        found = np.empty(columns, BF16)
        driver.get().copy_out(
            found.ctypes.data,
            2 * columns,
            start + 2 * columns * row,
            2 * columns,
            2 * columns,
            1,
            0,
            0,
        )
        driver.get().synchronize(0, 0)
        assert_exact(found[None], a[row : row + 1], b)


# ---- other libraries, the reference, the example
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_the_reference_computes_the_same_product(dtype: Any) -> None:
    cublas = load_cublas()
    if cublas is None:
        pytest.skip("no package here brings cuBLAS")
    a, b = integers(300, 264, 136, dtype)
    c = Framed.poisoned((300, 264), dtype)
    cublas(Framed(a), Framed(b), c)
    assert_exact(c.values(), a, b)


def test_the_example_reports_speed_and_error() -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(EXAMPLE),
            "--shape",
            "1024,1024,1024",
            "--shape",
            "300,100,72",
            "--dtype",
            "bf16",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("target: gpu (")
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1024,1024,1024", "300,100,72"]
    assert int(rows[0][1]) > 50, "TFLOPS"
    assert all(1e-4 < float(row[-2]) < 2.4e-3 for row in rows), "the error, in front of the tile"
