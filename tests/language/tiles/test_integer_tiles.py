"""Register tiles of int8, uint8, int32 and uint32: the same bits as NumPy, wrapping where
requested, and code that passes the build gate."""

from __future__ import annotations

import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.compile.build import toolchain
from numpipe.compile.check import gate
from tests.kernels.compilers import compiles

TYPES = {str(np.dtype(t)): np.dtype(t) for t in (np.int32, np.uint32, np.int8, np.uint8)}
NUMBERS = {
    **TYPES,
    **{str(np.dtype(t)): np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16)},
}
SAME_SIZE = [
    ("float32", "int32"),
    ("int32", "uint32"),
    ("uint32", "float32"),
    ("float16", "bfloat16"),
    ("int8", "uint8"),
    ("uint8", "float8_e4m3fn"),
    ("float8_e5m2", "int8"),
]


def drawn(
    dtype: np.dtype, shape: tuple[int, ...], seed: int = 0, small: bool = False
) -> np.ndarray:
    """Draw numbers of all sizes; with `small`, no operation below overflows a signed type."""
    rng = np.random.default_rng([seed, dtype.itemsize])
    if dtype.kind == "u" or (dtype.kind == "i" and not small):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    if dtype.kind == "i":
        return rng.integers(-4, 4, shape).astype(dtype)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 7, shape)).astype(dtype)


@numpipe.kernel
def operations(x, y, v, out, masks, n):
    """Compute every operation of two tiles, a vector and numbers; n is read from an array of the
    tiles' type."""
    a = x[ds(0, 64), ds(0, 16)]
    b = y[ds(0, 64), ds(0, 16)]
    r = v[ds(0, 16)]
    c = v[ds(0, 64)][:, None]
    out[0, ds(0, 64), ds(0, 16)] = a + b
    out[1, ds(0, 64), ds(0, 16)] = a - b * 3
    out[2, ds(0, 64), ds(0, 16)] = a // (b | 1)
    out[3, ds(0, 64), ds(0, 16)] = a % (b | 1)
    out[4, ds(0, 64), ds(0, 16)] = (a & b) ^ ~a | r
    out[5, ds(0, 64), ds(0, 16)] = (a >> 3) + (b << 2)
    out[6, ds(0, 64), ds(0, 16)] = np.where(a < b, np.maximum(a, c), min(a, b, 7))
    out[7, ds(0, 64), ds(0, 16)] = abs(a) + np.sign(b) + np.square(r)
    out[8, ds(0, 64), ds(0, 16)] = -a + a**3 + numpipe.full((64, 16), 5, out.dtype)
    out[9, ds(0, 64), ds(0, 16)] = np.clip(a, 3, None) - np.round(b) + n[1]
    masks[ds(0, 64), ds(0, 16)] = (
        (a <= b).astype(np.int32) + 2 * (a == b).astype(np.int32) + 4 * (a > r).astype(np.int32)
    )


def arrays_of_operations(name: str) -> dict[str, np.ndarray]:
    dtype = TYPES[name]
    return {
        "x": drawn(dtype, (64, 16), 1, small=True),
        "y": drawn(dtype, (64, 16), 2, small=True),
        "v": drawn(dtype, (64,), 3, small=True),
        "out": np.zeros((10, 64, 16), dtype),
        "masks": np.zeros((64, 16), np.int32),
        "n": np.array([2, 1], dtype),
    }


def operations_wrong(name: str, target: str) -> list[Any]:
    """Return which results differ from NumPy's."""
    arrays = arrays_of_operations(name)
    operations(*arrays.values(), target=target)
    one = TYPES[name].type
    a, b, r, c = arrays["x"], arrays["y"], arrays["v"][:16], arrays["v"][:, None]
    with np.errstate(all="ignore"):
        wanted = [
            a + b,
            a - b * one(3),
            a // (b | one(1)),
            a % (b | one(1)),
            (a & b) ^ ~a | r,
            (a >> one(3)) + (b << one(2)),
            np.where(a < b, np.maximum(a, c), np.minimum(np.minimum(a, b), one(7))),
            abs(a) + np.sign(b) + np.square(r),
            -a + a**3 + one(5),
            np.clip(a, one(3), None) - b + one(1),
        ]
        masks = (a <= b) + 2 * (a == b) + 4 * (a > r)
    return [
        i
        for i, (found, right) in enumerate(zip(arrays["out"], wanted, strict=True))
        if not (found == right).all()
    ] + ([] if (arrays["masks"] == masks).all() else ["masks"])


