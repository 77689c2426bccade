"""Multi-GPU ops of numpipe.ops, simulated: results for any number of GPUs, verify and mutate, and
errors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import ArrayType, Mesh, ops
from numpipe.compile.check import gate
from numpipe.testing import mutate
from numpipe.tools.verify.mutation import CHANGES, Edit, line_of, watched
from tests.kernels.compilers import compiles
from tests.kernels.covering import examples, pairwise
from tests.kernels.recorded_calls import Recorded, recorded

GATHERED, SCATTERED, GATHER, SCATTER, REDUCE, EXCHANGE = (
    importlib.import_module(f"numpipe.ops.{name}")
    for name in (
        "all_gather_matmul",
        "matmul_reduce_scatter",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
    )
)
F16, BF16, F32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
GPUS = (1, 2, 3, 4)
SMALL = {
    GATHERED: GATHERED.Config(tn=128, slots=2, senders=1, parts=2),
    SCATTERED: SCATTERED.Config(tn=64, slots=2),
    GATHER: GATHER.Config(block=128, slots=4, chunks=2),
    SCATTER: SCATTER.Config(slots=4, near=2, chunk=3),
    EXCHANGE: EXCHANGE.Config(row_bytes=64, slots=2),
}
"""configs with several tiles, pieces and chunks for small arrays"""
Arrays = list[np.ndarray[Any, Any]]


def integers(gpus: int, *shape: int, dtype: Any = F16, order: str = "C") -> Arrays:
    """Return an array for each GPU whose sums of products are exact in float32.

    The result is rounded once, to known bits.
    """
    rng = np.random.default_rng(math.prod(shape) + gpus)
    return [np.asarray(rng.integers(-3, 4, shape), dtype, order=order) for _ in range(gpus)]  # type: ignore[call-overload]


def same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for gpu, (got, want) in enumerate(zip(found, expected, strict=True)):
        assert got.dtype == want.dtype and got.shape == want.shape, (
            f"GPU {gpu}: {got.dtype} {got.shape}"
        )
        assert got.tobytes() == want.tobytes(), (
            f"GPU {gpu}: {np.argwhere(got != want)[:3].tolist()} …"
        )


def products(a: Arrays, b: Arrays) -> Arrays:
    return [x.astype(np.float64) @ y.astype(np.float64) for x, y in zip(a, b, strict=True)]


def shares(whole: np.ndarray[Any, Any], gpus: int, dtype: Any) -> Arrays:
    """Return the rows of a sum that each GPU keeps."""
    return [each.astype(dtype) for each in np.split(whole, gpus)]


def sum_of_parts(a: Arrays, b: Arrays, parts: str, own: bool) -> np.ndarray[Any, Any]:
    """Return the sum of the products. With parts of the "input", each part is rounded, and with
    `own` also the rows that a GPU adds to those of the others."""
    found = products(a, b)
    whole = np.sum([each.astype(a[0].dtype) for each in found], 0, np.float64)
    if parts == "float32":
        return np.sum(found, 0)  # type: ignore[no-any-return]
    if own:
        return whole  # type: ignore[no-any-return]
    rows = [np.split(each, len(a)) for each in found]
    kept = [rows[gpu][gpu] for gpu in range(len(a))]
    lost = [each.astype(a[0].dtype) - each for each in kept]
    return whole - np.concatenate(lost)  # type: ignore[no-any-return]


# ---- results
@pytest.mark.variants(2, thorough=8)
@pairwise(
    gpus=GPUS,
    m=(100, 129, 8),
    k=(72, 8, 200, 77),
    n=(136, 16),
    dtype=(F16, BF16),
    a_order=("C", "F"),
    b_order=("C", "F"),
    given=(False, True),
)
def test_all_gather_matmul_is_the_product_of_all_rows(
    gpus: int, m: int, k: int, n: int, dtype: Any, a_order: str, b_order: str, given: bool
) -> None:
    a = integers(gpus, m, k, dtype=dtype, order=a_order)
    b = integers(gpus, k, n, dtype=dtype, order=b_order)
    out = [np.full((gpus * m, n), 99, dtype) for _ in range(gpus)] if given else None
    got = ops.all_gather_matmul(a, b, mesh=Mesh.simulated(gpus), out=out, config=SMALL[GATHERED])
    assert out is None or got is out
    same(got, [each.astype(dtype) for each in products([np.concatenate(a)] * gpus, b)])


@pytest.mark.variants(3, thorough=7)
@pairwise(
    gpus=GPUS,
    m=(100, 129, 8),
    k=(72, 8, 200),
    n=(136, 16, 61),
    dtype=(F16, BF16),
    a_order=("C", "F"),
    b_order=("C", "F"),
    given=(False, True),
    parts=("float32", "input"),
)
def test_matmul_reduce_scatter_is_each_gpus_rows_of_the_sum(
    gpus: int,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    a_order: str,
    b_order: str,
    given: bool,
    parts: str,
) -> None:
    a = integers(gpus, gpus * m, k, dtype=dtype, order=a_order)
    b = integers(gpus, k, n, dtype=dtype, order=b_order)
    out = [np.full((m, n), 99, dtype) for _ in range(gpus)] if given else None
    got = ops.matmul_reduce_scatter(
        a, b, mesh=Mesh.simulated(gpus), out=out, parts=parts, config=SMALL[SCATTERED]
    )
    assert out is None or got is out
    same(got, shares(sum_of_parts(a, b, parts, False), gpus, dtype))


@pytest.mark.variants(3, thorough=9)
@pairwise(
    gpus=(1, 2, 3, 5),
    m=(100, 129, 7),
    k=(72, 200),
    n=(136, 61),
    dtype=(F16, BF16),
    b_order=("C", "F"),
    given=(False, True),
    parts=("float32", "input"),
    small=(True, False),
)
def test_matmul_all_reduce_is_the_sum_on_each_gpu(
    gpus: int,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    b_order: str,
    given: bool,
    parts: str,
    small: bool,
) -> None:
    """`small`: by one kernel; otherwise rows that do not fill a tile go through two."""
    rows = gpus * m if small or m * n % 8 else m
    a = integers(gpus, rows, k, dtype=dtype)
    b = integers(gpus, k, n, dtype=dtype, order=b_order)
    out = [np.full((rows, n), 99, dtype) for _ in range(gpus)] if given else None
    got = ops.matmul_all_reduce(
        a,
        b,
        mesh=Mesh.simulated(gpus),
        out=out,
        parts=parts,
        config=SMALL[SCATTERED] if small else None,
    )
    assert out is None or got is out
    fused = rows % gpus == 0 and (small or rows // gpus >= 128 or rows * n % 8 > 0)
    same(got, [sum_of_parts(a, b, parts, not fused).astype(dtype)] * gpus)


@pytest.mark.variants(4)
@pairwise(
    gpus=GPUS,
    shape=((16,), (5, 8), (3, 40, 8), (130, 24)),
    dtype=(F16, BF16, F32, np.dtype(np.uint8), np.dtype(np.int32)),
    small=(True, False),
    given=(False, True),
)
def test_all_gather_gives_each_gpu_all_shards(
    gpus: int, shape: tuple[int, ...], dtype: Any, small: bool, given: bool
) -> None:
    x = [np.abs(each).astype(dtype) for each in integers(gpus, *shape, dtype=np.int64)]
    if x[0].nbytes % 16:
        x = [np.repeat(each, 2, axis=-1) for each in x]
    whole = np.concatenate(x)
    out = [np.full(whole.shape, 99, dtype) for _ in range(gpus)] if given else None
    got = ops.all_gather(
        x, mesh=Mesh.simulated(gpus), out=out, config=SMALL[GATHER] if small else None
    )
    assert out is None or got is out
    same(got, [whole] * gpus)


@pytest.mark.parametrize("gpus", GPUS)
def test_shards_arrive_in_a_result_that_peers_reach(gpus: int) -> None:
    """`direct`, as under `Mesh.local`, and with a result from `Mesh.empty` under `Mesh.torch`."""
    x = integers(gpus, 1, 1500, dtype=np.int32)
    out = [np.full((gpus, 1500), 99, np.int32) for _ in range(gpus)]
    GATHER.kernel(GATHER.Config(block=128, slots=4, near=2), True)(
        x, out, out, mesh=Mesh.simulated(gpus)
    )
    same(out, [np.concatenate(x)] * gpus)


@pytest.mark.variants(4, thorough=7)
@pairwise(
    gpus=GPUS,
    shape=((8,), (5, 8), (3, 40, 8), (130, 24)),
    dtype=(F16, BF16, F32),
    small=(True, False),
    given=(False, True),
)
def test_reduce_scatter_adds_float32_in_the_order_of_the_gpus(
    gpus: int, shape: tuple[int, ...], dtype: Any, small: bool, given: bool
) -> None:
    rng = np.random.default_rng(gpus)
    x = [rng.standard_normal((gpus * shape[0], *shape[1:])).astype(dtype) for _ in range(gpus)]
    total = np.zeros(x[0].shape, np.float32)
    for each in x:
        total = total + each.astype(np.float32)
    out = [np.full(shape, 99, dtype) for _ in range(gpus)] if given else None
    got = ops.reduce_scatter(
        x, mesh=Mesh.simulated(gpus), out=out, config=SMALL[SCATTER] if small else None
    )
    assert out is None or got is out
    same(got, shares(total, gpus, dtype))


@pytest.mark.variants(3, thorough=8)
@pairwise(
    gpus=(1, 2, 3, 4, 5),
    shape=((8,), (5, 8), (12, 40, 8), (780, 24)),
    dtype=(F16, BF16, F32),
    small=(True, False),
    given=(False, True),
    launches=(1, 2),
)
def test_all_reduce_adds_float32_in_the_order_of_the_gpus(
    gpus: int,
    shape: tuple[int, ...],
    dtype: Any,
    small: bool,
    given: bool,
    launches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(REDUCE, "LAUNCH", 0 if launches == 2 else 10**9)
    rng = np.random.default_rng(gpus)
    x = [rng.standard_normal(shape).astype(dtype) for _ in range(gpus)]
    total = np.zeros(shape, np.float32)
    for each in x:
        total = total + each.astype(np.float32)
    out = [np.full(shape, 99, dtype) for _ in range(gpus)] if given else None
    got: list[Any] = []
    made = recorded(
        lambda: got.append(
            ops.all_reduce(
                x, mesh=Mesh.simulated(gpus), out=out, config=SMALL[SCATTER] if small else None
            )
        ),
        monkeypatch,
    )
    assert out is None or got[0] is out
    same(got[0], [total.astype(dtype)] * gpus)
    shared = launches == 2 and gpus > 2 and x[0].nbytes % (16 * gpus) == 0
    assert [call.kernel.name for call in made] == ["reduce_scatter", "all_gather"][: 1 + shared]


@pytest.mark.variants(2)
@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 20])
def test_chunks_of_any_length_have_all_tiles(chunk: int) -> None:
    x = integers(2, 2 * 1100, 64)  # nine tiles, so that some of the last chunks have one
    found = ops.reduce_scatter(x, mesh=Mesh.simulated(2), config=SCATTER.Config(chunk=chunk))
    same(found, shares(sum(each.astype(np.float64) for each in x), 2, F16))


def exchanged(x: Arrays, counts: Arrays) -> Arrays:
    """Return the rows for each GPU."""
    begins = [np.cumsum([0, *each[:-1]]) for each in counts]
    return [
        np.concatenate(
            [x[r][begins[r][gpu] : begins[r][gpu] + counts[r][gpu]] for r in range(len(x))]
        )
        for gpu in range(len(x))
    ]


def numbers(*rows: Sequence[int]) -> Arrays:
    return [np.array(row, np.int32) for row in rows]


COUNTS = {
    "one GPU": numbers([7]),
    "blocks that are full, and not": numbers([64, 65], [130, 3]),
    "nothing for anybody": numbers([0, 0]) * 2,
    "all for one": numbers([0, 9, 0], [0, 9, 0], [0, 9, 0]),
    "none for one": numbers([5, 0, 1], [0, 0, 2], [70, 0, 0]),
    "some rows go nowhere": numbers([1, 2], [0, 1]),
    "four GPUs": numbers(*[[1, 2, 3, 4]] * 4),
}


@pytest.mark.variants(7)
@pytest.mark.parametrize("case", COUNTS)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_all_to_all_brings_rows_to_the_gpus_that_counts_say(
    case: str, dtype: Any, request: pytest.FixtureRequest
) -> None:
    counts = COUNTS[case]
    gpus, rows = len(counts), max(int(each.sum()) for each in counts) + 3
    x = integers(gpus, rows, 40, dtype=dtype)
    out = [np.full((gpus * rows, 40), 99, dtype) for _ in range(gpus)]
    got, received = ops.all_to_all(
        x, counts, mesh=Mesh.simulated(gpus), out=out, config=SMALL[EXCHANGE]
    )
    wanted = exchanged(x, counts)
    assert got is out and [each.tolist() for each in received] == np.transpose(counts).tolist()
    same([each[: len(want)] for each, want in zip(out, wanted, strict=True)], wanted)
    assert all(np.all(each[len(want) :] == 99) for each, want in zip(out, wanted, strict=True)), (
        "rows after the last stay"
    )


def test_a_negative_count_is_none_and_nothing_is_written_ahead_of_the_result() -> None:
    x, whole = integers(2, 8, 16), [np.full((24, 16), 99, F16) for _ in range(2)]
    _, received = ops.all_to_all(
        x, numbers([-3, 4], [2, -1]), mesh=Mesh.simulated(2), out=[each[8:] for each in whole]
    )
    assert [each.tolist() for each in received] == [[0, 2], [4, 0]]
    for each, rows in zip(whole, (x[1][:2], x[0][:4]), strict=True):
        np.testing.assert_array_equal(each[8 : 8 + len(rows)], rows)
        assert (each[:8] == 99).all() and (each[8 + len(rows) :] == 99).all()


@pytest.mark.parametrize("room", [0, 1, 66, 130])
def test_rows_without_room_are_lost_and_nothing_is_written_around_them(room: int) -> None:
    counts = numbers([3, 66], [2, 70])
    x, whole = integers(2, 72, 40), [np.full((room + 8, 40), 99, F16) for _ in range(2)]
    _, received = ops.all_to_all(
        x,
        counts,
        mesh=Mesh.simulated(2),
        out=[each[:room] for each in whole],
        config=SMALL[EXCHANGE],
    )
    wanted = [each[:room] for each in exchanged(x, counts)]
    same([each[: len(want)] for each, want in zip(whole, wanted, strict=True)], wanted)
    assert all(np.all(each[len(want) :] == 99) for each, want in zip(whole, wanted, strict=True))
    assert [each.tolist() for each in received] == [[3, 2], [66, 70]], (
        "the numbers are those that were sent"
    )


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize(
    "name",
    [
        "all_gather_matmul",
        "matmul_reduce_scatter",
        "matmul_all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
    ],
)
def test_eight_gpus(name: str) -> None:
    a, b, mesh = integers(8, 40, 24), integers(8, 24, 16), Mesh.simulated(8)
    if name == "all_gather_matmul":
        same(
            ops.all_gather_matmul(a, b, mesh=mesh, config=SMALL[GATHERED]),
            [each.astype(F16) for each in products([np.concatenate(a)] * 8, b)],
        )
    elif name == "matmul_reduce_scatter":
        same(
            ops.matmul_reduce_scatter(a, b, mesh=mesh, config=SMALL[SCATTERED]),
            shares(sum(products(a, b)), 8, F16),
        )  # type: ignore[arg-type]
    elif name == "matmul_all_reduce":
        same(
            ops.matmul_all_reduce(a, b, mesh=mesh, config=SMALL[SCATTERED]),
            [sum(products(a, b)).astype(F16)] * 8,  # type: ignore[union-attr]
        )
    elif name == "all_reduce":
        same(
            ops.all_reduce(a, mesh=mesh),
            [sum(each.astype(np.float32) for each in a).astype(F16)] * 8,  # type: ignore[union-attr]
        )
    elif name == "all_gather":
        same(ops.all_gather(a, mesh=mesh), [np.concatenate(a)] * 8)
    elif name == "reduce_scatter":
        same(
            ops.reduce_scatter(a, mesh=mesh),
            shares(sum(each.astype(np.float32) for each in a), 8, F16),
        )  # type: ignore[arg-type]
    else:
        counts = numbers(*np.random.default_rng(0).integers(0, 6, (8, 8)))
        got, _ = ops.all_to_all(a, counts, mesh=mesh)
        wanted = exchanged(a, counts)
        same([each[: len(want)] for each, want in zip(got, wanted, strict=True)], wanted)


@pytest.mark.parametrize(
    "op",
    [ops.all_gather_matmul, ops.matmul_reduce_scatter, ops.matmul_all_reduce],
    ids=lambda op: op.__name__,
)
def test_products_of_fractions_are_as_close_as_a_product_of_one_gpu(op: Any) -> None:
    rng, gpus = np.random.default_rng(1), 2
    a = [rng.standard_normal((64, 320)).astype(F16) for _ in range(gpus)]
    b = [rng.standard_normal((320, 32)).astype(F16) for _ in range(gpus)]
    got = op(a, b, mesh=Mesh.simulated(gpus))
    if op is ops.all_gather_matmul:
        exact = products([np.concatenate(a)] * gpus, b)
    elif op is ops.matmul_all_reduce:
        exact = [sum(products(a, b))] * gpus  # type: ignore[list-item]
    else:
        exact = np.split(sum(products(a, b)), gpus)  # type: ignore[arg-type]
    for each, want in zip(got, exact, strict=True):
        error = np.abs(each.astype(np.float64) - want)
        assert error.max() > 0 and np.all(
            error <= 2.0**-11 * np.abs(want) + 2e-6 * np.abs(want).max()
        ), "rounded once"


EMPTY: dict[str, Callable[[Mesh], tuple[Any, tuple[int, ...]]]] = {
    "no rows to multiply": lambda mesh: (
        ops.all_gather_matmul(integers(2, 0, 8), integers(2, 8, 8), mesh=mesh),
        (0, 8),
    ),
    "no columns": lambda mesh: (
        ops.all_gather_matmul(integers(2, 8, 8), integers(2, 8, 0), mesh=mesh),
        (16, 0),
    ),
    "no rows to add": lambda mesh: (
        ops.matmul_reduce_scatter(integers(2, 0, 8), integers(2, 8, 8), mesh=mesh),
        (0, 8),
    ),
    "no columns to add": lambda mesh: (
        ops.matmul_reduce_scatter(integers(2, 8, 8), integers(2, 8, 0), mesh=mesh),
        (4, 0),
    ),
    "no depth of a sum for all": lambda mesh: (
        ops.matmul_all_reduce(integers(2, 8, 0), integers(2, 0, 8), mesh=mesh),
        (8, 8),
    ),
    "no columns of a sum for all": lambda mesh: (
        ops.matmul_all_reduce(integers(2, 8, 8), integers(2, 8, 0), mesh=mesh),
        (8, 0),
    ),
    "nothing to add": lambda mesh: (ops.all_reduce(integers(2, 0, 8), mesh=mesh), (0, 8)),
    "nothing to gather": lambda mesh: (ops.all_gather(integers(2, 3, 0, 8), mesh=mesh), (6, 0, 8)),
    "nothing to scatter": lambda mesh: (ops.reduce_scatter(integers(2, 0, 8), mesh=mesh), (0, 8)),
    "no rows to exchange": lambda mesh: (
        ops.all_to_all(integers(2, 0, 8), numbers([0, 0], [0, 0]), mesh=mesh)[0],
        (0, 8),
    ),
}


@pytest.mark.parametrize("case", EMPTY)
def test_empty_arrays_give_empty_results(case: str) -> None:
    got, shape = EMPTY[case](Mesh.simulated(2))
    assert [each.shape for each in got] == [shape] * 2


@pytest.mark.parametrize(
    "op", [ops.all_gather_matmul, ops.matmul_reduce_scatter], ids=lambda op: op.__name__
)
def test_products_without_a_depth_are_zeros(op: Any) -> None:
    got = op(integers(2, 8, 0), integers(2, 0, 16), mesh=Mesh.simulated(2))
    same(got, [np.zeros((16 if op is ops.all_gather_matmul else 4, 16), F16)] * 2)


# ---- verify and mutate
def in_two_launches(*args: Any, **named: Any) -> Any:
    with mock.patch.object(REDUCE, "LAUNCH", -1):
        return ops.all_reduce(*args, **named)


def calls(gpus: int) -> dict[str, Callable[[], Any]]:
    """Return a call of each kernel, with more steps than slots and several tiles, pieces and
    chunks."""
    mesh = Mesh.simulated(gpus)
    counts = numbers(*np.random.default_rng(3).integers(0, 6, (gpus, gpus)))
    words = integers(gpus, 1, 1500, dtype=np.int32)
    room = [np.zeros((gpus, 1500), np.int32) for _ in range(gpus)]
    return {
        "all_gather_matmul": lambda: ops.all_gather_matmul(
            integers(gpus, 130, 264), integers(gpus, 264, 136), mesh=mesh, config=SMALL[GATHERED]
        ),
        "all_gather_matmul, b turned": lambda: ops.all_gather_matmul(
            integers(gpus, 130, 264),
            integers(gpus, 264, 136, order="F"),
            mesh=mesh,
            config=SMALL[GATHERED],
        ),
        "matmul_reduce_scatter": lambda: ops.matmul_reduce_scatter(
            integers(gpus, 130 * gpus, 200),
            integers(gpus, 200, 72),
            mesh=mesh,
            config=SMALL[SCATTERED],
        ),
        "matmul_reduce_scatter, parts of the input": lambda: ops.matmul_reduce_scatter(
            integers(gpus, 130 * gpus, 200),
            integers(gpus, 200, 72),
            mesh=mesh,
            parts="input",
            config=SMALL[SCATTERED],
        ),
        "matmul_all_reduce": lambda: ops.matmul_all_reduce(
            integers(gpus, 130 * gpus, 200),
            integers(gpus, 200, 72),
            mesh=mesh,
            config=SMALL[SCATTERED],
        ),
        "all_gather": lambda: ops.all_gather(
            integers(gpus, 40, 72), mesh=mesh, config=SMALL[GATHER]
        ),
        "all_gather, direct": lambda: GATHER.kernel(
            GATHER.Config(block=128, slots=4, near=2), True
        )(words, room, room, mesh=mesh),
        "reduce_scatter": lambda: ops.reduce_scatter(
            integers(gpus, 257 * gpus, 64), mesh=mesh, config=SMALL[SCATTER]
        ),
        "all_reduce": lambda: ops.all_reduce(
            integers(gpus, 257 * gpus, 64), mesh=mesh, config=SMALL[SCATTER]
        ),
        "all_reduce in two launches": lambda: in_two_launches(
            integers(gpus, 257 * gpus, 64), mesh=mesh, config=SMALL[SCATTER]
        ),
        "all_reduce, float32 parts of float16": lambda: SCATTER.kernel(64, SMALL[SCATTER], True)(
            integers(gpus, 1, 300, 64, dtype=F32),
            [np.zeros((gpus, 300, 64), F32) for _ in range(gpus)],
            [np.zeros((300, 64), F16) for _ in range(gpus)],
            mesh=mesh,
        ),
        "all_to_all": lambda: ops.all_to_all(
            integers(gpus, 6 * gpus, 72), counts, mesh=mesh, config=SMALL[EXCHANGE]
        ),
        "all_to_all, full blocks": lambda: ops.all_to_all(
            integers(gpus, 140 * gpus, 72),
            [130 + each for each in counts],
            mesh=mesh,
            config=SMALL[EXCHANGE],
        ),
    }


NAMES = tuple(calls(1))
WORKSPACES = {
    "all_gather_matmul": "gathered",
    "matmul_reduce_scatter": "parts",
    "all_gather": "room",
    "reduce_scatter": "room",
    "all_to_all": "out",
}
"""arrays whose own part on a GPU, or rows that nothing is sent to, are not written"""


def verified(call: Recorded, **options: Any) -> numpipe.tools.verify.verification.Verification:
    partial = WORKSPACES[call.kernel.name] or ()
    return call.passed_to(numpipe.verify, partial=partial, **options)  # type: ignore[no-any-return]


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "name", ["all_gather", "reduce_scatter", "all_to_all", "all_reduce", "matmul_all_reduce"]
)
def test_ten_schedules_show_no_hazard_and_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in recorded(calls(2)[name], monkeypatch):
        result = verified(call, schedules=10, ctas=2)
        assert result and not result.warnings, str(result)


@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param(gpus, marks=pytest.mark.thorough if gpus == 3 else pytest.mark.soak)
        for gpus in (3, 4, 5, 8)
    ],
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(900)
def test_more_gpus_show_no_hazard(name: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in recorded(calls(gpus)[name], monkeypatch):
        result = verified(call, schedules=3, ctas=1 + (gpus < 8))
        assert result and not result.warnings, str(result)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gpus", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_many_schedules_and_all_ctas_of_a_gpu_show_no_hazard(
    name: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with as many CTAs as a GPU has SMs, which takes longest."""
    for call in recorded(calls(gpus)[name], monkeypatch):
        result = verified(call, schedules=12)
        assert result and not result.warnings, str(result)


