"""The intrinsics on a GPU against their Python bodies, and what the tensor core reads through
descriptors.

Kernels are plain Numba kernels, and the driver is called directly, so that no other part of numpipe
is involved.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from numpipe.arch.targets import HOPPER
from numpipe.core import machine as _machine
from numpipe.core.op import helper
from numpipe.intrinsics import (
    barrier,
    convert,
    cp_async_bulk,
    elect,
    fence,
    ldmatrix,
    mbarrier,
    memory,
    setmaxnreg,
    special,
    stmatrix,
    wgmma,
)

THREADS, SMEM = 128, 40 * 1024


# ---- a minimal launcher --------------------------------------------------------------------------
def compile_kernel(kernel: Callable[..., None], argtypes: tuple[str, ...], threads: int) -> bytes:
    """Return a cubin; `argtypes` names Numba types, arrays as "int32[]"."""
    from numpipe.core import numba as nb

    types = [
        getattr(nb.types, t.removesuffix("[]"))[::1] if t.endswith("[]") else getattr(nb.types, t)
        for t in argtypes
    ]
    return nb.link(
        nb.to_ltoir(
            nb.compile_kernel(kernel, types, threads=threads, target=HOPPER)._codelibrary, HOPPER
        ),
        kernel.__name__,
        HOPPER,
    )[0]


class Gpu:
    """Memory, launches and tensor maps of device 0."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, function: str, *args: Any) -> None:
        status = getattr(self.cuda, function)(*args)
        assert status == 0, f"{function} returned {status}"

    def upload(self, array: np.ndarray) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(array.nbytes))
        data = np.ascontiguousarray(array)
        self(
            "cuMemcpyHtoD_v2",
            pointer,
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
        )
        return pointer

    def download(self, pointer: ctypes.c_uint64, like: np.ndarray) -> np.ndarray:
        result = np.empty_like(like)
        self(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(result.ctypes.data),
            pointer,
            ctypes.c_size_t(result.nbytes),
        )
        return result

    def tensor_map(
        self, pointer: ctypes.c_uint64, array: np.ndarray, box: tuple[int, ...]
    ) -> ctypes.c_uint64:
        """Return the device address of an unswizzled map of a contiguous uint32 array."""
        rank = array.ndim
        storage = ctypes.create_string_buffer(128 + 64)
        aligned = (ctypes.addressof(storage) + 63) & ~63
        # 2: CU_TENSOR_MAP_DATA_TYPE_UINT32
        self(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(aligned),
            2,
            rank,
            pointer,
            (ctypes.c_uint64 * rank)(*array.shape[::-1]),
            (ctypes.c_uint64 * rank)(*array.strides[-2::-1]),
            (ctypes.c_uint32 * rank)(*box[::-1]),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,
            0,
            0,
            0,
        )
        return self.upload(np.frombuffer(ctypes.string_at(aligned, 128), np.uint8))

    def run(
        self,
        kernel: Callable[..., None],
        *args: Any,
        grid: tuple[int, int, int] = (1, 1, 1),
        threads: int = THREADS,
    ) -> None:
        """Run a kernel; arrays are copied to the GPU and back.

        A c_uint64 is passed as an int64, an int as an int32.
        """
        kinds = tuple(
            f"{a.dtype}[]"
            if isinstance(a, np.ndarray)
            else "int32"
            if isinstance(a, int)
            else "int64"
            for a in args
        )
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        image = compile_kernel(kernel, kinds, threads)
        self("cuModuleLoadData", ctypes.byref(module), image)
        count, functions = ctypes.c_uint(), (ctypes.c_void_p * 1)()
        self("cuModuleGetFunctionCount", ctypes.byref(count), module)
        assert count.value == 1
        self("cuModuleEnumerateFunctions", functions, 1, module)
        function.value = functions[0]
        arrays = {i: self.upload(a) for i, a in enumerate(args) if isinstance(a, np.ndarray)}
        values: list[Any] = []
        for i, arg in enumerate(args):
            # Numba passes an array as (meminfo, parent, items, item size, data, shape, strides)
            if i in arrays:
                size, item = arg.size, arg.itemsize
                values += map(ctypes.c_uint64, (0, 0, size, item, arrays[i].value, size, item))
            else:
                values.append(ctypes.c_int32(arg) if isinstance(arg, int) else arg)
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        self("cuLaunchKernel", function, *grid, threads, 1, 1, SMEM, None, pointers, None)
        self("cuCtxSynchronize")
        for i, pointer in arrays.items():
            args[i][...] = self.download(pointer, args[i])


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu()


