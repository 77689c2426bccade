"""numpipe.ops.copy: the simplest form of a copy, the way chosen for each piece, and each way
simulated with random strides too."""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import ArrayType, launch
from numpipe.compile.build import toolchain
from numpipe.launch import driver
from numpipe.launch.arrays import describe
from numpipe.launch.windows import strided, transposed
from numpipe.ops import copy, copy_ways
from numpipe.ops.copy_ways import ways
from tests.kernels.covering import examples
from tests.kernels.launch_fakes import CudaArray, FakeDriver

# the package's attribute of this name is the function
OP = importlib.import_module("numpipe.ops.copy")


@pytest.fixture(autouse=True)
def simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def numbers(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    """Return distinct bit patterns, including NaN and infinities, at a multiple of 16 bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 16, np.uint8)
    start = -memory.ctypes.data % 16
    memory[start : start + size] = np.random.default_rng(size).integers(0, 256, size)
    return memory[start : start + size].view(dtype).reshape(shape)


def check(a: np.ndarray, **options: Any) -> None:
    made = copy(a, target="sim", **options)
    assert made.flags.c_contiguous and made.dtype == a.dtype and made.shape == a.shape
    assert made.tobytes() == np.ascontiguousarray(a).tobytes()


def way_of(
    a: np.ndarray, out: np.ndarray | None = None, padded: bool = False
) -> list[tuple[str, int]]:
    """Return (way, bytes per element) of each piece.

    Both arrays begin at multiples of 16 bytes, unless `a` is a view that does not.
    """
    strides = np.empty(a.shape, a.dtype).strides if out is None else out.strides
    return [
        (piece.way, piece.size)
        for piece in ways(a.shape, a.strides, strides, a.itemsize, (a.ctypes.data % 16, 0), padded)
    ]


X = numbers(70, 200)
ROWS, TRANSPOSED, TURNED, SECTORS = "rows", "transposed", "turned", "sectors"
LANES, BLOCKS, LINE = "lanes", "blocks", "line"
VIEWS: dict[str, tuple[np.ndarray, list[tuple[str, int]]]] = {
    "contiguous": (X, [(LINE, 4)]),
    "rows of a wider array": (X[:, 8:72], [(ROWS, 4)]),
    "rows of two batches": (numbers(3, 40, 64)[:, :19, :24], [(ROWS, 4)]),
    "transposed": (X.T, [(TURNED, 2)]),
    "transposed, odd": (X[:33, :64].T, [(TURNED, 2)]),
    "transposed, 32 bits": (numbers(40, 36, dtype=np.int32).T, [(TURNED, 4)]),
    "each of a batch transposed": (numbers(2, 24, 40).transpose(0, 2, 1), [(TURNED, 2)]),
    "odd rows from aligned ones": (X[:16, :33], [(LANES, 2)]),
    "odd rows, and some that are no super-row": (X[:11, :33], [(LANES, 2), (BLOCKS, 2)]),
    "one off": (X[:, 1:25], [(LANES, 2)]),
    "every second": (X[:16, :48:2], [(LANES, 2)]),
    "reversed rows": (X[:16:-1, :24], [(LANES, 4)]),
    "reversed columns": (X[:16, 23::-1], [(LANES, 2)]),
    "repeated rows": (np.broadcast_to(X[0, :24], (20, 24)), [(LANES, 4)]),
    "transposed from odd rows": (numbers(16, 33).T, [(TURNED, 2)]),
    "64 bits": (numbers(10, 12, dtype=np.int64).T, [(LANES, 4)]),
    "five dimensions": (
        numbers(2, 3, 4, 5, 6, dtype=np.float32).transpose(4, 2, 0, 3, 1),
        [(LANES, 4)],
    ),
    "64 bits, five dimensions": (
        numbers(4, 6, 6, 9, 6, dtype=np.int64)[::2, ::2, ::2, ::3, ::2],
        [(BLOCKS, 4)] * 2,
    ),
    "three columns": (numbers(1040, 4)[:, :3], [(LANES, 2)]),
    "8 bits, transposed": (numbers(40, 33, dtype=ml_dtypes.float8_e4m3fn).T, [(BLOCKS, 1)]),
    "transposed from few odd rows": (numbers(3, 300).T, [(TURNED, 2)]),
    "transposed from few columns": (numbers(300, 3).T, [(TURNED, 2)]),
    "one element": (numbers(1)[0:1].reshape(()), [(LINE, 2)]),
    "none": (X[:0], []),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_way_of_a_copy_follows_from_strides(name: str) -> None:
    a, expected = VIEWS[name]
    assert way_of(a) == expected


@pytest.mark.variants(3, thorough=8)
@pytest.mark.parametrize("name", VIEWS)
def test_a_copy_has_the_same_bits(name: str) -> None:
    check(VIEWS[name][0])


def test_a_long_line_is_cut_into_rows_and_a_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_ways, "SMALL", 2000)
    ways.cache_clear()
    try:
        assert way_of(X) == [(ROWS, 4), (LINE, 4)]
        check(X)
    finally:
        ways.cache_clear()


def test_tma_transposes_large_matrices_whose_rows_it_can_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_ways, "SMALL", 200)
    ways.cache_clear()
    try:
        for a, way in ((X[:64].T, TRANSPOSED), (X[:33, :64].T, "columns")):
            assert way_of(a) == [(way, 2)]
            check(a)
    finally:
        ways.cache_clear()


@pytest.mark.parametrize(
    "a, start",
    [
        (numbers(125, 12).T, 0),
        (numbers(22, 67).T, 1),
        (numbers(33 * 35 + 1)[1:].reshape(33, 35).T, 3),
        (numbers(71, 36, dtype=np.int32)[1:, 3:].T, 1),
        (numbers(2, 34, 3)[:, :33].transpose(0, 2, 1), 0),
    ],
    ids=["even", "odd", "unaligned", "32 bits", "batch"],
)
def test_large_transposes_of_any_rows_store_whole_sectors(
    a: np.ndarray, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_ways, "SMALL", 150)
    monkeypatch.setattr(copy_ways, "ROWS", 20)
    sectors = OP.sectors
    monkeypatch.setattr(OP, "sectors", lambda height, *block: sectors(64, *block))
    ways.cache_clear()
    try:
        assert way_of(a) == [(SECTORS, a.itemsize)]
        memory = np.zeros(start + a.size + 8, a.dtype)
        out = memory[start : start + a.size].reshape(a.shape)
        copy(a, out=out, target="sim")
        assert out.tobytes() == np.ascontiguousarray(a).tobytes()
        assert not memory[:start].any() and not memory[start + a.size :].any()
        assert way_of(a[..., ::-1]) == [(TURNED, a.itemsize)]
    finally:
        ways.cache_clear()


@pytest.mark.parametrize(
    "n, m, block",
    [(200, 30001, (256, 32, 2)), (327, 98892, (192, 32, 2))],
)
def test_blocks_of_sectors_have_all_rows_or_equal_heights(
    n: int, m: int, block: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple] = []
    monkeypatch.setattr(OP, "sectors", lambda *b: made.append(b) or (lambda *_, **named: None))
    source, target = (describe(np.empty(s, np.float16), "a") for s in ((n, m), (m, n)))
    OP.copy_into(transposed(source), target, {})
    assert made == [block]


@pytest.mark.parametrize("rows", [7, 130])
@pytest.mark.parametrize("start, gap", [(0, 1), (1, 0)], ids=["strides", "address"])
def test_views_that_start_inside_elements_are_not_counted_in_elements(
    rows: int, start: int, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch refuses such strides on a GPU, unless a kernel takes them as numbers."""
    monkeypatch.setattr(copy_ways, "SMALL", 100)
    ways.cache_clear()
    try:
        strides = 2, 80 + gap
        a = np.ndarray((40, rows), np.float16, numbers(rows * 81 + 1), start, strides)
        assert way_of(a) == [(TURNED, 2)]
        check(a)
    finally:
        ways.cache_clear()


@pytest.mark.parametrize("n, way", [(46340, SECTORS), (46342, TURNED)])
def test_whole_sectors_are_stored_if_int32_counts_the_elements(n: int, way: str) -> None:
    pieces = ways((n, n - 1), (2, 2 * n), (2 * (n - 1), 2), 2)
    assert [piece.way for piece in pieces] == [way]


@pytest.mark.parametrize("columns, way", [((1 << 15) - 1, SECTORS), (1 << 15, TURNED)])
def test_whole_sectors_are_stored_if_int32_is_the_number_of_elements(
    columns: int, way: str
) -> None:
    n = 1 << 16
    pieces = ways((n, columns), (2, 2 * n), (2 * columns, 2), 2, (2, 2))
    assert [piece.way for piece in pieces] == [way]


@pytest.mark.parametrize("count, way", [(65535, SECTORS), (65536, TURNED)])
def test_whole_sectors_are_stored_if_the_grid_has_a_dimension_for_matrices(
    count: int, way: str
) -> None:
    pieces = ways((count, 3, 129), (774, 2, 6), (774, 258, 2), 2)
    assert [piece.way for piece in pieces] == [way]


def test_rows_that_numbers_cannot_count_are_copied_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit of 2**31 rows would take 8 GB of float16, so the test lowers it to 70."""
    a = numbers(70, 40)[:, 1:34]
    assert [way for way, _ in way_of(a)] == [LANES, BLOCKS]
    monkeypatch.setattr(copy_ways, "_NUMBERS", 70)
    ways.cache_clear()
    try:
        assert [way for way, _ in way_of(a)] == [BLOCKS]
    finally:
        ways.cache_clear()


def test_padding_lets_tma_store_rows_that_end_anywhere() -> None:
    a = X[:20, :33]
    assert way_of(a) == [(LANES, 2), (BLOCKS, 2)]
    target = np.zeros((20, 64), np.float16)
    # the memory after its rows belongs to another array
    assert way_of(a, target[:, :33]) == [(BLOCKS, 2)]
    assert way_of(a, target[:, :33], padded=True) == [(ROWS, 2)]
    target[...] = 7
    info = describe(target, "target")
    pair = describe(a, "a"), strided(info, a.shape, info.strides)
    OP.copy_all([pair], {"target": "sim"}, padded=True)
    assert target[:, :33].tobytes() == a.tobytes() and (target[:, 40:] == 7).all()


@pytest.mark.parametrize("columns", [(9, 9), (9, 33)])
def test_two_copies_take_one_launch(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launches, lanes = [], OP.lanes
    monkeypatch.setattr(OP, "lanes", lambda *how: launches.append(how) or lanes(*how))
    pairs, arrays = [], []
    for rows, count in zip((24, 12), columns, strict=True):
        a, o = numbers(rows, count + 1)[:, 1:], np.zeros((rows, count), np.float16)
        arrays.append((a, o))
        pairs.append((describe(a, "a"), describe(o, "o")))
    OP.copy_all(pairs, {"target": "sim"})
    assert [both for *_, both in launches] == [True]
    for a, o in arrays:
        assert o.tobytes() == a.tobytes()


def test_memory_between_rows_is_unchanged_without_padding() -> None:
    target = np.full((20, 64), 7, np.float16)
    copy(X[:20, :33], out=target[:, :33], target="sim")
    assert target[:, :33].tobytes() == X[:20, :33].tobytes() and (target[:, 33:] == 7).all()


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((24, 16), np.float16, order="F"),
        np.zeros((24, 32), np.float16)[:, ::2],
        np.zeros((25, 17), np.float16)[1:, 1:],
        np.zeros((24, 16), np.float16)[::-1, ::-1],
    ],
)
def test_a_copy_goes_to_an_array_of_any_strides(out: np.ndarray) -> None:
    a = X[:16, :24].T
    assert copy(a, out=out, target="sim") is out and out.tobytes() == a.tobytes()


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Draw a view: a slice, permutation and repetition of an array of up to four dimensions."""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.uint8, np.int16, np.float64]))
    shape = draw(
        st.lists(st.integers(1, 24), min_size=1, max_size=4).filter(
            lambda shape: math.prod(shape) <= 1500
        )
    )
    a = numbers(*shape, dtype=dtype)
    for axis in range(a.ndim):
        begin = draw(st.integers(0, a.shape[axis] - 1))
        step = draw(st.sampled_from([1, 1, 1, 2, 3, -1]))
        a = a[
            (slice(None),) * axis
            + (slice(begin, None, step) if step > 0 else slice(None, None, step),)
        ]
    a = a.transpose(draw(st.permutations(range(a.ndim))))
    if draw(st.booleans()):
        a = np.broadcast_to(a, (draw(st.integers(1, 3)), *a.shape))
    return a