@pytest.mark.thorough
@pytest.mark.parametrize("direct", [False, True])
def test_all_schedules_of_a_small_all_gather_show_no_hazard(direct: bool) -> None:
    config = GATHER.Config(block=32, slots=2, chunks=1)
    x, room, out = (integers(2, rows, 64, dtype=np.int32) for rows in (1, 2, 2))
    result = numpipe.verify(
        GATHER.kernel(config, direct),
        x,
        out if direct else room,
        out,
        mesh=Mesh.simulated(2),
        schedules="all",
        ctas=1,
        partial=("room", "out"),
    )
    assert result and result.coverage is not None and result.coverage.complete, str(result)


def reports(call: Recorded, operation: str, line: str, edit: Edit) -> set[str]:
    """Return which of several schedules detect that an operation in a line was changed, in both
    roles."""
    found = set()
    for seed in (None, 0, 1, 2):

        def seen(name: str, frame: FrameType) -> Edit | None:
            return edit if name == operation and line_of(frame) == line else None

        try:
            with watched(seen):
                call.simulated(seed=seed)
        except numpipe.SimulationError as error:
            found.add(error.report.hazard if error.report is not None else type(error).__name__)
    return found


@pytest.mark.variants(1)
@pytest.mark.parametrize("gpus", [2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name != "all_gather_matmul, b turned"][::-1]
)
def test_each_signal_and_wait_that_is_left_out_or_weaker_is_reported(
    name: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in recorded(calls(gpus)[name], monkeypatch):
        lines = set()

        def seen(operation: str, frame: FrameType, lines: set[tuple[str, str]] = lines) -> None:
            if operation in ("semaphore_signal", "semaphore_wait"):
                lines.add((operation, line_of(frame)))

        with watched(seen):
            call.simulated()
        assert {operation for operation, _ in lines} == {"semaphore_signal", "semaphore_wait"}
        for operation, line in lines:
            for change, edit in {
                "left out": lambda args: None,
                **CHANGES.get(operation, {}),
            }.items():
                assert reports(call, operation, line, edit), f"{line}: {operation}, {change}"


SPARED = {
    "semaphore_wait": (
        "of one role, while the other waits: tiles come by the memory role, whose slots the "
        "compute role releases"
    ),
    "bar_sync": (
        "all stores, and loads of what peers have stored, are those of the lane that waits and "
        "signals: they are TMA's"
    ),
    "fence_proxy_async_global": "what peers have stored has come by TMA, in the async proxy",
    "fence_proxy_async": (
        "ahead of a copy over elements that were only read, as a slot is filled again: it is for "
        "those written"
    ),
}
"""operations that these kernels do not need there, but kernels with ordinary loads and stores do"""


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"]
)
def test_each_other_synchronisation_that_is_left_out_is_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in recorded(calls(2)[name], monkeypatch):
        found = call.passed_to(mutate, schedules=4)
        spared = [mutant for mutant in found.survivors if mutant.place.operation in SPARED]
        assert set(found.survivors) == set(spared), str(found)
        assert {"semaphore_signal", "semaphore_wait"} <= {
            mutant.place.operation for mutant in found.mutants if mutant.by
        }


