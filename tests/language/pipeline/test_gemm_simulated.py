"""GEMMs on the simulated SM against float64: every edge of M, N and K, tile shapes, rings, orders,
grids, layouts.

Most inputs are small integers, whose sums are exact in float32. The result must then be the rounded
exact product, bit for bit, so that an element that is loaded twice, missed or rounded twice fails a
test. The rewritten source is what runs.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import numpipe
from gemm import Config, matmul  # type: ignore[import-not-found]  # examples/gemm.py
from numpipe import BlockSpec, CompilerParams, cdiv, ds
from numpipe.compile.build import toolchain
from tests.kernels import kernels_for_tests as shared
from tests.kernels.covering import Rule, examples, pairwise

F16, BF16, F32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
SMALL = Config(tm=128, tn=64, tk=64, slots=3)
ORDERS = ["CC", "CF", "FC", "FF"]
SEEDS = [None, 0, 1]


# ---- inputs, expected values
def integers(m: int, n: int, k: int, dtype: Any = F16, orders: str = "CC") -> tuple[Any, Any]:
    """Return a (M, K) and b (N, K) of integers in -3…3, in the given memory orders."""
    rng = np.random.default_rng([m, n, k])
    a, b = (rng.integers(-3, 4, (rows, k)).astype(dtype) for rows in (m, n))
    return np.asarray(a, order=orders[0]), np.asarray(b, order=orders[1])  # type: ignore[call-overload]


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float64) @ b.astype(np.float64).T


def assert_exact(c: Any, a: Any, b: Any, dtype: Any = None) -> None:
    """Assert that c is the product of integers, rounded once."""
    expected = product(a, b).astype(dtype or a.dtype)
    assert c.shape == expected.shape and c.dtype == expected.dtype
    np.testing.assert_array_equal(c.astype(np.float64), expected.astype(np.float64))


class Framed:
    """A poisoned output inside a larger array, which must not change around it."""

    def __init__(self, shape: tuple[int, int], dtype: Any, order: str = "C") -> None:
        self.frame = np.full((shape[0] + 5, shape[1] + 16), np.nan, dtype, order=order)  # type: ignore[call-overload]
        self.inside = self.frame[2 : 2 + shape[0], 8 : 8 + shape[1]]

    def assert_rest_untouched(self) -> None:
        self.inside[...] = np.nan
        assert np.isnan(self.frame.astype(np.float64)).all()


@functools.cache
def variant(function: Any = matmul, **options: Any) -> Any:
    """Return a kernel with the body of another and other options."""
    given = {
        "out_type": matmul.options.out_type,
        "grid": numpipe.persistent(),
        "num_compute_wgs": 2,
        **options,
    }
    return numpipe.kernel(function.function, **given)


def with_wgs(count: int, **options: Any) -> Any:
    return variant(num_compute_wgs=count, **options)


# ---- edges of M, N, K
def around(tile: int) -> list[int]:
    return [1, tile - 1, tile, tile + 1, 2 * tile + 8]


@pytest.mark.variants(14)
@pairwise(m=around(SMALL.tm), n=around(SMALL.tn), k=around(SMALL.tk), dtype=(F16, BF16))
def test_every_edge_of_m_n_and_k(m: int, n: int, k: int, dtype: Any) -> None:
    a, b = integers(m, n, k, dtype)
    c = Framed((m, n), dtype)
    matmul.simulate(a, b, out=c.inside, cfg=SMALL)
    assert_exact(c.inside, a, b)
    c.assert_rest_untouched()


@pytest.mark.variants(16)
@pairwise(
    Rule(lambda residue, other: residue % 2 == other % 2),
    residue=range(8),
    other=range(8),
    orders=("CC", "FF"),
)
def test_every_residue_of_k_and_n(residue: int, other: int, orders: str) -> None:
    a, b = integers(60 + residue, 64 + other, 64 + residue, F16, orders)
    assert_exact(matmul.simulate(a, b, cfg=SMALL), a, b)


@pytest.mark.variants(8)
@pairwise(
    orders=ORDERS,
    dtype=(F16, BF16),
    seed=SEEDS,
    shape=((129, 65, 63), (264, 136, 136), (1, 1, 1), (7, 200, 9)),
)
def test_every_major_order_of_a_and_b(
    orders: str, dtype: Any, seed: int | None, shape: tuple[int, int, int]
) -> None:
    a, b = integers(*shape, dtype, orders)
    assert_exact(matmul.simulate(a, b, cfg=SMALL, seed=seed), a, b)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_a_product_of_nothing_is_zeros(dtype: Any) -> None:
    a, b = integers(130, 70, 0, dtype)
    c = matmul.simulate(a, b, cfg=SMALL)
    assert c.shape == (130, 70) and c.dtype == dtype and not c.any()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 70, 64), (130, 0, 64), (0, 0, 0), (0, 64, 0)])
def test_outputs_without_elements_are_legal(m: int, n: int, k: int) -> None:
    a, b = integers(m, n, k)
    assert matmul(a, b, cfg=SMALL, target="sim").shape == (m, n)
    assert matmul.simulate(a, b, cfg=SMALL).shape == (m, n)


# ---- real numbers
@pytest.mark.parametrize("k", [64, 1000])
@pytest.mark.parametrize(("dtype", "unit"), [(F16, 2**-11), (BF16, 2**-8)], ids=str)
def test_sums_are_kept_in_float32_and_rounded_once(dtype: Any, unit: float, k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (130, 140))
    exact, c = product(a, b), matmul.simulate(a, b, cfg=SMALL).astype(np.float64)
    magnitudes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert (np.abs(c - exact) <= unit * np.abs(exact) + k * 2**-23 * magnitudes).all()
    assert np.linalg.norm(c - exact) <= unit * np.linalg.norm(exact)


@pytest.mark.filterwarnings("error")
def test_infinities_nans_and_overflow_take_their_course() -> None:
    a, b = integers(64, 64, 16)
    a[3, 5], a[7, 2], b[9] = np.inf, np.nan, 1
    a[20], b[30] = 200, 200
    c = matmul.simulate(a, b, cfg=SMALL)
    assert np.isposinf(c[3, 9]) and np.isnan(c[7]).all() and np.isposinf(c[20, 30]), (
        "640000 is beyond float16"
    )
    rest = np.setdiff1d(np.arange(64), [3, 7])
    with np.errstate(over="ignore"):
        assert_exact(c[rest], a[rest], b)


# ---- tiles and rings
@pytest.mark.variants(8)
@pairwise(tn=(8, 24, 64, 96, 128, 192, 256), tk=(16, 32, 64, 96, 128), orders=ORDERS)
def test_tile_shapes(tn: int, tk: int, orders: str) -> None:
    a, b = integers(110, tn + 9, 2 * tk + 7, F16, orders)
    assert_exact(matmul.simulate(a, b, cfg=Config(128, tn, tk, 2)), a, b)


@pytest.mark.variants(3)
@pytest.mark.parametrize("orders", ["CC", "FF"])
@pytest.mark.parametrize(
    ("wgs", "rows"), [(1, 64), (1, 128), (1, 192), (1, 256), (2, 64), (2, 128), (3, 64), (4, 64)]
)
def test_warpgroups_share_a_tile(wgs: int, rows: int, orders: str) -> None:
    a, b = integers(2 * wgs * rows + 9, 100, 100, BF16, orders)
    assert_exact(with_wgs(wgs).simulate(a, b, cfg=Config(wgs * rows, 64, 32, 3)), a, b)


@pytest.mark.variants(4, thorough=16)
# fewer, as many and more steps than slots, over several tiles
@pairwise(
    ring=[(slots, delay) for slots in range(1, 6) for delay in (0, 1) if delay < slots],
    seed=SEEDS,
    k=(1, 64, 200, 400),
)
def test_slots_and_delayed_release(ring: tuple[int, int], seed: int | None, k: int) -> None:
    slots, delay = ring
    kernel = variant(compiler_params=CompilerParams(delay_release=delay))
    a, b = integers(264, 136, k)
    assert_exact(kernel.simulate(a, b, cfg=Config(128, 64, 64, slots), seed=seed), a, b)


@pytest.mark.variants(6)
# 17 and 3 panels, which no batch divides, and 4
@pairwise(store_slots=range(9), wgs=(1, 2, 3), tn=(136, 192, 256), seed=SEEDS)
def test_store_slots(store_slots: int, wgs: int, tn: int, seed: int | None) -> None:
    kernel = with_wgs(wgs, compiler_params=CompilerParams(store_slots=store_slots))
    a, b = integers(64 * wgs + 30, tn + 60, 40)
    assert_exact(kernel.simulate(a, b, cfg=Config(64 * wgs, tn, 16, 2), seed=seed), a, b)


# ---- outputs
@numpipe.function
def put(a, b, c, m, n, alpha, cfg):
    """Store this warpgroup's rows of tile (m, n) of alpha * a @ b.T."""
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")
    acc = numpipe.zeros((rows, cfg.tn), np.float32)
    specs = (
        BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
        BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
    )
    steps = cdiv(a.shape[1], cfg.tk)
    pipe = numpipe.pipeline(grid=(steps,), max_concurrent_steps=cfg.slots, in_specs=specs)
    for _, (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)
    part = ds(m * cfg.tm + wg * rows, rows), ds(n * cfg.tn, cfg.tn)
    c[part] = (acc * alpha).astype(c.dtype)