@settings(max_examples=examples(12), deadline=None)
@given(views())
def test_random_views_are_copied_to_the_bit(a: np.ndarray) -> None:
    check(a)


@settings(max_examples=examples(100), deadline=None)
@given(views(), st.booleans())
def test_pieces_cover_each_element_once(a: np.ndarray, padded: bool) -> None:
    pitch = -(-a.shape[-1] * a.itemsize // 16) * 16 if padded else a.shape[-1] * a.itemsize
    count = math.prod(a.shape[:-1])
    strides = (*np.empty((*a.shape[:-1], pitch), np.uint8).strides[:-1], a.itemsize)
    target, written = np.zeros(count * pitch, np.uint8), np.zeros(count * pitch, np.int32)
    low = a.ctypes.data
    for piece in ways(a.shape, a.strides, strides, a.itemsize, (a.ctypes.data % 16, 0), padded):
        source, places = piece.source, _places(piece.target)
        if piece.way == "lanes":
            found, keep = _looked_up(piece)
            found = low + found
        else:
            found = low + _places(source)
            if piece.way in (TRANSPOSED, TURNED, SECTORS, "columns"):
                found = found.swapaxes(2, 3)
            keep = np.ones(found.shape, bool)
            places = places[..., : found.shape[-1]]  # more than that is padding
        assert found.shape == places.shape
        for at, to in zip(found[keep].tolist(), places[keep].tolist(), strict=True):
            for byte in range(piece.size):
                target[to + byte] = ctypes.c_uint8.from_address(at + byte).value
                written[to + byte] += 1
    rows = target.reshape(count, pitch)[:, : a.shape[-1] * a.itemsize]
    assert rows.tobytes() == np.ascontiguousarray(a).tobytes()
    assert (written.reshape(count, pitch)[:, : a.shape[-1] * a.itemsize] == 1).all()


def _places(part: Any) -> np.ndarray:
    """Return the byte offset of each element of a piece."""
    return part.offset + sum(
        (np.arange(size) * stride).reshape([-1] + [1] * (len(part.shape) - axis - 1))
        for axis, (size, stride) in enumerate(zip(part.shape, part.strides, strict=True))
    )


def _looked_up(piece: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the byte offset of the source's element for each element of the super-rows, as `lanes`
    computes it, and whether there is one."""
    places = _places(piece.source)
    places = places.reshape(-1, places.shape[-1])
    row, column = np.indices(piece.target.shape)
    within, column = np.divmod(column, piece.pitch)
    count, columns = places.shape
    group = piece.target.shape[1] // piece.pitch
    row = np.minimum(row * group + within, count - 1)
    return places[row, np.minimum(column, columns - 1)], column < columns


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"a": [1, 2]}, "argument 'a' of kernel 'copy': a list is not an array"),
        ({"a": X.astype(np.complex64)}, "element type complex64 .* is not supported"),
        (
            {"a": X, "out": np.zeros((70, 100), np.float16)},
            r"copy: 'out' must be float16 \(70, 200\), got float16 \(70, 100\)",
        ),
        (
            {"a": X, "out": np.zeros((70, 200), np.float32)},
            "copy: 'out' must be float16 .*, got float32",
        ),
        (
            {"a": X[:, :64], "out": X[:, 32:96]},
            "argument 'out' of kernel 'copy': it is an output and overlaps argument 'a'",
        ),
        (
            {"a": X, "out": np.broadcast_to(X[:1], X.shape)},
            "argument 'out' of kernel 'copy': it is an output .* is read-only",
        ),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(numpipe.SpecError, match=words):
        copy(**arguments, target="sim")


@pytest.mark.variants(1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_order_of_warpgroups_and_stores_changes_a_copy(seed: int) -> None:
    a, o = numbers(1, 1, 64, 128), np.zeros((1, 1, 128, 64), np.float16)
    OP.by_tma(64, 256, True).simulate(a, o, seed=seed)
    assert o.tobytes() == np.ascontiguousarray(a.swapaxes(2, 3)).tobytes()
    a, o = numbers(40, 24)[:, :17], numbers(40, 17)
    source, target = describe(a, "a"), describe(o, "o")
    for piece in ways(a.shape, a.strides, o.strides, 2, (a.ctypes.data % 16, o.ctypes.data % 16)):
        arrays = OP.window(source, piece.source, 2), OP.window(target, piece.target, 2)
        OP.lanes(2, 8, 256, 1).simulate(*arrays, pitch=piece.pitch, seed=seed)
    assert o.tobytes() == np.ascontiguousarray(a).tobytes()


# ---- the machine code
def test_one_launch_copies_two_arrays_that_cannot_be_written() -> None:
    """JAX's arrays are such arrays."""
    sources = np.arange(2 * 8 * 17, dtype=np.float16).reshape(2, 1, 1, 1, 8, 17)
    sources.flags.writeable = False
    results = np.full((2, 8, 17), np.nan, np.float16)
    OP.lanes(2, 8, 64, 1, True)(*sources, *results, pitch=17, pitch_b=17, target="sim")
    np.testing.assert_array_equal(results, sources.reshape(2, 8, 17))


@pytest.mark.variants(0, thorough=4)
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize("size", [2, 4, 1])
@pytest.mark.parametrize(
    "name",
    [
        "lanes",
        "rows",
        "narrow rows",
        "few rows",
        "two dimensions",
        "turned",
        "sectors",
        "transposed",
        "blocks",
    ],
)
def test_the_build_gate_passes(name: str, size: int) -> None:
    dtype = OP.MOVED[size]
    matrix = ArrayType((1, 1, 256, 256), dtype)
    if name in ("lanes", "few rows", "two dimensions"):
        if size == 1:
            pytest.skip("elements of 8 bits are no numbers of a kernel")
        block, both = (8, 512 // size) if name == "few rows" else (32, 128 // size), name != "lanes"
        kernel = OP.lanes(size, *block, 1 + (name == "two dimensions"), both)
        source, result = ArrayType((1, 1, 8, 8, 64), dtype), ArrayType((64, 64), dtype)
        arrays = [source] * (1 + both) + [result] * (1 + both)
        named = {"pitch": 64} | ({"pitch_b": 64} if both else {})
    else:
        kernel = {
            "rows": OP.by_tma(64, 256),
            "narrow rows": OP.by_tma(*OP.blocks_of(48)),
            "transposed": OP.by_tma(64, 256, True),
            "turned": OP.turned(64 // size, 64),
            "sectors": OP.sectors(256, 32, size),
            "blocks": OP.copy_blocks,
        }[name]
        if size == 1 and name in ("transposed", "turned", "sectors"):
            pytest.skip("tiles of 8 bits are not transposed")
        arrays = [ArrayType((1, *matrix.shape), dtype) if name == "blocks" else matrix] * 2
        named = {}
        if name == "sectors":
            arrays = [ArrayType((1000 * 77,), OP.LANES[size])] * 2
            named = dict.fromkeys(OP.sectors(256, 32, size).parameters[2:13], 1)
    assert kernel.inspect("gate", *arrays, **named) == ()
    assert kernel.inspect("resources", *arrays, **named).spill_bytes == 0
    if name == "lanes":
        sass = kernel.inspect("sass", *arrays, **named)
        loads = [line for line in sass.splitlines() if "LDG" in line or "STS" in line]
        # all loads are issued before the first result is used
        assert all("LDG" in line for line in loads[:8])


@pytest.mark.parametrize(
    "start, target, way", [(1, None, TURNED), (1, "sim", SECTORS), (0, None, SECTORS)]
)
def test_host_arrays_that_begin_inside_a_word_begin_with_one_on_a_gpu(
    start: int, target: str | None, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    for name in (TURNED, SECTORS):
        launched = lambda *_, name=name, **named: made.append(name)
        monkeypatch.setattr(OP, name, lambda *block, launched=launched: launched)
    a = numbers(200 * 4001 + 1)[start:][: 200 * 4001].reshape(200, 4001)
    result = describe(np.empty((4001, 200), np.float16), "o")
    OP.copy_into(transposed(describe(a, "a")), result, {"target": target, "stream": None})
    assert made == [way]


# ---- arrays on a GPU, with a driver that launches nothing
class Driver(FakeDriver):
    def launch(self, config: Any, kernel: Any, params: int, ordinal: int) -> int:
        self.calls.append(("launch", kernel.split("_")[1], config.hStream))
        return 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    fake = Driver()
    monkeypatch.setattr(driver, "_opened", fake)
    launch.current_gpu.gpu_state.cache_clear()
    launch.encode.cache_clear()
    yield fake
    launch.current_gpu.gpu_state.cache_clear()


@pytest.mark.variants(1)
@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize(
    "shape, strides, offset, ways_of_it, target",
    [
        ((512, 1024), (2, 1024), 0, ["tma"], [1024, 512, 1, 1]),
        ((256, 511), (1024, 2), 0, ["lanes"], [8 * 511, 32]),
        ((257, 511), (1024, 2), 0, ["blocks", "lanes"], [8 * 511, 32]),
        ((1024, 1024), None, 2, ["lanes"], [4096, 256]),
    ],
)
def test_arrays_of_a_gpu_are_read_where_they_lie(
    gpu: Driver,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    offset: int,
    ways_of_it: list[str],
    target: list[int],
) -> None:
    a = CudaArray((1 << 30) + offset, shape, "<f2", strides=strides)
    out = CudaArray(1 << 31, shape, "<f2")
    for _ in range(2):
        assert copy(a, out=out, stream=7) is out
    assert gpu.named("launch") == [(way, 7) for way in ways_of_it] * 2
    assert next(list(sizes) for _, address, sizes, *_ in gpu.maps if address == 1 << 31) == target
    # otherwise lanes read it
    assert ("tma" in ways_of_it) == any(address == 1 << 30 for _, address, *_ in gpu.maps)


def test_in_pytorch_a_transposed_tensor_becomes_contiguous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    x = torch.randn(6, 8, requires_grad=True)
    y = numpipe.torch.copy(x.T)
    y.square().sum().backward()
    assert y.is_contiguous() and torch.equal(x.grad, 2 * x)
    assert torch.equal(torch.vmap(numpipe.torch.copy, 1)(x), x.T)
