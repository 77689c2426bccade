"""Kernels on register tiles, for the simulator and the GPU: functions and their errors,
conversions, a GEMM epilogue."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import BlockSpec, CompilerParams, cdiv, ds

F32 = np.dtype(np.float32)
ERRORS = {
    "exp": 2.5,
    "exp2": 2.5,
    "log": 1.5,
    "log2": 1.5,
    "sqrt": 0.5,
    "tanh": 2.5,
    "rsqrt": 2.5,
    "sigmoid": 4.5,
    "fma": 0.5,
    "sin": 2.5,
    "cos": 2.5,
    "tan": 4.5,
}
"""error bound of each function in ulp of float32 against float64: the bound of
`fragment.mathematics` plus half an ulp for rounding"""
APPROXIMATE = {
    "exp": (2**-21.4, 0.0),
    "exp2": (2**-21.8, 0.0),
    "log": (2**-20.5, 2**-20.5),
    "log2": (2**-21, 2**-21),
    "sqrt": (2**-22.5, 0.0),
    "tanh": (2**-10.9, 0.0),
    "rsqrt": (2**-22.4, 0.0),
    "sigmoid": (0.0, 2**-11),
    "sin": (0.0, 2**-21),
    "cos": (0.0, 2**-21),
    "tan": (2**-19, 2**-19),
}
"""(relative, absolute) error with `approx_math`, for arguments from -30 to 30 and normal results