@numpipe.kernel(
    out_type=lambda a, b, alpha, cfg: numpipe.ArrayType((a.shape[0], b.shape[0]), np.float32),
    grid=numpipe.persistent(),
    num_compute_wgs=2,
)
def to_float32(a, b, alpha, c, *, cfg: numpipe.Static = SMALL):
    """Compute c = alpha * a @ b.T in float32."""
    for m, n in numpipe.tiles(cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)):
        put(a, b, c, m, n, alpha, cfg)


@pytest.mark.variants(3)
@pytest.mark.parametrize("tn", [8, 24, 32, 64, 192])
@pytest.mark.parametrize("shape", [(130, 67), (1, 1), (200, 100)])
def test_float32_outputs(shape: tuple[int, int], tn: int) -> None:
    a, b = integers(*shape, 90)
    c = Framed(shape, F32)
    to_float32.simulate(a, b, 1.0, out=c.inside, cfg=Config(128, tn, 64, 3))
    assert_exact(c.inside, a, b, F32)
    c.assert_rest_untouched()


@pytest.mark.parametrize(
    "alpha", [0.5, -2.0, 0, 3, np.float32(0.25), np.float64(4), np.int32(-1), np.int64(2)]
)
def test_scalars_are_run_time_values(alpha: Any) -> None:
    a, b = integers(130, 70, 65)
    c = to_float32.simulate(a, b, alpha)
    np.testing.assert_array_equal(c, np.float32(alpha) * product(a, b).astype(np.float32))