@numpipe.kernel
def converted(x, y, line):
    """Convert a tile to another type, and a vector along each dimension, stored by lanes."""
    y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)].astype(y.dtype)
    line[ds(0, 64)] = x[3, ds(0, 64)].astype(y.dtype)


def conversion_is_numpys(have: str, want: str, target: str) -> bool:
    """Return whether a conversion equals NumPy's; floats are drawn so that they fit the integer
    type."""
    x, y = drawn(NUMBERS[have], (64, 64)), np.zeros((64, 64), NUMBERS[want])
    if x.dtype.kind not in "iu" and y.dtype.kind == "u":
        x = abs(x)
    if x.dtype.kind not in "iu" and y.dtype.itemsize == 1:
        x = np.clip(x.astype(np.float32), -128, 127).astype(x.dtype)
    line = np.zeros(64, y.dtype)
    converted(x, y, line, target=target)
    with np.errstate(all="ignore"):
        wanted = (
            x.astype(np.float32).astype(y.dtype)
            if y.dtype.kind not in "iu"
            else x.astype(x.dtype if x.dtype.kind in "iu" else np.float32).astype(y.dtype)
        )
    return bool((y == wanted).all() and (line == wanted[3]).all())


@numpipe.kernel
def same_bits(x, y, line):
    y[ds(0, 64), ds(0, 64)] = numpipe.bitcast(x[ds(0, 64), ds(0, 64)], y.dtype)
    line[ds(0, 64)] = x[3, ds(0, 64)].view(y.dtype)


def bits_wrong(have: str, want: str, target: str) -> bool:
    dtypes = {
        **NUMBERS,
        "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
        "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    }
    size = dtypes[have].itemsize
    bits = np.random.default_rng(size).integers(0, 256, (64, 64 * size)).astype(np.uint8)
    x = bits.view(dtypes[have])
    y = np.zeros((64, 64), dtypes[want])
    line = np.zeros(64, dtypes[want])
    same_bits(x, y, line, target=target)
    return not ((y.view(np.uint8) == bits).all() and (line.view(np.uint8) == bits[3]).all())


@numpipe.kernel
def wrapping(x, y):
    """Wrap int32 arithmetic on purpose: a hash, and the sign of the low 8 bits."""
    t = x[ds(0, 64), ds(0, 64)].astype(np.uint32)
    y[ds(0, 64), ds(0, 64)] = (t * 1664525 + 1013904223).astype(np.int32)
    y[ds(64, 64), ds(0, 64)] = (t << 24).astype(np.int32) >> 24


def wrapping_wrong(target: str) -> bool:
    x, y = drawn(TYPES["int32"], (64, 64)), np.zeros((128, 64), np.int32)
    wrapping(x, y, target=target)
    with np.errstate(all="ignore"):
        return not (
            y == np.concatenate([x * np.int32(1664525) + np.int32(1013904223), (x << 24) >> 24])
        ).all()


@numpipe.kernel
def unsigned_reductions(x, y, counts):
    """Reduce uint32 along both axes and in full; add atomically by TMA and by lanes."""
    t = x[ds(0, 64), ds(0, 64)]
    y[0, ds(0, 64)] = t.sum(axis=0)
    y[1, ds(0, 64)] = np.max(t, axis=1)
    y[2, ds(0, 64)] = t.min(axis=0)
    y[3, ds(0, 64)] = t.argmax(axis=1).astype(np.uint32)
    y[4, ds(0, 64)] = t.argmin(axis=0).astype(np.uint32)
    y[5, ds(0, 64)] = numpipe.full(64, t.sum(), np.uint32) + t.max()
    y[6, ds(0, 64)] = (t >> 20).mean(axis=0).astype(np.uint32)
    numpipe.atomic_add(counts.at[ds(0, 64), ds(0, 64)], t)
    numpipe.atomic_max(counts.at[64, ds(0, 64)], t.max(axis=0))


def unsigned_wrong(target: str) -> list[int]:
    x = drawn(TYPES["uint32"], (64, 64))
    y = np.zeros((7, 64), np.uint32)
    counts = drawn(TYPES["uint32"], (65, 64), 4)
    before = counts.copy()
    unsigned_reductions(x, y, counts, target=target)
    with np.errstate(all="ignore"):
        wanted = [
            x.sum(axis=0, dtype=np.uint32),
            x.max(axis=1),
            x.min(axis=0),
            x.argmax(axis=1),
            x.argmin(axis=0),
            np.full(64, x.sum(dtype=np.uint32) + x.max()),
            (x >> np.uint32(20)).mean(axis=0).astype(np.uint32),
        ]
        added = np.concatenate([before[:64] + x, np.maximum(before[64], x.max(axis=0))[None]])
    return [i for i, right in enumerate(wanted) if not (y[i] == right).all()] + (
        [] if (counts == added).all() else [7]
    )


@numpipe.kernel
def extremes_of_negations(x, high, low, both, numbers):
    """Compute maxima and minima of negations: in a reduction, of three tiles, of three numbers."""
    a = numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)], "rows 4")
    b = numpipe.load_tile(x.at[ds(64, 64), ds(0, 64)], "rows 4")
    high[ds(0, 64)], low[ds(0, 64)] = (-a).max(axis=1), (-a).min(axis=1)
    both[ds(0, 64), ds(0, 64)] = np.maximum(np.maximum(b, -a), -3 * b) + min(b, 0 - a, a)
    numbers[0], numbers[1] = max(x[0, 0], -x[0, 1], -x[0, 2]), min(x[1, 0], -x[1, 1], x[1, 2])