Sine and cosine are checked up to pi, the tangent up to 1.
"""


@functools.cache
def function_kernel(name: str, approximate: bool = False) -> Any:
    """Return a kernel that computes ``y = name(x)`` for an array with 256 columns."""
    params = CompilerParams(approx_math=approximate)
    function = getattr(np, name, None) or getattr(numpipe, name)

    if name == "fma":

        @numpipe.kernel(compiler_params=params)
        def fused(x, y):
            for (i,) in numpipe.tiles(cdiv(x.shape[0], 64)):
                v = x[ds(i * 64, 64), ds(0, 256)]
                y[ds(i * 64, 64), ds(0, 256)] = numpipe.fma(v, v, -1.5)

        return fused

    @numpipe.kernel(compiler_params=params)
    def mapped(x, y):
        for (i,) in numpipe.tiles(cdiv(x.shape[0], 64)):
            y[ds(i * 64, 64), ds(0, 256)] = function(x[ds(i * 64, 64), ds(0, 256)])

    return mapped


def ranges(name: str, blocks: int) -> np.ndarray:
    """Return arguments of a function, with special values, as (64 * blocks, 256) float32."""
    rng = np.random.default_rng(7)
    count = 64 * 256 * blocks
    signed = rng.standard_normal(count) * 2.0 ** rng.integers(-20, 6, count)
    if name in ("log", "log2", "sqrt", "rsqrt"):
        signed = np.abs(signed) * 2.0 ** rng.integers(-90, 90, count)
    if name in ("sin", "cos", "tan"):
        signed *= 2.0 ** rng.integers(-20, 120, count)
        quarters = np.arange(1, count // 2) * (np.pi / 2)
        signed[-len(quarters) :] = quarters  # closest to what the range reduction cancels
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        88.7,
        88.8,
        -87.4,
        -103.5,
        -104.5,
        128.0,
        -149.0,
        -151.0,
        1e-40,
        3e38,
    ]
    signed[: len(special)] = special
    return signed.astype(np.float32).reshape(-1, 256)


def exact(name: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        return {
            "rsqrt": lambda: 1 / np.sqrt(wide),
            "sigmoid": lambda: 1 / (1 + np.exp(-wide)),
            "fma": lambda: wide * wide - 1.5,
        }.get(name, lambda: getattr(np, name)(wide))()


def errors_of(name: str, x: np.ndarray, target: str) -> float:
    """Return the largest error of a function in ulp of float32.

    Infinities and NaN must agree exactly.
    """
    y = np.zeros_like(x)
    function_kernel(name)(x, y, target=target)
    true = exact(name, x)
    with np.errstate(all="ignore"):
        rounded = true.astype(np.float32)
        assert (np.isnan(y) == np.isnan(rounded)).all()
        finite = np.isfinite(rounded) & (np.abs(rounded) < 3.3e38)
        assert (np.isfinite(y) == np.isfinite(rounded))[finite | np.isinf(true)].all()
        return float(
            (np.abs(y - true) / np.spacing(np.abs(rounded)).astype(np.float64))[
                finite & np.isfinite(y)
            ].max()
        )


@numpipe.kernel
def converted(x, n, halves, bfloats, ints, floats, mixed):
    """Convert tiles in every direction: from float32, from int32, between 16-bit types, from a
    mask."""
    v, k = x[ds(0, 64), ds(0, 64)], n[ds(0, 64), ds(0, 64)]
    half, bfloat = v.astype(np.float16), v.astype(bfloats.dtype)
    halves[ds(0, 64), ds(0, 64)] = half
    bfloats[ds(0, 64), ds(0, 64)] = bfloat
    ints[ds(0, 64), ds(0, 64)] = v.astype(np.int32)
    floats[ds(0, 64), ds(0, 64)] = k.astype(np.float32)
    mixed[ds(0, 64), ds(0, 64)] = (
        half.astype(bfloats.dtype).astype(np.float32)
        + k.astype(np.float16).astype(np.float32) * 0.5
    )
    mixed[ds(64, 64), ds(0, 64)] = (v < 1.0).astype(np.float32) + (k > 0).astype(np.int32).astype(
        np.float32
    ) * 2.0
    mixed[ds(128, 64), ds(0, 64)] = half.astype(np.float32) - bfloat.astype(np.float32)


def conversions(target: str) -> list[str]:
    """Return the conversions that differ from NumPy's; float to int32 saturates."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((64, 64)) * 2.0 ** rng.integers(-30, 35, (64, 64))).astype(np.float32)
    x[0, :8] = [np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31), 65520.0, 2.5, -0.5]
    n = rng.integers(-(2**31), 2**31, (64, 64)).astype(np.int32) >> rng.integers(
        0, 31, (64, 64)
    ).astype(np.int32)
    bf16 = ml_dtypes.bfloat16
    shapes = {
        "halves": np.zeros((64, 64), np.float16),
        "bfloats": np.zeros((64, 64), bf16),
        "ints": np.zeros((64, 64), np.int32),
        "floats": np.zeros((64, 64), F32),
        "mixed": np.zeros((192, 64), F32),
    }
    converted(x, n, *shapes.values(), target=target)
    with np.errstate(all="ignore"):
        half, bfloat = x.astype(np.float16), x.astype(bf16)
        whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
        wanted = {
            "halves": half,
            "bfloats": bfloat,
            "ints": np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32),
            "floats": n.astype(F32),
            "mixed": np.concatenate(
                [
                    half.astype(F32).astype(bf16).astype(F32)
                    + n.astype(F32).astype(np.float16).astype(F32) * np.float32(0.5),
                    (x < 1).astype(F32) + (n > 0).astype(F32) * np.float32(2),
                    half.astype(F32) - bfloat.astype(F32),
                ]
            ),
        }
        return [
            name
            for name, value in wanted.items()
            if not np.array_equal(
                value.astype(np.float64), shapes[name].astype(np.float64), equal_nan=True
            )
        ]


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg", grid=numpipe.persistent(2))
def epilogue(a, b, residual, bias, rows, scales, c, alpha, beta):
    """Compute SiLU of ``alpha a @ b.T + beta residual + bias + rows scale``.

    `bias` is a vector along the columns, `rows` along the rows.
    """
    wg = numpipe.axis_index("wg")
    for m, n in numpipe.tiles(cdiv(a.shape[0], 128), cdiv(b.shape[0], 128)):
        acc = numpipe.zeros((64, 128), np.float32)
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], 64),),
            in_specs=(
                BlockSpec((128, 64), lambda k: (m, k)),
                BlockSpec((128, 64), lambda k: (n, k)),
            ),
        )
        for (_,), (x, y) in pipe(a, b):
            acc = numpipe.wgmma(acc, x.at[ds(wg * 64, 64), :], y.T)
        r = m * 128 + wg * 64
        z = (
            acc * alpha
            + beta * residual[ds(r, 64), ds(n * 128, 128)].astype(np.float32)
            + bias[ds(n * 128, 128)]
        )
        z = z + rows[ds(r, 64)][:, None] * scales[1]
        c[ds(r, 64), ds(n * 128, 128)] = (z * numpipe.sigmoid(z)).astype(c.dtype)