def test_scalars_may_come_before_outputs_and_be_named() -> None:
    a, b = integers(130, 70, 65)
    c = np.full((130, 70), np.nan, F32)
    to_float32(a, b, 2.0, c, target="sim")
    np.testing.assert_array_equal(to_float32(a, b, alpha=2.0, target="sim"), c)
    np.testing.assert_array_equal(c, 2 * product(a, b).astype(np.float32))


def test_an_input_without_elements_is_no_reason_not_to_run() -> None:
    a, b = integers(130, 70, 0)
    c = np.full((130, 70), np.nan, F32)
    to_float32(a, b, 2.0, c, target="sim")
    assert not c.any()


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(("m", "n"), [(130, 67), (1, 70), (70, 1), (256, 64), (129, 8)])
def test_column_major_outputs(m: int, n: int, dtype: Any) -> None:
    a, b = integers(m, n, 70, dtype)
    c = Framed((m, n), dtype, order="F")
    assert matmul.simulate(a, b, out=c.inside, cfg=SMALL) is not None
    assert_exact(c.inside, a, b)
    c.assert_rest_untouched()


@pytest.mark.parametrize(
    "view",
    [
        lambda c: c[::2, :],
        lambda c: c[:, ::2],
        lambda c: c[::-1],
        lambda c: c[:, ::-1],
        lambda c: c.T[::3, ::2],
    ],
)
def test_outputs_of_any_strides(view: Any) -> None:
    c = view(np.full((260, 270), np.nan, F16))
    a, b = integers(*c.shape, 33)
    matmul(a, b, c, cfg=SMALL, target="sim")
    assert_exact(c, a, b)


