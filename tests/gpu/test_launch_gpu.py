"""Arrays, tensor maps and launches on a Hopper GPU, with kernels in PTX that the driver compiles.

`box_ptx` loads one box by TMA and writes it out linearly: it shows how the hardware reads a tensor
map.
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

from numpipe import launch
from numpipe.errors import LaunchError
from numpipe.plan.resources import Resources
from tests.kernels.threads import in_threads

ALONE = True  # it orders streams against each other, and exhausts launch limits

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n"


def probe(
    cubin: bytes,
    arrays: tuple[str, ...],
    majors: tuple[Any, ...],
    maps: tuple[launch.MapRequest, ...] = (),
    smem_bytes: int = 0,
) -> launch.Image:
    """Return the image of a kernel in PTX, with made-up resource usage."""
    return launch.Image(
        "probe",
        "probe",
        cubin,
        128,
        smem_bytes,
        arrays,
        majors,
        maps,
        Resources(32, 0, 0, 0, 128, 0, 0, ()),
        target="sm_90a",
    )


def box_ptx(rank: int, nbytes: int) -> bytes:
    """Return PTX for probe(a, c, x...): copy a box of a to c[:].

    The box starts at element coordinates x (outermost first); elements have 16 bits.
    """
    params = [
        ".param .align 64 .b8 table[128]",
        *[f".param .u64 w{i}" for i in range(1 + 2 * rank + 3)],
        *[f".param .s32 x{i}" for i in range(rank)],
    ]
    loads = "\n".join(f"ld.param.s32 %x{i}, [x{i}];" for i in range(rank))
    coords = ", ".join(f"%x{i}" for i in reversed(range(rank)))
    return (
        HEAD
        + f".visible .entry probe({', '.join(params)})"
        + f"""
{{
.reg .pred %p; .reg .b16 %h; .reg .b32 %r<8>; .reg .s32 %x<8>; .reg .b64 %d<8>;
{loads}
mov.b64 %d0, table; cvta.param.u64 %d0, %d0;
ld.param.u64 %d1, [w{1 + 2 * rank}]; cvta.to.global.u64 %d1, %d1;
mov.u32 %r0, smem; add.u32 %r1, %r0, {nbytes};
mov.u32 %r2, %tid.x;
setp.ne.u32 %p, %r2, 0;
@%p bra READY;
mbarrier.init.shared.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 %d2, [%r1], {nbytes};
cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r0], [%d0, {{{coords}}}], [%r1];
READY: bar.sync 0;
WAIT: mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0;
@!%p bra WAIT;
COPY: setp.ge.u32 %p, %r2, {nbytes // 2};
@%p bra DONE;
shl.b32 %r3, %r2, 1; add.u32 %r4, %r0, %r3; ld.shared.b16 %h, [%r4];
cvt.u64.u32 %d3, %r3; add.u64 %d4, %d1, %d3; st.global.b16 [%d4], %h;
add.u32 %r2, %r2, 128;
bra COPY;
DONE: ret;
}}
\0"""
    ).encode()


def copy_ptx(size: int) -> bytes:
    """Return PTX for probe(a, c): copy a matrix with elements of `size` bytes by one CTA."""
    params = [".param .align 64 .b8 table[128]", *[f".param .u64 w{i}" for i in range(10)]]
    loads = "\n".join(f"ld.param.u64 %w{i}, [w{i}];" for i in range(10))
    return (
        HEAD
        + f".visible .entry probe({', '.join(params)})"
        + f"""
{{
.reg .pred %p; .reg .b{8 * size} %h; .reg .b32 %r; .reg .u64 %w<10>; .reg .u64 %d<8>;
{loads}
mul.lo.u64 %d0, %w1, %w2;
mov.u32 %r, %tid.x; cvt.u64.u32 %d1, %r;
COPY: setp.ge.u64 %p, %d1, %d0;
@%p bra DONE;
div.u64 %d2, %d1, %w2; rem.u64 %d3, %d1, %w2;
mul.lo.u64 %d4, %d2, %w3; mad.lo.u64 %d4, %d3, %w4, %d4; mad.lo.u64 %d4, %d4, {size}, %w0;
ld.global.b{8 * size} %h, [%d4];
mul.lo.u64 %d4, %d2, %w8; mad.lo.u64 %d4, %d3, %w9, %d4; mad.lo.u64 %d4, %d4, {size}, %w5;
st.global.b{8 * size} [%d4], %h;
add.u64 %d1, %d1, 128;
bra COPY;
DONE: ret;
}}
\0"""
    ).encode()


def load_box(
    array: np.ndarray[Any, Any], box: tuple[int, ...], at: tuple[int, ...], swizzle: int = 0
) -> Any:
    """Return what TMA loads of a device copy of `array` (memory order), as 16-bit words."""
    info = launch.describe(array, "a")
    nbytes = int(np.prod(box)) * 2
    c = np.zeros(nbytes // 2, np.uint16)
    major = launch.major_order(info)
    kernel = probe(
        box_ptx(array.ndim, nbytes),
        ("a", "c"),
        (major, "row"),
        (launch.MapRequest(0, box, swizzle),),
        smem_bytes=nbytes + 16,
    )
    infos = [info, launch.describe(c, "c")]
    launch.run(
        launch.Prepared(kernel, infos, [np.int32] * array.ndim), (1, 1, 1), infos, at, outputs=1
    )
    return c


def expected_box(array: np.ndarray[Any, Any], box: tuple[int, ...], at: tuple[int, ...]) -> Any:
    """Return the box of `array` in memory order, with zeros outside."""
    if launch.major_order(launch.describe(array, "a")) == "col":
        array = array.T
    out = np.zeros(box, np.uint16)
    for inside in np.ndindex(*box):
        where = tuple(a + i for a, i in zip(at, inside, strict=True))
        if all(0 <= w < d for w, d in zip(where, array.shape, strict=True)):
            out[inside] = array[where].view(np.uint16)
    return out.reshape(-1)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(1, 1000, shape).astype(np.float16)


# ---- tensor maps, read by the hardware
@pytest.mark.parametrize(
    "array, box, at",
    [
        (numbers(7), (8,), (0,)),
        (numbers(100), (64,), (64,)),
        (numbers(100), (64,), (-8,)),
        (numbers(3, 5), (4, 8), (0, 0)),
        (numbers(3, 5), (4, 8), (2, 0)),
        (numbers(3, 5), (4, 16), (-1, -8)),
        (numbers(5, 3).T, (4, 8), (1, 0)),
        (numbers(1, 5), (2, 8), (0, 0)),
        (numbers(5, 1), (8, 8), (0, 0)),
        (numbers(64, 200)[::2, ::3], (8, 64), (28, 16)),
        (numbers(3, 4, 5), (2, 2, 8), (2, 1, 0)),
        (np.asfortranarray(numbers(3, 4, 5)), (2, 2, 8), (1, 1, 0)),
        (numbers(2, 3, 4, 5), (1, 2, 3, 8), (1, 1, 1, 0)),
        (numbers(2, 3, 2, 3, 5), (1, 2, 2, 2, 8), (1, 1, 0, 1, 0)),
        (numbers(3, 5).view(ml_dtypes.bfloat16), (4, 8), (0, 0)),
        (numbers(3, 5).view(np.int16), (4, 8), (0, 0)),
    ],
    ids=lambda value: str(value.shape) if isinstance(value, np.ndarray) else str(value),
)
def test_tma_reads_the_box_that_the_map_describes(
    array: Any, box: tuple[int, ...], at: tuple[int, ...]
) -> None:
    np.testing.assert_array_equal(load_box(array, box, at), expected_box(array, box, at))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_a_kernel_with_a_map_of_an_array_without_elements_runs(shape: tuple[int, int]) -> None:
    infos = [launch.describe(numbers(*shape), "a"), launch.describe(numbers(*shape), "c")]
    kernel = probe(copy_ptx(2), ("a", "c"), ("row", "row"), (launch.MapRequest(0, (4, 64), 128),))
    prepared = launch.Prepared(kernel, infos)
    launch.run(prepared, (1, 1, 1), infos, outputs=1)
    launches = [known for known in prepared.table.values() if isinstance(known, launch.Launch)]
    assert launches and all(launched.buffer[:128] != bytes(128) for launched in launches)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_swizzle_xors_the_chunk_with_the_row(swizzle: int) -> None:
    a = numbers(16, swizzle // 2)
    got = load_box(a, a.shape, (0, 0), swizzle).reshape(-1, 8)
    chunks = np.arange(got.shape[0])
    bits = swizzle // 16 - 1
    moved = chunks ^ ((chunks >> 3) & bits)
    np.testing.assert_array_equal(got[moved], a.view(np.uint16).reshape(-1, 8))


def test_strides_of_a_permuted_view_need_no_order() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(4 * 6 * 16, device="cuda").to(torch.int16).reshape(4, 6, 16).permute(1, 0, 2)
    assert a.stride() == (16, 96, 1)
    c = torch.zeros(2 * 2 * 16, dtype=torch.int16, device="cuda")
    infos = [launch.describe(a, "a"), launch.describe(c, "c")]
    kernel = probe(
        box_ptx(3, 128),
        ("a", "c"),
        ("row", "row"),
        (launch.MapRequest(0, (2, 2, 16), 0),),
        smem_bytes=144,
    )
    stream = launch.current_stream(infos)
    launch.Prepared(kernel, infos, [np.int32] * 3, outputs=1)((1, 1, 1), infos, (4, 1, 0), stream)
    assert torch.equal(c.reshape(2, 2, 16), a[4:6, 1:3])


# ---- host arrays
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (257, 129), (1, 1000), (1000, 1), (64, 64)], ids=str
)
@pytest.mark.parametrize("order", ["C", "F", "sliced"])
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.int8, ml_dtypes.bfloat16], ids=lambda d: d.__name__
)
def test_host_arrays_go_through_a_kernel_and_back(
    shape: tuple[int, int], order: str, dtype: Any
) -> None:
    values = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    wide = np.zeros((shape[0] * 2, shape[1] * 3), dtype)
    wide[::2, ::3] = values
    a = {"C": values, "F": np.asfortranarray(values), "sliced": wide[::2, ::3]}[order]
    c = np.zeros_like(a)
    infos = [launch.describe(a, "a"), launch.describe(c, "c")]
    kernel = probe(
        copy_ptx(np.dtype(dtype).itemsize), ("a", "c"), tuple(map(launch.major_order, infos))
    )
    launch.run(launch.Prepared(kernel, infos), (1, 1, 1), infos, outputs=1, fresh=1)
    np.testing.assert_array_equal(c, values)


def test_a_thread_that_never_touched_the_gpu_may_launch() -> None:
    def work(_: int) -> None:
        test_host_arrays_go_through_a_kernel_and_back((3, 5), "C", np.float16)
        like = launch.describe(launch.DeviceArray((3, 5), np.float16), "a")
        c = launch.describe(launch.DeviceArray((3, 5), np.float16), "c")
        kernel = probe(copy_ptx(2), ("a", "c"), ("row", "row"))
        launch.Prepared(kernel, [like, c], outputs=1)((1, 1, 1), [like, c])

    in_threads(1, work)


# ---- device arrays of other libraries
def copied(a: Any) -> Any:
    info = launch.describe(a, "a")
    c = launch.empty_like_kind(info, info.shape, info.dtype)
    infos = [info, launch.describe(c, "c")]
    kernel = probe(copy_ptx(info.dtype.itemsize), ("a", "c"), tuple(map(launch.major_order, infos)))
    prepared = launch.Prepared(kernel, infos, outputs=1)
    if info.kind == "host":
        launch.run(prepared, (1, 1, 1), infos, outputs=1)
    else:
        prepared((1, 1, 1), infos, stream=launch.current_stream(infos))
    return c


@pytest.mark.parametrize(
    "name, place",
    list(itertools.product(["float16", "bfloat16", "float32", "int8"], ["cuda", "cpu"])),
)
def test_tensors_in_and_out(name: str, place: str) -> None:
    torch = pytest.importorskip("torch")
    a = torch.randint(-9, 9, (33, 65), device=place).to(getattr(torch, name))
    for tensor in (a, a.T, a[1::2, 3:]):
        c = copied(tensor)
        assert c.dtype == a.dtype and c.device == a.device and torch.equal(c, tensor)


def test_the_device_arrays_of_numpipe_are_read_by_others() -> None:
    torch = pytest.importorskip("torch")
    array = copied(launch.DeviceArray((4, 4), np.float32))
    tensor = torch.as_tensor(array, device="cuda")
    tensor.copy_(torch.arange(16.0).reshape(4, 4))
    torch.cuda.synchronize()
    np.testing.assert_array_equal(array.copy_to_host(), np.arange(16.0).reshape(4, 4))


# ---- errors
CHILD = """
import numpy as np, sys
sys.path.insert(0, sys.argv[1])
from tests.gpu.test_launch_gpu import HEAD, probe, load_box, numbers
from numpipe import launch
from numpipe.errors import LaunchError
"""
POISON = """
params = ".param .align 64 .b8 t[128], .param .u64 a, .param .u64 b, .param .u64 c"
ptx = HEAD + f".visible .entry probe({params}) {{ trap; }}"
c = np.zeros(4, np.float32)
infos = [launch.describe(c, "c")]
prepared = launch.Prepared(probe((ptx + chr(0)).encode(), ("c",), ("row",)), infos)
for attempt in range(2):
    try:
        launch.run(prepared, (1, 1, 1), infos, outputs=1)
    except LaunchError as error:
        print(error)
