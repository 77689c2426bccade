"""Products and conversions of 8-bit types and tf32: kernels, arrays of random shapes, and NumPy's
results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, cdiv, ds

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
S8, U8, F16, F32 = (np.dtype(t) for t in (np.int8, np.uint8, np.float16, np.float32))
NARROW = [E4M3, E5M2, S8, U8]
PAIRS = {
    f"{a} x {b}": (a, b) for kinds in ((E4M3, E5M2), (S8, U8), (F32,)) for a in kinds for b in kinds
}
TOLERANCE = {1: 2.0**-7, 4: 2.0**-16}
"""By bytes per element, relative to the sum of magnitudes.

A tensor core adds float8 products with about 14 bits of the largest one, and tf32 products in
float32, truncated.
"""


@numpipe.kernel(
    grid=lambda a, b, c: (cdiv(a.shape[0], 128), cdiv(b.shape[0], 64)),
    grid_names=("m", "n"),
    num_compute_wgs=2,
)
def product(a, b, c, *, depth: numpipe.Static):
    """Compute c = a @ b.T in tiles of 128 x 64, with 64 rows for each of two compute warpgroups."""
    m = numpipe.axis_index("m")
    n = numpipe.axis_index("n")
    own = numpipe.axis_index("wg") * 64
    acc = numpipe.zeros(
        (64, 64), np.int32 if a.dtype == np.int8 or a.dtype == np.uint8 else np.float32
    )
    pipe = numpipe.pipeline(
        grid=(cdiv(a.shape[1], depth),),
        max_concurrent_steps=3,
        in_specs=(
            BlockSpec((128, depth), lambda k: (m, k)),
            BlockSpec((64, depth), lambda k: (n, k)),
        ),
    )
    for (_,), (x, y) in pipe(a, b):
        acc = numpipe.wgmma(acc, x.at[ds(own, 64), :], y.T)
    c[ds(m * 128 + own, 64), ds(n * 64, 64)] = acc.astype(c.dtype)


def operands(
    pair: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a (M, K) and b (N, K), of moderate values or of arbitrary integers."""
    m, n, k = shape
    return tuple(
        rng.integers(np.iinfo(t).min, np.iinfo(t).max + 1, (rows, k)).astype(t)
        if t.kind in "iu"
        # type: ignore
        else rng.standard_normal((rows, k)).astype(t)
        for rows, t in zip((m, n), PAIRS[pair], strict=True)
    )