# ---- the machine code
def at(gpus: int, *shape: int, dtype: Any = F16) -> list[ArrayType]:
    return [ArrayType(shape, dtype)] * gpus


def compiled() -> dict[str, Callable[[int], tuple[Any, ...]]]:
    """Return kernels as calls with large arrays choose them, and their arguments."""
    whole = np.dtype(np.int32)
    return {
        "all_gather_matmul": lambda n: (
            GATHERED.kernel(),
            at(n, 1, 4096, 512),
            at(n, 512, 1024),
            at(n, n, 4096, 512),
            at(n, n, 4096, 1024),
        ),
        "all_gather_matmul, b turned": lambda n: (
            GATHERED.kernel(turned=True),
            at(n, 1, 4096, 512),
            at(n, 1024, 512),
            at(n, n, 4096, 512),
            at(n, n, 4096, 1024),
        ),
        "matmul_reduce_scatter": lambda n: (
            SCATTERED.kernel(),
            at(n, n, 2048, 512),
            at(n, 512, 1024),
            at(n, n, 2048, 1024, dtype=F32),
            at(n, 2048, 1024),
        ),
        "matmul_reduce_scatter, b turned": lambda n: (
            SCATTERED.kernel(turned=True),
            at(n, n, 2048, 512),
            at(n, 1024, 512),
            at(n, n, 2048, 1024, dtype=F32),
            at(n, 2048, 1024),
        ),
        "matmul_reduce_scatter, parts of the input": lambda n: (
            SCATTERED.kernel(turned=True),
            at(n, n, 2048, 512),
            at(n, 1024, 512),
            at(n, n, 2048, 1024),
            at(n, 2048, 1024),
        ),
        "matmul_all_reduce": lambda n: (
            SCATTERED.kernel(SCATTERED.choose(2048, 1024, n, True), True, True),
            at(n, n, 2048, 512),
            at(n, 1024, 512),
            at(n, n, 2048, 1024, dtype=F32),
            at(n, n, 2048, 1024),
        ),
        "all_gather": lambda n: (
            GATHER.kernel(),
            at(n, 1, 65536, dtype=whole),
            *[at(n, n, 65536, dtype=whole)] * 2,
        ),
        "all_gather, direct": lambda n: (
            GATHER.kernel(GATHER.Config(near=12), True),
            at(n, 1, 65536, dtype=whole),
            *[at(n, n, 65536, dtype=whole)] * 2,
        ),
        "reduce_scatter": lambda n: (
            SCATTER.kernel(64),
            *[at(n, n, 4096, 64)] * 2,
            at(n, 4096, 64),
        ),
        "reduce_scatter, float32": lambda n: (
            SCATTER.kernel(64),
            *[at(n, n, 4096, 64, dtype=F32)] * 2,
            at(n, 4096, 64, dtype=F32),
        ),
        "all_reduce": lambda n: (
            SCATTER.kernel(64, everywhere=True),
            at(n, 1, 4096, 64),
            at(n, n, 4096, 64),
            at(n, 4096, 64),
        ),
        "all_to_all": lambda n: (
            EXCHANGE.kernel(),
            at(n, 1024, 256),
            *[at(n, n, dtype=whole)] * 2,
            at(n, 2048, 256),
        ),
    }


