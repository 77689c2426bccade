"""Copies of operands whose rows may begin anywhere: simulated, and what is launched for arrays on a
GPU."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from numpipe import launch, ops
from numpipe.launch.array_info import ArrayInfo
from numpipe.launch.windows import transposed
from tests.kernels.launch_fakes import CudaArray, choose_a_fake_gpu

OP, COPY, OPERANDS = (
    importlib.import_module(f"numpipe.ops.{name}") for name in ("matmul", "copy", "operands")
)
CUTS = [(2, 8, 64), (2, 32, 64), (2, 8, 256), (4, 16, 32), (4, 64, 32), (4, 16, 128)]
"""bytes per element, height and width of blocks"""


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("shape", [(5, 3, 33), (70, 0, 65), (1, 40, 300), (66, 130, 129)], ids=str)
def test_rows_are_copied_and_nothing_else_is_read(
    cut: tuple[int, int, int], shape: tuple[int, int, int]
) -> None:
    (size, height, width), (m, n, columns), rng = cut, shape, np.random.default_rng(0)
    dtype = COPY.MOVED[size]
    # two more elements per row, of which the first is skipped
    a = rng.integers(-9, 9, (m, columns + 2)).astype(dtype)
    b = rng.integers(-9, 9, (max(n, 1), columns)).astype(dtype)
    behind, pitch = -(-m // height) * height, -(-columns * size // 128) * 128 // size
    o = np.zeros((behind + n if n else m, pitch), dtype)
    numbers = dict.fromkeys(COPY.NUMBERS, 0) | {
        "columns": columns,
        "last": m - 1,
        "s3": columns + 2,
    }
    COPY.lanes(size, height, width)(
        a.reshape(-1)[1 : (m - 1) * (columns + 2) + columns + 1],
        b.reshape(-1),
        o,
        **numbers,
        above=behind // height,
        last_b=n - 1,
        step_b=columns,
        target="sim",
    )
    np.testing.assert_array_equal(o[:m, :columns], a[:, 1 : columns + 1])
    np.testing.assert_array_equal(o[behind : behind + n, :columns], b[:n])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return (cut, arrays, numbers) of each copy and (arguments,) of each product, without running
    any."""
    found: list[tuple[Any, ...]] = []
    choose_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(ops.matmul, "_written", True)  # the fake kernel stores nothing
    monkeypatch.setattr(
        OPERANDS,
        "copy_lanes",
        lambda *cut: lambda *infos, **named: found.append((cut, infos, named)),
    )
    monkeypatch.setattr(
        OP, "kernel", lambda config, form: lambda *infos, **named: found.append((infos,))
    )
    monkeypatch.setattr(
        OP.launch,
        "empty_like_kind",
        lambda info, shape, dtype, handle: CudaArray(1 << 20, shape, dtype.str),
    )
    return found


def product(a: CudaArray, b: CudaArray) -> None:
    out = CudaArray(
        1 << 24,
        (*a.__cuda_array_interface__["shape"][:-1], b.__cuda_array_interface__["shape"][0]),
        "<f2",
    )
    ops.matmul(a, transposed(launch.describe(b, "b")), out=out)


def test_one_launch_copies_both_operands(launched: list[tuple[Any, ...]]) -> None:
    product(CudaArray(4096, (20, 127), "<f2"), CudaArray(1 << 16, (40, 127), "<f2"))
    (cut, (a, b, whole), numbers), ((left, right, _),) = launched
    assert cut == (2, 8, 64) and [info.shape for info in (a, b, whole)] == [
        (20 * 127,),
        (40 * 127,),
        (24 + 40, 128),
    ]
    assert {
        name: numbers[name] for name in ("columns", "last", "last_b", "above", "s3", "step_b")
    } == {"columns": 127, "last": 19, "last_b": 39, "above": 3, "s3": 127, "step_b": 127}
    assert [(info.shape, info.strides) for info in (left, right)] == [
        ((20, 127), (256, 2)),
        ((40, 127), (256, 2)),
    ]
    assert right.ptr - left.ptr == 24 * 256, "after the first operand's last block"
    numbers = [
        number
        for info in (a, b, whole, left, right)
        for number in (info.ptr, *info.shape, *info.strides)
    ]
    assert {type(number) for number in numbers} == {int}, "addresses do not fit NumPy's int32"


def test_rows_of_an_even_number_of_elements_are_moved_in_pairs(
    launched: list[tuple[Any, ...]],
) -> None:
    product(CudaArray(4096, (20, 126), "<f2"), CudaArray(1 << 16, (40, 126), "<f2"))
    assert launched[0][0] == (4, 16, 32) and launched[0][2]["columns"] == 63
    # a begins 2 bytes past a multiple of 4
    product(CudaArray(4098, (20, 126), "<f2"), CudaArray(1 << 16, (40, 126), "<f2"))
    assert launched[2][0] == (2, 8, 64) and launched[2][2]["columns"] == 126


def test_batches_are_copied_as_rows(launched: list[tuple[Any, ...]]) -> None:
    a = CudaArray(4096, (3, 20, 127), "<f2")
    b = launch.describe(CudaArray(1 << 16, (3, 40, 127), "<f2"), "b")
    ops.matmul(a, transposed(b), out=CudaArray(1 << 24, (3, 20, 40), "<f2"))
    (_, (_, _, whole), numbers), ((left, right, _),) = launched
    assert (numbers["last"], numbers["last_b"], whole.shape) == (59, 119, (64 + 120, 128))
    assert [(info.shape, info.strides) for info in (left, right)] == [
        ((3, 20, 127), (20 * 256, 256, 2)),
        ((3, 40, 127), (40 * 256, 256, 2)),
    ]


def described(strides: tuple[int, ...], shape: tuple[int, ...] = (20, 127)) -> ArrayInfo:
    return ArrayInfo("cuda", 4096, shape, strides, np.dtype(np.float16), 0, True, None)


def test_other_layouts_are_not_rows() -> None:
    assert OPERANDS.rows_of(described((254, 2))) is not None
    assert OPERANDS.rows_of(described((0, 2))) is not None, "one row, repeated"
    for strides in ((2, 40), (-254, 2), (255, 2)):
        assert OPERANDS.rows_of(described(strides)) is None
    assert OPERANDS.rows_of(described((1 << 30, 2))) is None, (
        "places of 32 bits do not reach its end"
    )