def test_outputs_by_position_by_keyword_and_allocated_are_the_same() -> None:
    a, b = integers(70, 90, 50)
    by_position, by_keyword, by_name = (np.full((70, 90), np.nan, F16) for _ in range(3))
    assert matmul(a, b, by_position, cfg=SMALL, target="sim") is None
    assert matmul(a, b, out=by_keyword, cfg=SMALL, target="sim") is by_keyword
    matmul(a=a, b=b, c=by_name, cfg=SMALL, target="sim")
    allocated = matmul(a, b, cfg=SMALL, target="sim")
    for c in (by_position, by_keyword, by_name, allocated):
        assert_exact(c, a, b)


# ---- inputs
@pytest.mark.variants(4)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2, :],
        lambda x: x[:, ::2],
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: x.T,
        lambda x: x[3:, 5:],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
    ],
)
def test_host_inputs_of_any_strides(view: Any) -> None:
    base, _ = integers(150, 1, 140)
    a = view(base)
    assert_exact(matmul(a, a[:37], cfg=SMALL, target="sim"), a, a[:37])
    b = np.asfortranarray(a[::-1])
    assert_exact(matmul(b, a, cfg=SMALL, target="sim"), b, a)


def test_inputs_may_be_read_only_and_the_same_array() -> None:
    a, _ = integers(140, 1, 70)
    before = a.copy()
    a.flags.writeable = False
    assert_exact(matmul.simulate(a, a, cfg=SMALL), a, a)
    np.testing.assert_array_equal(a, before)


# ---- orders and grids
@numpipe.kernel(
    out_type=matmul.options.out_type,
    grid_names=("m", "n"),
    num_compute_wgs=2,
    grid=lambda a, b, cfg: (cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn)),
)
def a_cta_each_tile(a, b, c, *, cfg: numpipe.Static = SMALL):
    """Use a computed grid with named axes: one CTA per tile, no tile loop."""
    put(a, b, c, numpipe.axis_index("m"), numpipe.axis_index("n"), 1.0, cfg)


@numpipe.kernel(
    out_type=matmul.options.out_type, grid=(2, 3), grid_names=("y", "x"), num_compute_wgs=2
)
def strided_by_axes(a, b, c, *, cfg: numpipe.Static = SMALL):
    """Use a fixed grid whose CTAs stride over rows and columns of tiles by the sizes of its
    axes."""
    for m in range(numpipe.axis_index("y"), cdiv(a.shape[0], cfg.tm), numpipe.axis_size("y")):
        for n in range(numpipe.axis_index("x"), cdiv(b.shape[0], cfg.tn), numpipe.axis_size("x")):
            put(a, b, c, m, n, 1.0, cfg)


MANY_TILES = [(600, 300, 40), (40, 500, 130), (700, 30, 16)]
GRIDS = [
    numpipe.persistent(1),
    numpipe.persistent(2),
    numpipe.persistent(40),
    (1,),
    (5,),
    (2, 3),
    (2, 1, 2),
    lambda a: (cdiv(a.shape[0], 128),),
    lambda a, b, cfg: (2, cdiv(b.shape[0], cfg.tn)),
]


ROWS, GROUPS = (shared.Config(128, 64, 64, 3, order=order, group=2) for order in ("row", "grouped"))
WALKS = (matmul, SMALL), (shared.gemm(), ROWS), (shared.gemm(), GROUPS)
by_table = variant(shared.gemm_by_table(), grid=numpipe.persistent(3))


@pytest.mark.variants(3, thorough=12)
@pairwise(walk=WALKS, grid=GRIDS, shape=MANY_TILES)
def test_every_grid_covers_all_tiles(walk: Any, grid: Any, shape: tuple[int, int, int]) -> None:
    kernel = variant(walk[0], grid=grid)
    a, b = integers(*shape)
    assert_exact(kernel.simulate(a, b, cfg=walk[1]), a, b)