class Lanes:
    """The parts of a machine that the Python bodies of shared-memory intrinsics need."""

    lanes, warpgroup, cta, grid = "all", 0, (0, 0, 0), (1, 1, 1)

    def __init__(self) -> None:
        self.smem = np.zeros(SMEM, np.uint8)

    def collective(self, operation: str) -> None:
        """Do nothing: all lanes are here."""

    def smem_write(self, chunks: np.ndarray, values: np.ndarray, what: str) -> None:
        for address, value in zip(chunks.reshape(-1), values.reshape(-1, 16), strict=True):
            self.smem[address : address + 16] = value

    def smem_read(self, chunks: np.ndarray, what: str) -> np.ndarray:
        return np.stack(
            [self.smem[address : address + 16] for address in chunks.reshape(-1)]
        ).reshape(*chunks.shape, 16)


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    machine = Lanes()
    token = _machine._current.set(machine)  # type: ignore[arg-type]
    yield machine
    _machine._current.reset(token)


# ---- conversions ---------------------------------------------------------------------------------
def conversions(x: Any, y: Any, words: Any) -> None:
    t = special.thread_index()
    words[t] = convert.pack_bf16x2(x[t], y[t])
    words[128 + t] = convert.pack_f16x2(x[t], y[t])


def test_conversions_round_as_their_python_bodies_do(gpu: Gpu) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, 128)) * 10.0 ** rng.integers(-9, 9, (2, 128))).astype(np.float32)
    x[:12] = [
        0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        -np.nan,
        1 + 2**-8,
        1 + 3 * 2**-8,
        1 + 2**-11,
        65520,
        3.4e38,
        1e-40,
    ]
    words = np.zeros(256, np.int32)
    gpu.run(conversions, x, y, words)
    bf16, f16 = convert.pack_bf16x2(x, y), convert.pack_f16x2(x, y)
    assert np.array_equal(words.view(np.uint32), np.concatenate([bf16, f16]))