def arrays_of_epilogue(shape: tuple[int, int], k: int = 64) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    m, n = shape

    def some(*size: int, dtype: Any = np.float16) -> np.ndarray:
        return rng.standard_normal(size).astype(dtype)

    return {
        "a": some(m, k),
        "b": some(n, k),
        "residual": some(m, n),
        "bias": some(n, dtype=F32),
        "rows": some(m, dtype=F32),
        "scales": np.array([1, 2, 3], F32),
        "c": np.zeros((m, n), np.float16),
        "alpha": np.float32(0.25),
        "beta": np.float32(2),
    }


def wanted_of_epilogue(arrays: dict[str, Any]) -> np.ndarray:
    a, b, residual, bias, rows = (
        arrays[name].astype(np.float64) for name in ("a", "b", "residual", "bias", "rows")
    )
    z = a @ b.T * 0.25 + 2 * residual + bias + 2 * rows[:, None]
    return (z / (1 + np.exp(-z))).astype(np.float32)


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def reduced(x, n, floats, ints):
    """Reduce with each function, along each axis, in both warpgroups; results are stacked
    vertically."""
    row = numpipe.axis_index("wg") * 64
    v, k = x[ds(row, 64), ds(0, 40)], n[ds(row, 64), ds(0, 40)]
    zero, none = numpipe.full((64, 40), 0.0, np.float32), numpipe.iota((64, 40)) * 0
    floats[ds(row, 64), ds(0, 40)] = zero + v.sum(axis=0)
    floats[ds(row + 128, 64), ds(0, 40)] = (
        zero + v.max(axis=1)[:, None] + v.min(axis=1, keepdims=True)
    )
    floats[ds(row + 256, 64), ds(0, 40)] = (
        zero + np.sum(v) + v.sum(axis=1).sum() + v.sum(axis=0).max()
    )
    floats[ds(row + 384, 64), ds(0, 40)] = (
        zero + numpipe.partial_sum(v).sum(axis=1)[:, None] + numpipe.partial_max(v).max()
    )
    ints[ds(row, 64), ds(0, 40)] = none + k.sum(axis=0) + k.max(axis=1)[:, None]
    ints[ds(row + 128, 64), ds(0, 40)] = (
        none + k.sum() + k.min(axis=0, keepdims=True) + numpipe.partial_min(k).min()
    )
    ints[ds(row + 256, 64), ds(0, 40)] = (
        none + numpipe.iota(64).sum() + (k > 0).astype(np.int32).sum()
    )


def arrays_of_reductions() -> dict[str, np.ndarray]:
    """Return small integers: sums are exact in any order."""
    rng = np.random.default_rng(4)
    return {
        "x": rng.integers(-9, 9, (128, 40)).astype(F32),
        "n": rng.integers(-9, 9, (128, 40)).astype(np.int32),
        "floats": np.zeros((512, 40), F32),
        "ints": np.zeros((384, 40), np.int32),
    }