@pytest.mark.variants(0, thorough=5)
@compiles
@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("name", sorted(compiled(), key=lambda name: name != "all_gather, direct"))
def test_every_kernel_passes_the_build_gate(name: str, gpus: int) -> None:
    kernel, *arrays = compiled()[name](gpus)
    assert gate.findings(kernel.compiled(*arrays, mesh=Mesh.simulated(gpus))) == ()


# ---- random calls
@st.composite
def calls_at_random(draw: Any) -> tuple[Callable[[], Any], list[Any]]:
    """Draw a call of an op with any config on any number of GPUs, and the expected results."""

    def of(**fields: Any) -> dict[str, int]:
        return {
            name: draw(st.sampled_from(each) if type(each) is tuple else st.integers(*each))
            for name, each in fields.items()
        }

    gpus, dtype = draw(st.integers(1, 5)), draw(st.sampled_from((F16, BF16)))
    op = draw(st.sampled_from((GATHERED, SCATTERED, GATHER, SCATTER, EXCHANGE)))
    function, mesh = getattr(ops, op.__name__.rpartition(".")[2]), Mesh.simulated(gpus)
    if op in (GATHERED, SCATTERED):
        m, k, n = draw(st.integers(1, 300)), draw(st.integers(1, 200)), draw(st.integers(1, 300))
        a = integers(gpus, m * (1 if op is GATHERED else gpus), k, dtype=dtype)
        b = integers(gpus, k, n, dtype=dtype, order=draw(st.sampled_from("CF")))
        config = op.Config(
            **(
                of(tn=(128, 256), slots=[2, 4], group=[1, 4], senders=[1, 4], parts=[1, 5])
                if op is GATHERED
                else of(
                    tn=(64, 128, 160, 176, 192),
                    slots=[1, 4],
                    group=[1, 4],
                    lead=[1, 3],
                    strip=(16,),
                )
            )
        )
        wanted = (
            products([np.concatenate(a)] * gpus, b)
            if op is GATHERED
            else np.split(sum(products(a, b)), gpus)
        )
        return lambda: function(a, b, mesh=mesh, config=config), [
            each.astype(dtype) for each in wanted
        ]
    if op is EXCHANGE:
        rows, columns = draw(st.integers(0, 200)), 8 * draw(st.integers(1, 20))
        x = integers(gpus, rows, columns, dtype=dtype)
        cuts = [
            sorted(draw(st.lists(st.integers(0, rows), min_size=gpus, max_size=gpus)))
            for _ in range(gpus)
        ]
        counts = numbers(*(np.diff(each, prepend=0).tolist() for each in cuts))
        config = op.Config(
            **of(rows=(8, 16, 64), row_bytes=(16, 64, 128, 256), slots=[2, 9], own=[1, 6])
        )
        wanted = exchanged(x, counts)
        return lambda: [
            found[: len(want)]
            for found, want in zip(
                function(x, counts, mesh=mesh, config=config)[0], wanted, strict=True
            )
        ], wanted
    rows = draw(st.integers(1, 700 if op is SCATTER else 40))
    columns = draw(st.sampled_from((8, 24, 64, 72, 128)))
    x = integers(gpus, rows * (gpus if op is SCATTER else 1), columns, dtype=dtype)
    if op is GATHER:
        config = op.Config(
            **of(block=(64, 128, 512, 2048), slots=[2, 6], near=[1, 5], chunks=[1, 9])
        )
        return lambda: function(x, mesh=mesh, config=config), [np.concatenate(x)] * gpus
    config = op.Config(**of(slots=(4, 8), near=[1, 5], chunk=[1, 7]))
    return lambda: function(x, mesh=mesh, config=config), shares(
        sum(each.astype(np.float64) for each in x), gpus, dtype
    )