@pytest.mark.variants(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_host_table_gives_the_tiles(seed: int | None) -> None:
    a, b = integers(600, 300, 70)
    table = np.array(list(itertools.product(range(5), range(5))), np.int32)
    np.random.default_rng(0).shuffle(table)
    for rows in (table, np.asfortranarray(np.concatenate([table, table], axis=1))):
        assert_exact(by_table.simulate(a, b, rows, cfg=ROWS, seed=seed), a, b)


def test_a_host_table_may_leave_tiles_out() -> None:
    a, b = integers(256, 128, 70)
    c = np.full((256, 128), np.nan, F16)
    by_table.simulate(a, b, np.array([[1, 0]], np.int32), out=c, cfg=ROWS)
    assert_exact(c[128:, :64], a[128:], b[:64])
    assert np.isnan(c[:128]).all() and np.isnan(c[:, 64:]).all()


@pytest.mark.variants(4)
@pairwise(kernel=(a_cta_each_tile, strided_by_axes), seed=SEEDS, shape=MANY_TILES)
def test_grids_with_named_axes(kernel: Any, seed: int | None, shape: tuple[int, int, int]) -> None:
    a, b = integers(*shape)
    assert_exact(kernel.simulate(a, b, seed=seed), a, b)


# ---- the same kernels compile
@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        (to_float32, (1.0,)),
        (a_cta_each_tile, ()),
        (strided_by_axes, ()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_was_simulated_compiles_without_spills_or_serialised_products(
    kernel: Any, more: tuple[Any, ...]
) -> None:
    if reason := toolchain():
        pytest.skip(reason)
    matrix = numpipe.ArrayType((512, 512), F16)
    assert kernel.inspect("resources", matrix, matrix, *more).clean


# ---- random kernels -------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    wgs: int
    config: Config
    delay: int
    store_slots: int
    dtype: str
    orders: str
    ctas: int
    seed: int | None


@st.composite
def cases(draw: Any) -> Case:
    wgs = draw(st.integers(1, 3))
    tm = 64 * wgs * draw(st.integers(1, 4 // wgs))  # at least 64 rows of a tile each
    # accumulators that leave free registers, with 3 compute warpgroups too
    columns = min(32, 96 * 128 // (tm // wgs) // 8)
    tn = draw(st.integers(1, columns)) * 8
    tk = draw(st.integers(1, 8)) * 16
    slots = draw(st.integers(1, 5))
    slots = max(1, min(slots, 200_000 // ((tm + tn) * tk * 2)))
    m, n, k = (draw(st.integers(0, limit)) for limit in (2 * tm + 9, 2 * tn + 9, 4 * tk + 9))
    return Case(
        m,
        n,
        k,
        wgs,
        Config(tm, tn, tk, slots),
        draw(st.integers(0, min(1, slots - 1))),
        draw(st.integers(0, 1)),
        draw(st.sampled_from(["float16", "bfloat16"])),
        draw(st.sampled_from(ORDERS)),
        draw(st.integers(1, 4)),
        draw(st.none() | st.integers(0, 2**31)),
    )


@settings(max_examples=examples(25), deadline=None)
@given(case=cases())
@example(case=Case(193, 249, 100, 3, Config(192, 248, 48, 2), 1, 1, "bfloat16", "CC", 2, 5))
def test_any_configuration(case: Case) -> None:
    kernel = with_wgs(
        case.wgs,
        grid=numpipe.persistent(case.ctas),
        compiler_params=CompilerParams(delay_release=case.delay, store_slots=case.store_slots),
    )
    a, b = integers(case.m, case.n, case.k, np.dtype(case.dtype), case.orders)
    c = kernel.simulate(a, b, cfg=case.config, seed=case.seed)
    assert_exact(c, a, b)


# ---- steps that issue fewer products than others
@numpipe.kernel(compiler_params=CompilerParams(delay_release=1))
def every_other(a, b, c, *, chosen: numpipe.Static):  # type: ignore[no-untyped-def]
    acc = numpipe.zeros((64, 64), F32)
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], 64),),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for (k,), (a_tile, b_tile) in pipe(a, b):
        if chosen:
            acc = numpipe.wgmma(acc, a_tile, b_tile.T) if k % 2 == 0 else acc
        else:
            if k % 2 == 1:
                continue
            acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    c[ds(0, 64), ds(0, 64)] = acc


@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("chosen", [False, True], ids=["continue", "if else"])
def test_a_step_without_products_does_not_release_the_slots_of_others_early(
    chosen: bool, seed: int | None
) -> None:
    a, b = integers(64, 64, 64 * 9)
    used = np.arange(64 * 9) // 64 % 2 == 0
    c = np.full((64, 64), np.nan, F32)
    every_other.simulate(a, b, c, seed=seed, chosen=chosen)
    np.testing.assert_array_equal(c, product(a[:, used], b[:, used]))