def shapes(count: int, seed: int) -> Iterator[tuple[int, int, int]]:
    """Draw (M, N, K); most are not multiples of the tile."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield tuple(int(rng.integers(1, most)) for most in (260, 140, 500))  # type: ignore[misc]


def seen(x: np.ndarray) -> np.ndarray:
    """Return what the tensor core computes with, in float64: the upper 19 bits of a float32."""
    if x.dtype == F32:
        x = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(F32)
    return x.astype(np.float64)


def wrong(
    pair: str, shape: tuple[int, int, int], rng: np.random.Generator, to: Any = None, **how: Any
) -> str:
    """Run a product and return how it differs from NumPy's, or "".

    Integers must agree exactly (in their low bits), floats within `TOLERANCE` plus one rounding.
    """
    a, b = operands(pair, shape, rng)
    whole = a.dtype.kind in "iu"
    c = np.zeros(shape[:2], to or (np.int32 if whole else F32))
    product(a, b, c, depth=128 // a.dtype.itemsize, **how)
    wanted, size = seen(a) @ seen(b).T, abs(seen(a)) @ abs(seen(b)).T
    if whole:
        return (
            ""
            if (c == wanted.astype(np.int64).astype(c.dtype)).all()
            else f"{pair} {shape}: {c} for {wanted}"
        )
    with np.errstate(all="ignore"):
        rounding = (
            0.0
            if c.dtype == F32
            else abs(wanted) * float(ml_dtypes.finfo(c.dtype).eps)
            + float(ml_dtypes.finfo(c.dtype).smallest_subnormal)
        )
    off = abs(c.astype(np.float64) - wanted) - rounding - TOLERANCE[a.dtype.itemsize] * size
    return (
        ""
        if off.max() <= 0
        else f"{pair} {shape}: {off.max()} beyond {TOLERANCE[a.dtype.itemsize]} of {size.max()}"
    )


@numpipe.kernel
def conversions(x, i, h, n, made, lanes, line, floats, whole, halves):
    """Convert float32, int32 and float16 to n's type, and from n's type.

    Results are stored by TMA, by lanes, as a vector and coalesced.
    """
    own = numpipe.scratch(SMEM((64, 64), n.dtype))
    tile = x[ds(0, 64), ds(0, 64)].astype(n.dtype)
    made[ds(0, 64), ds(0, 64)] = tile
    made[ds(64, 64), ds(0, 64)] = i[ds(0, 64), ds(0, 64)].astype(n.dtype)
    made[ds(128, 64), ds(0, 64)] = h[ds(0, 64), ds(0, 64)].astype(n.dtype)
    lanes[ds(0, 64), ds(0, 64)] = tile
    lanes[ds(64, 64), ds(0, 64)] = numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)]).astype(n.dtype)
    made[ds(256, 64), ds(0, 64)] = numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)]).astype(n.dtype)
    line[ds(0, 64)] = x[0, ds(0, 64)].astype(n.dtype)
    line[ds(64, 64)] = numpipe.layout_cast(x[ds(0, 64), ds(0, 64)].max(axis=1), "row").astype(
        n.dtype
    )
    for (_,), (block,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda _: (0, 0)),)
    )(n):
        found = block[...]
        floats[ds(0, 64), ds(0, 64)] = found.astype(np.float32)
        whole[ds(0, 64), ds(0, 64)] = found.astype(np.int32)
        halves[ds(0, 64), ds(0, 64)] = found.astype(np.float16)
        own[...] = found
    again = own[...]
    made[ds(192, 64), ds(0, 64)] = again
    floats[ds(64, 64), ds(0, 64)] = n[ds(0, 64), ds(0, 64)].astype(np.float32)


def conversion_arrays(dtype: np.dtype) -> dict[str, np.ndarray]:
    """Return numbers of all sizes, ties between neighbors, infinities and NaN; n has all bit
    patterns."""
    rng = np.random.default_rng(5)
    n = np.tile(np.arange(256, dtype=np.uint8), 16).reshape(64, 64).view(dtype)
    grid = np.sort(n.reshape(-1)[:256].astype(F32)[np.isfinite(n.reshape(-1)[:256].astype(F32))])
    middles = (grid[1:] + grid[:-1]) / 2
    special = np.array(
        [
            np.inf,
            -np.inf,
            np.nan,
            1e30,
            -1e30,
            448.1,
            464,
            465,
            -480,
            57344,
            61439,
            61440,
            65536,
            1e-12,
            -0.0,
            127.5,
            -128.5,
            128,
            255.9,
            256,
            -0.9,
            1e10,
        ],
        F32,
    )
    x = np.concatenate(
        [
            grid,
            middles,
            np.nextafter(middles, F32.type(np.inf)),
            np.nextafter(middles, F32.type(-np.inf)),
            special,
            (rng.standard_normal(4096) * 2.0 ** rng.integers(-12, 18, 4096)).astype(F32),
        ]
    )[:4096].reshape(64, 64)
    i = (rng.integers(-(2**31), 2**31, (64, 64)) >> rng.integers(0, 31, (64, 64))).astype(np.int32)
    with np.errstate(all="ignore"):
        h = x.astype(F16)
    columns = np.zeros((64, 128), dtype).T  # a column-major array, so lanes store to it
    return {
        "x": x.astype(F32),
        "i": i,
        "h": h,
        "n": n,
        "made": np.zeros((320, 64), dtype),
        "lanes": columns,
        "line": np.zeros(128, dtype),
        "floats": np.zeros((128, 64), F32),
        "whole": np.zeros((64, 64), np.int32),
        "halves": np.zeros((64, 64), F16),
    }


def narrowed(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert to an 8-bit type by an independent implementation."""
    with np.errstate(all="ignore"):
        if dtype.kind in "iu" and x.dtype.kind == "i":
            return x.astype(dtype)
        if dtype.kind in "iu":
            whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
            return np.clip(whole, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
        most = float(ml_dtypes.finfo(dtype).max)
        return np.clip(x.astype(F32), -most, most).astype(dtype)


def conversions_wrong(dtype: np.dtype, **how: Any) -> list[str]:
    """Return the names of the results that differ from `narrowed`; NaNs of any bits are equal."""
    arrays = conversion_arrays(dtype)
    conversions(*arrays.values(), **how)
    x, i, h, n = (arrays[name] for name in "xihn")
    with np.errstate(all="ignore"):
        made = np.concatenate(
            [narrowed(x, dtype), narrowed(i, dtype), narrowed(h, dtype), n, narrowed(x, dtype)]
        )
        wide = n.astype(F32)
        wanted = {
            "made": made,
            "lanes": np.concatenate([made[:64], made[:64]]),
            "line": np.concatenate([made[0], narrowed(x.max(axis=1), dtype)]),
            "floats": np.concatenate([wide, wide]),
            "whole": np.nan_to_num(np.trunc(wide.astype(np.float64)), nan=0.0)
            .clip(-(2**31), 2**31 - 1)
            .astype(np.int32),
            "halves": wide.astype(F16),
        }
    return [name for name, right in wanted.items() if not same(arrays[name], right)]


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether the bits are the same, or both are NaN."""
    if got.dtype.kind in "iu":
        return bool((got == wanted).all())
    bits = np.dtype(f"u{got.dtype.itemsize}")
    alike = np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(wanted).view(bits)
    return bool((alike | (np.isnan(got.astype(F32)) & np.isnan(wanted.astype(F32)))).all())