# ---- stmatrix ------------------------------------------------------------------------------------
def stmatrix_forms(addresses: Any, registers: Any, image: Any) -> None:
    t = special.thread_index()
    for word in range(t, SMEM // 4, 128):
        memory.store_word(special.smem_base() + 4 * word, 0)
    barrier.sync(1, 128)
    a = special.smem_base() + addresses[t]
    r0, r1, r2, r3 = registers[t], registers[128 + t], registers[256 + t], registers[384 + t]
    stmatrix.store_x1(a, r0)
    stmatrix.store_x2(a + 4096, r0, r1)
    stmatrix.store_x4(a + 8192, r0, r1, r2, r3)
    stmatrix.store_x1_trans(a + 16384, r0)
    stmatrix.store_x2_trans(a + 20480, r0, r1)
    stmatrix.store_x4_trans(a + 24576, r0, r1, r2, r3)
    barrier.sync(1, 128)
    for word in range(t, SMEM // 4, 128):
        image[word] = memory.load_word(special.smem_base() + 4 * word)


def test_stmatrix_writes_what_its_python_body_writes(gpu: Gpu, lanes: Lanes) -> None:
    rng = np.random.default_rng(1)
    # x1 and x2 use the addresses of each warp's first lanes, so keep these within the first 2 KB
    # and 4 KB
    addresses = (np.arange(32) * 4 + np.arange(4)[:, None]).reshape(-1).astype(np.int32) * 16
    registers = rng.integers(-(2**31), 2**31, 512).astype(np.int32)
    image = np.zeros(SMEM // 4, np.int32)
    gpu.run(stmatrix_forms, addresses, registers, image)
    r = registers.reshape(4, 128)
    stmatrix.store_x1(addresses, r[0])
    stmatrix.store_x2(addresses + 4096, r[0], r[1])
    stmatrix.store_x4(addresses + 8192, *r)
    stmatrix.store_x1_trans(addresses + 16384, r[0])
    stmatrix.store_x2_trans(addresses + 20480, r[0], r[1])
    stmatrix.store_x4_trans(addresses + 24576, *r)
    assert lanes.smem.any()
    assert np.array_equal(image, lanes.smem.view(np.int32))


# ---- ldmatrix ------------------------------------------------------------------------------------
def ldmatrix_forms(addresses: Any, image: Any, found: Any) -> None:
    t = special.thread_index()
    for word in range(t, SMEM // 4, 128):
        memory.store_word(special.smem_base() + 4 * word, image[word])
    barrier.sync(1, 128)
    a = special.smem_base() + addresses[t]
    found[t] = ldmatrix.load_x1(a)
    x, y = ldmatrix.load_x2(a)
    found[128 + t], found[256 + t] = x, y
    x, y, z, w = ldmatrix.load_x4(a)
    found[384 + t], found[512 + t], found[640 + t], found[768 + t] = x, y, z, w
    found[896 + t] = ldmatrix.load_x1_trans(a)
    x, y = ldmatrix.load_x2_trans(a)
    found[1024 + t], found[1152 + t] = x, y
    x, y, z, w = ldmatrix.load_x4_trans(a)
    found[1280 + t], found[1408 + t], found[1536 + t], found[1664 + t] = x, y, z, w


def test_ldmatrix_reads_what_its_python_body_reads(gpu: Gpu, lanes: Lanes) -> None:
    rng = np.random.default_rng(1)
    addresses = rng.permutation(SMEM // 16)[:128].astype(np.int32) * 16
    image = rng.integers(-(2**31), 2**31, SMEM // 4).astype(np.int32)
    found = np.zeros(14 * 128, np.int32)
    gpu.run(ldmatrix_forms, addresses, image, found)
    lanes.smem[:SMEM] = image.view(np.uint8)
    expected = [
        np.reshape(getattr(ldmatrix, f"load_x{n}{t}")(addresses), (n, 128))
        for t in ("", "_trans")
        for n in (1, 2, 4)
    ]
    assert np.array_equal(found.view(np.uint32), np.concatenate(expected).reshape(-1))


# ---- wgmma ---------------------------------------------------------------------------------------
def swizzled(rows: np.ndarray, span: int) -> np.ndarray:
    """Return `rows`, each `span` bytes wide, in the layout of a TMA copy with that swizzle."""
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, span)
    flat = np.zeros(data.size, np.uint8)
    for row, values in enumerate(data):
        for chunk in range(span // 16):
            address = row * span + 16 * chunk
            address ^= (address >> 7 & (span // 16 - 1)) << 4
            flat[address : address + 16] = values[16 * chunk : 16 * chunk + 16]
    return flat


@helper
def load_operands(words: Any) -> None:
    for word in range(special.thread_index(), 4096, 128):
        memory.store_word(special.smem_base() + 4 * word, words[word])
    fence.proxy_async()
    barrier.sync(1, 128)


@helper
def store_result(acc: Any, out: Any) -> None:
    t = special.thread_index()
    for i in range(32):
        row = 16 * (t >> 5) + (t & 31) // 4 + 8 * (i // 2 % 2)
        out[64 * row + 8 * (i // 4) + 2 * (t & 3) + i % 2] = acc[i]


def k_major_128(words: Any, out: Any) -> None:
    load_operands(words)
    base = special.smem_base()
    a, b = wgmma.descriptor(base, 16, 1024, 128), wgmma.descriptor(base + 8192, 16, 1024, 128)
    acc = wgmma.fence_accumulators(wgmma.accumulators(64))
    for k in range(4):
        acc = wgmma.mma_async(acc, a + 2 * k, b + 2 * k, "bf16", "k", "k")
    wgmma.commit_group()
    store_result(wgmma.wait(acc, 0), out)


def mn_major_128(words: Any, out: Any) -> None:
    load_operands(words)
    base = special.smem_base()
    a, b = wgmma.descriptor(base, 8192, 1024, 128), wgmma.descriptor(base + 8192, 8192, 1024, 128)
    acc = wgmma.fence_accumulators(wgmma.accumulators(64))
    for k in range(4):
        acc = wgmma.mma_async(acc, a + 128 * k, b + 128 * k, "f16", "mn", "mn")
    wgmma.commit_group()
    store_result(wgmma.wait(acc, 0), out)


def k_major_64_and_32(words: Any, out: Any) -> None:
    load_operands(words)
    base = special.smem_base()
    a, b = wgmma.descriptor(base, 16, 512, 64), wgmma.descriptor(base + 8192, 16, 256, 32)
    acc = wgmma.fence_accumulators(wgmma.accumulators(64))
    acc = wgmma.mma_async(acc, a, b, "f16", "k", "k")
    wgmma.commit_group()
    store_result(wgmma.wait(acc, 0), out)


def operands(dtype: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.random.default_rng(2).integers(-3, 4, (2, 64, k)).astype(np.float32)
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize(
    ("kernel", "dtype", "k", "a_span", "b_span"),
    [
        (k_major_128, ml_dtypes.bfloat16, 64, 128, 128),
        (mn_major_128, np.float16, 64, 128, 128),
        (k_major_64_and_32, np.float16, 16, 64, 32),
    ],
)
def test_wgmma_multiplies_what_the_descriptors_describe(
    gpu: Gpu, kernel: Any, dtype: Any, k: int, a_span: int, b_span: int
) -> None:
    a, b = operands(dtype, k)
    image = np.zeros(16384, np.uint8)
    for start, matrix, span in ((0, a, a_span), (8192, b, b_span)):
        rows = matrix.T if kernel is mn_major_128 else matrix
        padded = np.zeros((len(rows), span // 2), dtype)
        padded[:, : rows.shape[1]] = rows
        data = swizzled(padded, span)
        image[start : start + data.size] = data
    out = np.zeros(64 * 64, np.float32)
    gpu.run(kernel, image.view(np.int32), out)
    assert np.array_equal(out.reshape(64, 64), a.astype(np.float32) @ b.astype(np.float32).T)


# ---- TMA and mbarriers ---------------------------------------------------------------------------
BOX = (2, 4, 8)


def copies(source: int, target: int, streamed: int, out: Any) -> None:
    base = special.smem_base()
    ready = base + 1024
    leader = special.thread_index() < 32 and elect.elect_sync()
    if leader:
        cp_async_bulk.prefetch_tensormap(source)
        mbarrier.init(ready, 1)
        fence.mbarrier_init()
    barrier.sync(1, 128)
    tested = mbarrier.test_wait(ready, 0)
    for step in range(3):
        if leader:
            mbarrier.arrive_expect_tx(ready, 256)
            cp_async_bulk.load(base, source, (step, 2 * step, 4 * step), ready, "evict_last")
        mbarrier.wait(ready, step, step)
        if leader:
            cp_async_bulk.store(target, (2 * step, 0, 8), base)
            cp_async_bulk.store(streamed, (0, 4 * step, 0), base, "evict_first")
            cp_async_bulk.commit_group()
            cp_async_bulk.wait_group_read(0)
        barrier.sync(1, 128)
    if leader:
        cp_async_bulk.wait_group(0)
        out[0] = 1 if tested else 0
        out[1] = 1 if mbarrier.try_wait(ready, 0) else 0
        mbarrier.inval(ready)


def test_boxes_go_where_array_coordinates_say(gpu: Gpu) -> None:
    shape = (4, 12, 16)
    source = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape) + 1
    outputs = [np.zeros((6, 4, 16), np.uint32), np.zeros((2, 12, 8), np.uint32)]
    pointers = [gpu.upload(a) for a in (source, *outputs)]
    maps = [gpu.tensor_map(p, a, BOX) for p, a in zip(pointers, (source, *outputs), strict=True)]
    out = np.full(2, 9, np.int32)
    gpu.run(copies, *maps, out)
    stored, streamed = (gpu.download(p, a) for p, a in zip(pointers[1:], outputs, strict=True))
    padded = np.zeros((8, 16, 24), np.uint32)
    padded[:4, :12, :16] = source
    for step in range(3):
        box = padded[step : step + 2, 2 * step : 2 * step + 4, 4 * step : 4 * step + 8]
        assert np.array_equal(stored[2 * step : 2 * step + 2, :, 8:], box)
        assert np.array_equal(streamed[:, 4 * step : 4 * step + 4], box)
    assert not stored[:, :, :8].any()
    assert out.tolist() == [0, 1], "phase 0 had not ended at first; after phase 2, parity 0 has"


# ---- indices
def identify(out: Any) -> None:
    t = special.thread_index()
    cta = special.cta_index_x() + 2 * (special.cta_index_y() + 3 * special.cta_index_z())
    size = special.grid_size_x() * 100 + special.grid_size_y() * 10 + special.grid_size_z()
    begin = special.clock64()
    elected = 1 if elect.elect_sync() else 0
    at = 8 * (256 * cta + t)
    out[at] = t
    out[at + 1] = special.warpgroup_index()
    out[at + 2] = special.lane_index()
    out[at + 3] = size
    out[at + 4] = special.smem_base()
    out[at + 5] = elected
    out[at + 6] = special.cluster_rank()
    out[at + 7] = (
        1
        if special.clock64() > begin and special.globaltimer() > 10**18 and special.sm_id() >= 0
        else 0
    )


def test_every_lane_knows_who_it_is(gpu: Gpu) -> None:
    out = np.full(8 * 256 * 12, -1, np.int32)
    gpu.run(identify, out, grid=(2, 3, 2), threads=256)
    fields = out.reshape(12, 256, 8)
    t = np.arange(256)
    assert (fields[..., 0] == t).all()
    assert (fields[..., 1] == t // 128).all()
    assert (fields[..., 2] == t % 32).all()
    assert (fields[..., 3] == 232).all()
    assert (fields[..., 4] % 1024 == 0).all(), "dynamic shared memory starts at a multiple of 1024"
    assert (fields[..., 5].reshape(12, 8, 32).sum(axis=2) == 1).all(), (
        "one lane of each warp is elected"
    )
    assert (fields[..., 6] == 0).all()
    assert (fields[..., 7] == 1).all()


def moved_registers(out: Any) -> None:
    if special.warpgroup_index() == 0:
        setmaxnreg.dec(24)
        barrier.arrive(2, 256)
    else:
        setmaxnreg.inc(240)
        barrier.sync(2, 256)
        out[special.thread_index() - 128] = 1


def test_registers_move_and_a_barrier_joins_two_warpgroups(gpu: Gpu) -> None:
    out = np.zeros(128, np.int32)
    gpu.run(moved_registers, out, threads=256)
    assert out.all()
