"""examples/gemm_tuned.py on the GPU: layouts, batches, skinny shapes, epilogues, reproducible
bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemm_tuned
from numpipe import launch
from tests.kernels import strip_kernels
from tests.kernels.tuned_cases import EPILOGUES, RANKS, laid, layouts, matrices, product

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
PROCESSES = 4
CONFIGS = gemm_tuned.CONFIGS
SOME = ("ping-pong 128x192", "cooperative 128x128", "64x16")
"""one of each schedule, and one whose products are transposed"""
REPEATS = 20


@pytest.mark.parametrize("ranks", RANKS, ids=str)
@pytest.mark.parametrize("name", SOME)
def test_numpy_arrays_of_every_layout(name: str, ranks: tuple[int, int]) -> None:
    for m, n, k in ((300, 520, 136), (129, 77, 65), (40, 1000, 1000)):
        for a, b, out, expected in layouts(m, n, k, F16, ranks):
            gemm_tuned.matmul(a, b, out=out, cfg=CONFIGS[name], target="gpu")
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("ranks", RANKS, ids=str)
@pytest.mark.parametrize("name", SOME)
def test_tensors_of_every_layout_are_read_and_written_where_they_are(
    name: str, ranks: tuple[int, int]
) -> None:
    torch = pytest.importorskip("torch")

    def tensor(array: np.ndarray) -> object:
        """Return a tensor with the strides of `array`, its rows or columns padded to what TMA can
        address."""
        by_columns = array.strides[-1] > array.itemsize
        rows = array.swapaxes(-1, -2) if by_columns else array
        wide = torch.full(
            (*rows.shape[:-1], -(-rows.shape[-1] // 8) * 8),
            float("nan"),
            dtype=torch.bfloat16,
            device="cuda",
        )
        made = wide[..., : rows.shape[-1]]
        made.copy_(torch.from_numpy(np.ascontiguousarray(rows, np.float32)))
        return made.swapaxes(-1, -2) if by_columns else made

    for m, n, k in ((300, 520, 136), (129, 77, 65), (40, 1000, 1000)):
        for a, b, out, expected in layouts(m, n, k, BF16, ranks):
            x, y, z = map(tensor, (a, b, out))
            assert gemm_tuned.matmul(x, y, out=z, cfg=CONFIGS[name]) is z
            np.testing.assert_array_equal(z.float().cpu().numpy(), expected.astype(np.float32))  # type: ignore[attr-defined]
            c = gemm_tuned.matmul(x, y, cfg=CONFIGS[name])
            assert c.is_contiguous() and torch.equal(c, z)


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
@pytest.mark.parametrize("name", CONFIGS)
def test_device_arrays_of_either_order(name: str, orders: str) -> None:
    a, b = matrices(264, 200, 0, BF16, 1), matrices(40, 200, 0, BF16, 2)
    x, y = (
        launch.DeviceArray.from_host(laid(array, order))
        for array, order in zip((a, b), orders, strict=True)
    )
    np.testing.assert_array_equal(
        gemm_tuned.matmul(x, y, cfg=CONFIGS[name]).copy_to_host(), product(a, b, BF16)
    )
    np.testing.assert_array_equal(
        gemm_tuned.matmul(y, x, cfg=CONFIGS[name]).copy_to_host(), product(b, a, BF16)
    )


def test_jax_arrays_of_skinny_shapes() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    a, b = matrices(16, 256, 0, BF16, 1), matrices(1000, 256, 0, BF16, 2)
    c = gemm_tuned.matmul(jax.numpy.asarray(a), jax.numpy.asarray(b), cfg=CONFIGS["64x16"])
    assert c.shape == (16, 1000)
    np.testing.assert_array_equal(np.asarray(c), product(a, b, BF16))


@pytest.mark.parametrize(
    "batches, m, n, k",
    [
        (0, 16, 8192, 8192),
        (0, 128, 8192, 8192),
        (0, 8192, 48, 8192),
        (0, 512, 4096, 4096),
        (64, 1024, 1024, 1024),
        (7, 1000, 904, 1032),
    ],
)
def test_chosen_products_are_accurate_and_have_the_same_bits_every_time(
    batches: int, m: int, n: int, k: int
) -> None:
    rng = np.random.default_rng(0)
    lead = (batches,) * bool(batches)
    a, b = (rng.standard_normal((*lead, rows, k), np.float32).astype(BF16) for rows in (m, n))
    x, y = map(launch.DeviceArray.from_host, (a, b))
    out = launch.DeviceArray.from_host(np.full((*lead, m, n), np.nan, BF16))
    gemm_tuned.matmul(x, y, out=out)
    first = out.copy_to_host()
    some = np.sort(rng.choice(m, min(m, 64), replace=False))
    exact = a[..., some, :].astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)
    assert np.linalg.norm(first[..., some, :].astype(np.float64) - exact) < 2.5e-3 * np.linalg.norm(
        exact
    )
    for _ in range(REPEATS - 1):
        gemm_tuned.matmul(x, y, out=out)
        np.testing.assert_array_equal(out.copy_to_host().view(np.uint16), first.view(np.uint16))


# ---- epilogues
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("config", SOME)
def test_a_product_ends_with(config: str, name: str) -> None:
    for batches, (m, n, k) in ((0, (264, 520, 136)), (0, (129, 77, 65)), (3, (200, 136, 72))):
        assert (
            EPILOGUES[name].run(m, n, k, batches=batches, cfg=CONFIGS[config], target="gpu") < 6e-4
        )


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("config", CONFIGS)
def test_the_output_may_be_the_source(config: str, order: str) -> None:
    for dtype, most in ((F16, 6e-4), (BF16, 3e-3)):
        error = EPILOGUES["all"].run(
            520,
            1000,
            200,
            dtype=dtype,
            order=order,
            inplace=True,
            cfg=CONFIGS[config],
            target="gpu",
        )
        assert error < most


def test_a_source_with_another_memory_order_is_read_in_its_own_order() -> None:
    for order in "CF":
        assert EPILOGUES["beta c"].run(300, 200, 136, order=order, target="gpu") < 6e-4


@pytest.mark.parametrize("m", [16, 8192])
def test_a_fused_product_has_the_same_bits_every_time(m: int) -> None:
    rng = np.random.default_rng(0)
    a, b, c, bias = (
        launch.DeviceArray.from_host(rng.standard_normal(shape, np.float32).astype(BF16))
        for shape in ((m, 1024), (4096, 1024), (m, 4096), (4096,))
    )
    out = launch.DeviceArray((m, 4096), BF16)
    results = []
    for _ in range(REPEATS):
        gemm_tuned.matmul(a, b, c, alpha=0.5, beta=0.25, bias=bias, activation="gelu", out=out)
        results.append(out.copy_to_host())
    assert all(
        np.array_equal(again.view(np.uint16), results[0].view(np.uint16)) for again in results
    )


@pytest.mark.parametrize("rows, columns, width", strip_kernels.SHAPES)
def test_strips_are_given_their_first_columns(rows: int, columns: int, width: int) -> None:
    for dtype in (np.float32, np.float16):
        a, b = matrices(rows, 16, 0, F16, 1), matrices(columns, 16, 0, F16, 2)
        c = strip_kernels.numbered(
            a,
            b,
            factor=0.5,
            rows=rows,
            columns=columns,
            width=width,
            dtype=np.dtype(dtype).name,
            target="gpu",
        )
        np.testing.assert_array_equal(c, strip_kernels.expected(a, b, 0.5, dtype))