def wanted_of_reductions(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    floats, ints = [], []
    for half in (slice(0, 64), slice(64, 128)):
        v, k = arrays["x"][half], arrays["n"][half]
        zero = np.zeros_like(v)
        floats.append(
            [
                zero + v.sum(0),
                zero + v.max(1)[:, None] + v.min(1)[:, None],
                zero + 2 * v.sum() + v.sum(0).max(),
                zero + v.sum(1)[:, None] + v.max(),
            ]
        )
        ints.append(
            [
                k * 0 + k.sum(0) + k.max(1)[:, None],
                k * 0 + k.sum() + k.min(0) + k.min(),
                k * 0 + 2016 + (k > 0).sum(),
            ]
        )
    return tuple(
        np.concatenate([part for pair in zip(*of, strict=True) for part in pair])
        for of in (floats, ints)
    )  # type: ignore


@numpipe.kernel
def voted(x, limits, y):
    """Halve blocks of 64 rows while any element exceeds the limit, at most twice."""
    halvings = 0
    for (i,) in numpipe.tiles(cdiv(x.shape[0], 64)):
        v = x[ds(i * 64, 64), ds(0, 64)]
        limit = limits[ds(i * 64, 64)][:, None]
        for _ in range(2):
            if np.any(v > limit):
                v = v * 0.5
                halvings = halvings + 1
        if (v < 0.0).all():
            v = -v
        y[ds(i * 64, 64), ds(0, 64)] = v + halvings


def wanted_of_votes(x: np.ndarray, limits: np.ndarray, ctas: int = 1) -> np.ndarray:
    y = np.zeros_like(x)
    counts = [0] * ctas
    for i in range(len(x) // 64):
        v, limit = x[64 * i : 64 * i + 64], limits[64 * i : 64 * i + 64, None]
        for _ in range(2):
            if (v > limit).any():
                v = v * np.float32(0.5)
                counts[i % ctas] += 1
        v = -v if (v < 0).all() else v
        y[64 * i : 64 * i + 64] = v + counts[i % ctas]
    return y


@functools.cache
def attention(dtype: str = "float16", lazy: bool = False) -> Any:
    """Compute flash attention of one head, 64 queries per CTA, with keys in blocks of 64.

    It has products with operands in registers, and running maxima and sums.
    """
    half = np.dtype(np.float16) if dtype == "float16" else np.dtype(ml_dtypes.bfloat16)

    @numpipe.kernel(grid=lambda q, k, v, o, scale: (cdiv(q.shape[0], 64),))
    def attend(q, k, v, o, scale):
        i = numpipe.program_id(0)
        queries = numpipe.pipeline(
            grid=(1,), max_concurrent_steps=1, in_specs=(BlockSpec((64, 64), lambda _: (i, 0)),)
        )
        for (_,), (q_tile,) in queries(q):
            m = numpipe.full(64, -1e30, np.float32)[:, None]
            total = numpipe.full((64, 8), 0.0, np.float32)
            out = numpipe.zeros((64, 64), np.float32)
            pipe = numpipe.pipeline(
                grid=(cdiv(k.shape[0], 64),),
                in_specs=(
                    BlockSpec((64, 64), lambda j: (j, 0)),
                    BlockSpec((64, 64), lambda j: (j, 0)),
                ),
            )
            for (j,), (k_tile, v_tile) in pipe(k, v):
                s = numpipe.wgmma(None, q_tile, k_tile.T)
                out = numpipe.wgmma_wait(out)  # the product of s stays in flight
                s = numpipe.wgmma_wait(s)
                s = np.where(numpipe.iota(64) + j * 64 < k.shape[0], s * scale, -1e30)
                if not lazy or np.any(numpipe.partial_max(s) > m + 8.0):
                    new = np.maximum(m, s.max(axis=1, keepdims=True))
                    change = np.exp2(m - new)
                    total = total * change
                    out = out * change
                    m = new
                p = np.exp2(s - m)
                total = total + numpipe.partial_sum(p)
                out = numpipe.wgmma(out, p.astype(half), v_tile)
            o[ds(i * 64, 64), ds(0, 64)] = (out / total.sum(axis=1, keepdims=True)).astype(o.dtype)

    return attend


def arrays_of_attention(keys: int, dtype: Any = np.float16, queries: int = 64) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((n, 64)).astype(dtype) for n in (queries, keys, keys))
    return {
        "q": q,
        "k": k,
        "v": v,
        "o": np.zeros((queries, 64), F32),
        "scale": np.float32(np.log2(np.e) / 8),
    }


def wanted_of_attention(arrays: dict[str, Any]) -> np.ndarray:
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    p = np.exp2((q @ k.T) * float(arrays["scale"]))
    return p @ v / p.sum(1, keepdims=True)


@numpipe.kernel
def whole_numbers(a, b, c, d):
    """Pass int32 tiles through shared memory, by rows and by columns, and to arrays by TMA and by
    lanes."""
    tile = numpipe.scratch(numpipe.SMEM((64, 64), np.int32))
    x = a[ds(0, 64), ds(0, 64)] << 1
    tile[...] = x
    y = tile.T[...]
    c[ds(0, 64), ds(0, 64)] = x + y * b[ds(0, 64)]
    d[ds(0, 64), ds(0, 64)] = (x < y).astype(np.int32) + (~x & 3)


def whole_numbers_are_right(target: str) -> bool:
    a = np.random.default_rng(0).integers(-1000, 1000, (64, 64)).astype(np.int32)
    b = np.arange(64, dtype=np.int32)
    c = np.zeros((64, 64), np.int32)
    d = np.zeros((64, 64), np.int32, order="F")
    whole_numbers(a, b, c, d, target=target)
    x = a << 1
    return bool((c == x + x.T * b).all() and (d == (x < x.T) + (~x & 3)).all())


PRODUCTS = [
    (64, 16, 8, "float16", False),
    (128, 48, 96, "bfloat16", False),
    (64, 64, 256, "float16", True),
    (192, 32, 64, "bfloat16", True),
]
"""(M, K, N, dtype, whether B is loaded as (N, K)) of a product with A from registers"""


@numpipe.kernel
def register_product(
    a, b, c, *, m: numpipe.Static, k: numpipe.Static, n: numpipe.Static, turned: numpipe.Static
):
    """Compute ``c = a @ b + (2 a) @ b``: a new product, then one more on its accumulator.

    Lanes load a.
    """
    left = a[ds(0, m), ds(0, k)]
    pipe = numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((n, k) if turned else (k, n), lambda _: (0, 0)),)
    )
    for (_,), (tile,) in pipe(b):
        right = tile.T if turned else tile
        acc = numpipe.wgmma(None, left, right)
        acc = numpipe.wgmma(acc, (left.astype(np.float32) * 2.0).astype(a.dtype), right)
        c[ds(0, m), ds(0, n)] = numpipe.wgmma_wait(acc)