def extremes_wrong(target: str) -> list[str]:
    x = np.random.default_rng(76).integers(0, 64, (128, 64)).astype(np.int32)
    found = {
        "high": np.zeros(64, np.int32),
        "low": np.zeros(64, np.int32),
        "both": np.zeros((64, 64), np.int32),
        "numbers": np.zeros(2, np.int32),
    }
    extremes_of_negations(x, *found.values(), target=target)
    a, b = x[:64], x[64:]
    right = {
        "high": (-a).max(axis=1),
        "low": (-a).min(axis=1),
        "both": np.maximum(np.maximum(b, -a), -3 * b) + np.minimum(np.minimum(b, -a), a),
        "numbers": [max(x[0, 0], -x[0, 1], -x[0, 2]), min(x[1, 0], -x[1, 1], x[1, 2])],
    }
    return [name for name, value in found.items() if (value != right[name]).any()]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_operation_of_integers_is_numpys(dtype: str, target: str) -> None:
    assert operations_wrong(dtype, target) == []


@pytest.mark.parametrize(
    ("have", "want"),
    [pair for pair in itertools.permutations(NUMBERS, 2) if set(pair) & set(TYPES)],
    ids=str,
)
def test_conversions_of_integers_are_numpys(have: str, want: str, target: str) -> None:
    assert conversion_is_numpys(have, want, target)


@pytest.mark.parametrize(("have", "want"), SAME_SIZE)
def test_a_bitcast_keeps_the_bits(have: str, want: str, target: str) -> None:
    assert not bits_wrong(have, want, target)


def test_int32_wraps_where_it_is_computed_in_uint32(target: str) -> None:
    assert not wrapping_wrong(target)


def test_reductions_and_atomics_of_uint32_are_numpys(target: str) -> None:
    assert unsigned_wrong(target) == []