@given(calls_at_random())
@settings(max_examples=examples(60))
def test_any_call_gives_the_bits_of_numpy(case: tuple[Callable[[], Any], list[Any]]) -> None:
    call, wanted = case
    same(call(), wanted)


# ---- what is rejected
TWO = Mesh.simulated(2)
A, B = integers(2, 8, 16), integers(2, 16, 24)
PAIR = numbers([1, 2], [3, 4])
EVERY_SECOND = [np.zeros((8, 32), F16)[:, ::2] for _ in range(2)]
SQUARE = [np.ones((16, 16), F16), np.asfortranarray(np.ones((16, 16), F16))]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no chunks": (
        lambda: SCATTER.Config(chunk=0),
        "reduce_scatter: Config: chunk must be an int >= 1, got 0",
    ),
    "no slots": (
        lambda: SCATTERED.Config(slots=0),
        "matmul_reduce_scatter: Config: slots must be an int >= 1 or None, got 0",
    ),
    "no mesh": (
        lambda: ops.all_gather(A, mesh=None),
        "all_gather: mesh must be a numpipe.Mesh: .* got None",
    ),
    "a number as a mesh": (
        lambda: ops.all_to_all(A, PAIR, mesh=2),
        "all_to_all: mesh must be a numpipe.Mesh: .* got 2",
    ),
    "one array": (
        lambda: ops.all_gather_matmul(A[0], B, mesh=TWO),
        r"all_gather_matmul: 'a' under Mesh.simulated\(2\) must be a list of 2 arrays, one for "
        r"each GPU, "
        "got <ndarray of float16 .8, 16.>",
    ),
    "too few": (
        lambda: ops.matmul_reduce_scatter(A, B[:1], mesh=TWO),
        r"matmul_reduce_scatter: 'b' under Mesh.simulated\(2\) must be a list of 2 arrays, .* got "
        r"1 of them",
    ),
    "too many results": (
        lambda: ops.reduce_scatter(A, mesh=TWO, out=[*A, *A]),
        "reduce_scatter: 'out' under .* list of 2 arrays, one for each GPU, got 4 of them",
    ),
    "shards that differ": (
        lambda: ops.all_gather_matmul([A[0], A[1][:4]], B, mesh=TWO),
        r"all_gather_matmul: 'a' is \(8, 16\) on GPU 0 and \(4, 16\) on GPU 1: all GPUs must "
        r"have .* shape; fix: pad",
    ),
    "counts that differ": (
        lambda: ops.all_to_all(A, [PAIR[0], PAIR[1][:1]], mesh=TWO),
        r"all_to_all: 'counts' is \(2,\) on GPU 0 and \(1,\) on GPU 1",
    ),
    "types that differ": (
        lambda: ops.all_gather_matmul(A, [each.astype(BF16) for each in B], mesh=TWO),
        r"all_gather_matmul: .*float16.*bfloat16|all_gather_matmul: .*bfloat16.*float16",
    ),
    "types of GPUs that differ": (
        lambda: ops.all_gather([A[0], A[1].astype(BF16)], mesh=TWO),
        r"all_gather: 'x' is float16 on GPU 0 and bfloat16 on GPU 1",
    ),
    "a type without products": (
        lambda: ops.matmul_reduce_scatter(*[[np.zeros((4, 4), F32)] * 2] * 2, mesh=TWO),
        "matmul_reduce_scatter: 'a' .*float32",
    ),
    "a type without sums": (
        lambda: ops.reduce_scatter([np.zeros((4, 4), np.int32)] * 2, mesh=TWO),
        "reduce_scatter: 'x' .*int32",
    ),
    "counts of 64 bits": (
        lambda: ops.all_to_all(A, [each.astype(np.int64) for each in PAIR], mesh=TWO),
        "all_to_all: 'counts' .*int64",
    ),
    "layouts that differ": (
        lambda: ops.all_gather_matmul(A, SQUARE, mesh=TWO),
        r"all_gather_matmul: 'b' has strides \(32, 2\) on GPU 0 and \(2, 32\) on GPU 1: .* of one "
        r"layout",
    ),
    "layouts of what is added": (
        lambda: ops.matmul_reduce_scatter(A, SQUARE, mesh=TWO),
        "matmul_reduce_scatter: 'b' has strides .*; fix: pass copies",
    ),
    "depths": (
        lambda: ops.all_gather_matmul(A, A, mesh=TWO),
        r"all_gather_matmul: K = 16 in 'a' \(8, 16\), 8 in 'b' \(8, 16\); fix: pass b\.T "
        r"for a b \(N, K\)",
    ),
    "no matrices": (
        lambda: ops.matmul_reduce_scatter([x[None] for x in A], B, mesh=TWO),
        r"'a' and 'b' must be matrices, got \(1, 8, 16\) and \(16, 24\); "
        r"fix: reshape batches to rows",
    ),
    "rows to share": (
        lambda: ops.matmul_reduce_scatter([x[:7] for x in A], B, mesh=TWO),
        "'a' has 7 rows, which 2 GPUs cannot share evenly; fix: pad it to 8",
    ),
    "parts of another type": (
        lambda: ops.matmul_reduce_scatter(A, B, mesh=TWO, parts="bfloat16"),
        "matmul_reduce_scatter: parts must be 'float32' or 'input', got 'bfloat16'",
    ),
    "parts that are none": (
        lambda: ops.matmul_all_reduce(A, B, mesh=TWO, parts=None),
        "matmul_all_reduce: parts must be 'float32' or 'input', got None",
    ),
    "rows of a sum that are neither shared nor aligned": (
        lambda: ops.matmul_all_reduce([x[:7] for x in A], [x[:, :5] for x in B], mesh=TWO),
        r"matmul_all_reduce: 'a' has 7 rows, which 2 GPUs .* the result \(7, 5\) .*; "
        r"fix: pad 'a' to 8 rows",
    ),
    "a sum of 6 bytes": (
        lambda: ops.all_reduce([np.zeros(3, F16)] * 2, mesh=TWO),
        "all_reduce: each GPU's part of 'x' has 6 bytes, .*; fix: pad it",
    ),
    "a sum in place": (
        lambda: ops.all_reduce(A, mesh=TWO, out=A),
        "overlap",
    ),
    "sums to share": (
        lambda: ops.reduce_scatter([x[:7] for x in A], mesh=TWO),
        r"reduce_scatter: 'x' is \(7, 16\): 2 GPUs cannot share its first dimension evenly; "
        r"fix: pad it",
    ),
    "a number to share": (
        lambda: ops.reduce_scatter([np.zeros((), F16)] * 2, mesh=TWO),
        r"reduce_scatter: 'x' is \(\): 2 GPUs cannot",
    ),
    "out of another shape": (
        lambda: ops.all_gather_matmul(A, B, mesh=TWO, out=[np.zeros((8, 24), F16)] * 2),
        r"all_gather_matmul: 'out' must be float16 \(16, 24\), got float16 \(8, 24\)",
    ),
    "out of the whole": (
        lambda: ops.matmul_reduce_scatter(A, B, mesh=TWO, out=[np.zeros((8, 24), F16)] * 2),
        r"matmul_reduce_scatter: 'out' must be float16 \(4, 24\), got float16 \(8, 24\)",
    ),
    "out of a shard": (
        lambda: ops.all_gather(A, mesh=TWO, out=A),
        r"all_gather: 'out' must be float16 \(16, 16\), got float16 \(8, 16\)",
    ),
    "columns of out": (
        lambda: ops.all_to_all(A, PAIR, mesh=TWO, out=B),
        "'out' must have 16 columns, as 'x' has, got .16, 24.",
    ),
    "out that must not be written": (
        lambda: ops.all_gather(A, mesh=TWO, out=[np.broadcast_to(A[0][:1], (16, 16))] * 2),
        "'out' .*read-only",
    ),
    "every second column": (
        lambda: ops.all_gather(EVERY_SECOND, mesh=TWO),
        r"all_gather: 'x' is not contiguous, shape \(8, 16\), strides \(64, 4\) bytes; fix: x = ",
    ),
    "columns to add": (
        lambda: ops.reduce_scatter(EVERY_SECOND, mesh=TWO),
        "reduce_scatter: 'x' is not contiguous",
    ),
    "a shard of 6 bytes": (
        lambda: ops.all_gather([np.zeros(3, F16)] * 2, mesh=TWO),
        "each GPU's part of 'x' has 6 bytes, and must begin and end at a multiple of 16; "
        "fix: pad it",
    ),
    "rows of 6 bytes": (
        lambda: ops.all_to_all([np.zeros((4, 3), F16)] * 2, PAIR, mesh=TWO),
        r"'x' must be a matrix whose rows have a multiple of 16 bytes, got \(4, 3\) of float16; "
        r"fix: pad its columns",
    ),
    "counts of three": (
        lambda: ops.all_to_all(A, numbers([1, 2, 3], [1, 2, 3]), mesh=TWO),
        r"'counts' must be \(2,\), a number of rows for each GPU, got \(3,\)",
    ),
    "another op's config": (
        lambda: ops.all_gather(A, mesh=TWO, config=SMALL[SCATTER]),
        "all_gather: config must be ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_refused(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(numpipe.SpecError, match=words):
        call()