"""


MISALIGNED = """
assert load_box(numbers(64, 64), (8, 32), (3, 8)).any()
try:
    load_box(numbers(64, 64), (8, 32), (3, 9))
except LaunchError as error:
    print(error)
"""


def in_a_process_of_its_own(code: str) -> list[str]:
    """Return the lines that the process of a failing kernel prints."""
    command = [sys.executable, "-c", CHILD + code, str(Path(__file__).parents[2])]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines()


def test_a_kernel_that_traps_is_named_and_later_calls_say_the_context_is_lost() -> None:
    lines = in_a_process_of_its_own(POISON)
    assert len(lines) == 2
    assert all("kernel 'probe'" in line and "compute-sanitizer" in line for line in lines), lines


def test_an_innermost_coordinate_must_be_a_multiple_of_16_bytes() -> None:
    """The simulator models this fact of the hardware: a load 2 bytes further is an illegal
    instruction."""
    (line,) = in_a_process_of_its_own(MISALIGNED)
    assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in line


def test_too_much_shared_memory_is_refused() -> None:
    c = launch.describe(launch.DeviceArray((3, 5), np.float16), "c")
    kernel = probe(copy_ptx(2), ("a", "c"), ("row", "row"), smem_bytes=300_000)
    with pytest.raises(LaunchError, match="kernel 'probe' .*300000 bytes of shared memory"):
        launch.Prepared(kernel, [c, c])((1, 1, 1), [c, c])


def test_the_gpu_is_found() -> None:
    choice = launch.choose_target("gpu")
    assert choice.device is not None and choice.device.cc == (9, 0) and choice.device.sm_count > 100
    assert choice.device.max_dynamic_smem == 232448