@pytest.mark.parametrize(
    ("dtype", "largest", "fix"),
    [
        (np.int32, 2**31 - 1, r"compute in uint32, x.astype\(np.uint32\)"),
        (np.int8, 127, r"compute in int32, x.astype\(np.int32\)"),
    ],
)
def test_a_signed_overflow_is_an_error_simulated_and_an_unsigned_one_wraps(
    dtype: Any, largest: int, fix: str
) -> None:
    @numpipe.kernel
    def one_more(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] + 1

    x = np.full((64, 64), largest, dtype)
    with pytest.raises(
        numpipe.SimulationError,
        match=f"'\\+': an element {largest + 1} overflows {np.dtype(dtype)}, .*{fix}",
    ):
        one_more.simulate(x, np.zeros_like(x))
    unsigned = np.dtype(dtype.__name__.replace("int", "uint"))
    y = np.ones((64, 64), unsigned)
    one_more.simulate(np.full((64, 64), np.iinfo(unsigned).max, unsigned), y)
    assert (y == 0).all()


@pytest.mark.parametrize("execution", ["simulate", "compiled"])
def test_a_constant_that_the_type_cannot_hold_is_refused(execution: str) -> None:
    @numpipe.kernel
    def too_large(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] + 300

    if execution == "compiled" and toolchain() is not None:
        pytest.skip("no compiler")
    x = np.zeros((64, 64), np.uint8)
    with pytest.raises(numpipe.SpecError, match="the constant 300 does not fit uint8"):
        getattr(too_large, execution)(x, x.copy())


ZEROS = {name: np.zeros((64, 64), name) for name in (*TYPES, "float32")}
COMPILED: dict[str, tuple[Any, Any]] = {
    **{
        f"operations of {name}": (
            operations,
            lambda name=name: tuple(arrays_of_operations(name).values()),
        )
        for name in TYPES
    },
    "conversion": (converted, lambda: (ZEROS["uint32"], ZEROS["float32"], ZEROS["float32"][0])),
    "bits": (same_bits, lambda: (ZEROS["uint32"], ZEROS["float32"], ZEROS["float32"][0])),
    "wrapping": (wrapping, lambda: (ZEROS["int32"], np.zeros((128, 64), np.int32))),
    "reductions": (
        unsigned_reductions,
        lambda: (ZEROS["uint32"], np.zeros((7, 64), np.uint32), np.zeros((65, 64), np.uint32)),
    ),
}


@compiles
@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_of_integers_compile_and_the_gate_finds_nothing(case: str) -> None:
    kernel, arrays = COMPILED[case]
    built = kernel.compiled(*arrays())
    assert gate.findings(built) == ()
    assert ("cvt.rn.f32.u32" in built.ptx) == (case in ("conversion", "reductions"))


@compiles
def test_a_warp_reduces_unsigned_words_with_one_instruction() -> None:
    """``redux.sync`` (PTX ISA) combines the words of all lanes of a warp."""
    ptx = unsigned_reductions.compiled(*COMPILED["reductions"][1]()).ptx
    assert {"add.u32", "max.u32"} <= set(re.findall(r"redux\.sync\.(\S+)", ptx))


@compiles
def test_bytes_of_either_sign_are_the_same_registers() -> None:
    built = converted.compiled(ZEROS["int8"], ZEROS["uint8"], ZEROS["uint8"][0])
    assert "bfe." not in built.ptx and "cvt.pack" not in built.ptx


def test_extremes_of_negations_are_numpys(target: str) -> None:
    assert extremes_wrong(target) == []


@compiles
def test_no_chain_of_extremes_has_a_negation_whose_sign_ptxas_could_drop() -> None:
    """In ``max.s32(max.s32(a, -b), c)`` the assembler of CUDA 13.0 silently drops the sign."""
    ptx = extremes_of_negations.compiled(
        np.zeros((128, 64), np.int32),
        *[np.zeros(64, np.int32)] * 2,
        np.zeros((64, 64), np.int32),
        np.zeros(2, np.int32),
    ).ptx
    negations = set(re.findall(r"neg\.s32\s+(%r\d+)", ptx))
    chained = re.findall(r"(?:max|min)\.s32\s+%r\d+, (%r\d+), (%r\d+);", ptx)
    assert negations and not any(negations & set(operands) for operands in chained)