def register_product_is_right(case: tuple[int, int, int, str, bool], target: str) -> bool:
    m, k, n, dtype, turned = case
    rng = np.random.default_rng(m + k + n)
    kind = np.dtype(np.float16) if dtype == "float16" else np.dtype(ml_dtypes.bfloat16)
    a = rng.integers(-4, 5, (m, k)).astype(kind)
    b = rng.integers(-4, 5, (n, k) if turned else (k, n)).astype(kind)
    c = np.full((m, n), np.nan, F32)
    register_product(a, b, c, m=m, k=k, n=n, turned=turned, target=target)
    return bool((c == 3 * (a.astype(F32) @ (b.T if turned else b).astype(F32))).all())


@numpipe.kernel(num_compute_wgs=3, wg_axis="wg")
def operands_of_steps(a, b, c):
    """Load the A operand of each step from shared memory into registers that the previous product
    has finished reading."""
    wg = numpipe.axis_index("wg")
    acc = numpipe.zeros((64, 96), np.float32)
    pipe = numpipe.pipeline(
        grid=(numpipe.cdiv(a.shape[1], 32),),
        max_concurrent_steps=3,
        delay_release=2,
        in_specs=(BlockSpec((192, 32), lambda k: (0, k)), BlockSpec((32, 96), lambda k: (k, 0))),
    )
    for (k,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x[ds(wg * 64, 64), :], y)
        acc = numpipe.wgmma_wait(acc, 0)
    c[ds(wg * 64, 64), ds(0, 96)] = acc


def operands_of_steps_are_right(target: str) -> bool:
    rng = np.random.default_rng(575)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((192, 1024), (1024, 96)))
    c = np.zeros((192, 96), np.float32)
    operands_of_steps(a, b, c, target=target)
    return bool((c == a.astype(np.float32) @ b.astype(np.float32)).all())
