"""Launches on several GPUs of one process: what each GPU gets, with a driver whose memory is the
host's."""

from __future__ import annotations

import ctypes
import gc
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import LaunchError, PipelineDeadlock, SpecError, TargetError, ds, launch
from numpipe.launch import DeviceArray, controls
from numpipe.ops.sharded_calls import sharded_op
from numpipe.plan import control_block
from numpipe.plan.copy_plans import MapRequest
from numpipe.plan.specs import ArrayType
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import compiled_as, image
from tests.kernels.threads import in_threads

MAP = MapRequest(1, (64, 32), 128)
WORDS = 2 * 5 + 3
"""words of two 2-D arrays and the semaphores"""
TABLE = 128 + 128 + 2 * (128 + 128)
"""bytes: the map of y, the launch's words, and for each GPU its map of y and three addresses"""
H200 = ("NVIDIA H200", (9, 0))


@pytest.fixture
def fake(fake: FakeDriver) -> Iterator[FakeDriver]:
    fake.count, fake.gpus, fake.sizes = 2, (H200, H200), [TABLE, *[8] * WORDS]
    yield fake
    gc.collect()


def shift(semaphores: Any = 3, **options: Any) -> Any:
    """Return a kernel that accesses its second array on other GPUs; it is never compiled."""
    fields = {key: options.pop(key) for key in ("debug",) if key in options}

    @numpipe.kernel(grid=numpipe.persistent(), semaphores=semaphores, **options)
    def shift(x, y, ready):
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    return compiled_as(
        shift,
        lambda *_: image(
            (MAP,),
            ("x", "y", "ready"),
            name="shift",
            gpus=2,
            peered=(1,),
            places=("the wait for ready @ k.py:12",),
            **fields,
        ),
    )


def arrays(mesh: numpipe.Mesh) -> tuple[list[Any], list[Any]]:
    return mesh.zeros((64, 64), np.float32), mesh.empty((64, 64), np.float32)


def launched(fake: FakeDriver) -> list[tuple[bytes, list[int]]]:
    """Yield, per launch, the table and the words that the kernel gets."""
    seen: list[tuple[bytes, list[int]]] = []
    fake.kernel = lambda parameters: seen.append(
        (
            ctypes.string_at(parameters[0], TABLE),
            [ctypes.c_int64.from_address(place).value for place in parameters[1:]],
        )
    )
    return seen


# ---- what a launch passes
def test_each_gpu_gets_its_rank_and_the_maps_and_addresses_of_all(fake: FakeDriver) -> None:
    mesh, seen = numpipe.Mesh.local(), launched(fake)
    x, y = arrays(mesh)
    shift()(x, y, mesh=mesh)
    assert len(seen) == 2
    ready = [words[-3] for _, words in seen]
    for rank, (table, words) in enumerate(seen):
        assert words == [x[rank].ptr, 64, 64, 64, 1, y[rank].ptr, 64, 64, 64, 1, ready[rank], 3, 1]
        me, gpus, record, longest, block = struct.unpack_from("<iiQQQ", table, 128)
        assert (me, gpus, longest, block) == (rank, 2, 8_000_000_000, ready[rank] - 512) and record
        maps = [int.from_bytes(table[at : at + 128], "little") for at in (0, 256, 512)]
        where = [fake.maps[number - 1][1] for number in maps]
        assert where == [y[rank].ptr, y[0].ptr, y[1].ptr]
        for other in range(2):
            assert struct.unpack_from("<3Q", table, 256 + 256 * other + 128) == (
                0,
                y[other].ptr,
                ready[other],
            )


def test_outputs_of_an_op_are_on_the_gpu_of_their_operands(fake: FakeDriver) -> None:
    mesh, found = numpipe.Mesh.local(), []

    @sharded_op(
        operands={"x": "m n"},
        results={"y": lambda x: ArrayType(x.shape, x.dtype)},
        types=("float32",),
        launch=lambda y: found.append([each.device for each in y]),
    )
    def moved(x: Any, *, out: Any = None, mesh: Any = None, stream: Any = None) -> Any:
        """Return x."""

    x, y = arrays(mesh)
    moved(x, mesh=mesh, out=y)
    assert found == [[0, 1]]
    with pytest.raises(SpecError, match="on GPU 1, but argument 'x' is on GPU 0"):
        moved(x, mesh=mesh, out=y[::-1])


def test_each_gpu_clears_go_and_semaphores_and_then_launches(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    seen = launched(fake)
    shift()(*arrays(mesh), mesh=mesh)
    blocks = [words[-3] - 512 for _, words in seen]
    order = [
        (call[0], call[1] if call[0] == "clear" else call[3])
        for call in fake.calls
        if call[0] in ("clear", "launch")
    ]
    assert order == [
        ("clear", blocks[0] + 256),
        ("launch", 0),
        ("clear", blocks[1] + 256),
        ("launch", 1),
    ]
    assert all(not any(ctypes.string_at(block, 512 + 12)) for block in blocks)
    assert not fake.attributes.programmatic, "there is no kernel to overlap with"


def test_what_lies_before_go_is_never_cleared(fake: FakeDriver) -> None:
    """The word before `go` counts the launches of peers, which may be one ahead."""
    mesh, kernel, seen = numpipe.Mesh.local(), shift(), launched(fake)
    x, y = arrays(mesh)
    kernel(x, y, mesh=mesh)
    begun = ctypes.c_int32.from_address(seen[0][1][-3] - 512)
    begun.value = 1
    kernel(x, y, mesh=mesh)
    assert begun.value == 1


def test_kernels_of_a_stream_share_a_control_block_as_large_as_their_semaphores_need(
    fake: FakeDriver,
) -> None:
    mesh, seen = numpipe.Mesh.local(), launched(fake)
    x, y = arrays(mesh)
    fake.streams = {7: 0, 8: 1}
    for count in (3, 800, 2000):
        shift(count)(x, y, mesh=mesh)
    shift()(x, y, mesh=mesh, stream=[7, 8])
    blocks = [words[-3] for _, words in seen]
    assert blocks[0:2] == blocks[2:4] and len({*blocks}) == 6
    assert [words[-2] for _, words in seen] == [3, 3, 800, 800, 2000, 2000, 3, 3]


@pytest.mark.parametrize(
    "semaphores, gpus, debug, words",
    [(896, 2, False, 1024), (897, 2, False, 2048), (896, 2, True, 4096)],
)
def test_a_block_holds_the_semaphores_and_with_debug_one_set_per_gpu(
    semaphores: int, gpus: int, debug: bool, words: int
) -> None:
    assert controls.block_words(semaphores, gpus, debug) == words


def test_calls_of_several_threads_come_to_all_gpus_in_one_order(fake: FakeDriver) -> None:
    mesh, kernels = numpipe.Mesh.local(), [shift(count) for count in range(1, 5)]
    x, y = arrays(mesh)
    seen: list[int] = []

    def note(parameters: list[int]) -> None:
        # the number of semaphores identifies the kernel
        seen.append(ctypes.c_int64.from_address(parameters[-2]).value)
        time.sleep(0.0005)

    fake.kernel = note
    in_threads(4, lambda number: [kernels[number](x, y, mesh=mesh) for _ in range(10)])
    assert len(seen) == 80 and seen[::2] == seen[1::2]


# ---- repeated calls
def test_a_repeated_call_only_looks_up_and_launches(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, kernel = numpipe.Mesh.local(), shift()
    x, y = arrays(mesh)
    kernel(x, y, mesh=mesh)
    monkeypatch.setattr(kernel._calls, "resolve", None)
    before = len(fake.calls)
    assert kernel(x, y, mesh=mesh) is None
    assert [call[0] for call in fake.calls[before:]] == ["clear", "launch"] * 2


def test_other_arrays_are_not_taken_for_earlier_ones(fake: FakeDriver) -> None:
    mesh, kernel, seen = numpipe.Mesh.local(), shift(), launched(fake)
    x, y = arrays(mesh)
    for a, b in ((x, y), (y, x)) * 2:
        kernel(a, b, mesh=mesh)
    assert [words[0] for _, words in seen] == [each.ptr for each in (*x, *y) * 2]


def test_a_call_on_other_streams_launches_there(fake: FakeDriver) -> None:
    mesh, kernel = numpipe.Mesh.local(), shift()
    x, y = arrays(mesh)
    fake.streams = {7: 0, 8: 1}
    for stream in (None, [7, 8], None, [7, 8]):
        kernel(x, y, mesh=mesh, stream=stream)
    assert [stream for _, stream, _ in fake.named("launch")] == [1, 1, 7, 8] * 2


def test_the_outputs_of_a_repeated_call_are_new(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    kernel = shift(out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype))
    seen = launched(fake)
    x, _ = arrays(mesh)
    kept = [kernel(x, mesh=mesh) for _ in range(3)]
    assert [words[5] for _, words in seen] == [each.ptr for y in kept for each in y] and len(
        {*(w[5] for _, w in seen)}
    ) == 6


def test_scalars_are_written_for_each_gpu(fake: FakeDriver) -> None:
    @numpipe.kernel(grid=numpipe.persistent(), semaphores=1)
    def scale(x, y, ready, alpha=1.0):
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    compiled_as(
        scale, lambda *_: image((MAP,), ("x", "y", "ready"), name="scale", gpus=2, peered=(1,))
    )
    fake.sizes = [*fake.sizes, 4]
    seen: list[float] = []
    fake.kernel = lambda parameters: seen.append(ctypes.c_float.from_address(parameters[-1]).value)
    mesh = numpipe.Mesh.local()
    x, y = arrays(mesh)
    for alpha in (2.0, 3.0):
        scale(x, y, alpha=alpha, mesh=mesh)
    assert seen == [2.0, 2.0, 3.0, 3.0]


def test_outputs_are_allocated_on_each_gpu(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    x, _ = arrays(mesh)
    y = shift(out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype))(x, mesh=mesh)
    assert [(type(each), each.device) for each in y] == [(DeviceArray, 0), (DeviceArray, 1)]


# ---- a lost peer
def give_up(table: bytes, *record: int) -> None:
    """Do what the kernel does when its wait takes too long."""
    address = struct.unpack_from("<Q", table, 128 + 8)[0]
    ctypes.memmove(address, struct.pack("<I4i4Ii", *record), 40)


@pytest.mark.parametrize(
    "record, told",
    [
        (
            (control_block.SEMAPHORE, 0, 2, 1, 4, 5, 0, 0, 130, 0),
            r"^k\.py:12: kernel shift, GPU 0, CTA \(5, 0, 0\): it waited 8 s for ready\[2\] to "
            r"reach 4, but it is 1; GPU 1 did not",
        ),
        (
            (control_block.BEGIN, 0, 1, 0, 1, 0, 0, 0, 32, -1),
            "^kernel shift.*it waited 8 s for the launch on GPU 1 to begin; GPU 1 has not "
            "launched it",
        ),
    ],
)
def test_the_next_call_and_every_later_one_says_who_waited_for_what(
    fake: FakeDriver, record: tuple[int, ...], told: str
) -> None:
    mesh, kernel, seen = numpipe.Mesh.local(), shift(), launched(fake)
    x, y = arrays(mesh)
    kernel(x, y, mesh=mesh)
    mesh.check()
    give_up(seen[0][0], *record)
    for call in (lambda: kernel(x, y, mesh=mesh), lambda: kernel(y, x, mesh=mesh), mesh.check):
        with pytest.raises(PipelineDeadlock, match=told) as error:
            call()
    assert (
        error.value.report is not None
        and error.value.report.hazard == "deadlock"
        and len(seen) == 2
    )
    kernel(x, y, mesh=numpipe.Mesh.local())
    assert len(seen) == 4


def test_of_several_kernels_the_one_that_waited_is_named(fake: FakeDriver) -> None:
    mesh, seen = numpipe.Mesh.local(), launched(fake)
    x, y = arrays(mesh)
    for count in (1, 2):
        kernel = shift(count)
        kernel(x, y, mesh=mesh)
    give_up(seen[3][0], control_block.SEMAPHORE, 1, 1, 0, 1, 0, 0, 0, 0, -1)
    with pytest.raises(
        PipelineDeadlock,
        match=r"kernel shift, GPU 1, .*ready\[1\] to reach 1, but it is 0; GPU 0 did not",
    ):
        mesh.check()


def test_a_kernel_with_debug_reports_what_each_gpu_has_added(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "symbol", lambda kernel, name: fake.pinned(64)[0], raising=False)
    monkeypatch.setattr(
        fake,
        "poke",
        lambda address, data, ordinal: ctypes.memmove(address, data, len(data)),
        raising=False,
    )
    monkeypatch.setattr(launch.launcher, "WATCH", launch.debug_reports.Watch())
    mesh, seen = numpipe.Mesh.local(), launched(fake)
    shift(debug=True)(*arrays(mesh), mesh=mesh)
    assert struct.unpack_from("<Q", seen[0][0], 128 + 16) == (1_000_000_000,), (
        "waits for barriers are given up after 2 s"
    )
    ready = seen[0][1][-3]
    for rank, added in ((0, 3), (1, 2)):
        ctypes.c_int32.from_address(ready + 4 * (3 * (1 + rank) + 2)).value = added
    give_up(seen[0][0], control_block.SEMAPHORE, 0, 2, 5, 6, 0, 0, 0, 0, -1)
    with pytest.raises(
        PipelineDeadlock,
        match=r"of the signals added to it, GPU 1 added least \(GPU 0 3, GPU 1 2\)",
    ):
        mesh.check()


def test_a_record_that_is_being_written_is_not_read(fake: FakeDriver) -> None:
    mesh, kernel, seen = numpipe.Mesh.local(), shift(), launched(fake)
    x, y = arrays(mesh)
    kernel(x, y, mesh=mesh)
    give_up(seen[0][0], 0, 0, 2, 1, 4, 5, 0, 0, 130, 0)
    kernel(x, y, mesh=mesh)
    assert len(seen) == 4


def test_how_long_a_wait_may_take_is_the_environments(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(controls.TIMEOUT, "60")
    mesh, seen = numpipe.Mesh.local(), launched(fake)
    shift()(*arrays(mesh), mesh=mesh)
    assert struct.unpack_from("<Q", seen[0][0], 128 + 16) == (60_000_000_000,)
    monkeypatch.setenv(controls.TIMEOUT, "soon")
    with pytest.raises(
        SpecError, match="NUMPIPE_PEER_TIMEOUT='soon': expected a number of seconds"
    ):
        shift(5)(*arrays(mesh), mesh=mesh)


# ---- what is rejected
def test_gpus_that_cannot_access_each_other_do_not_form_a_mesh(fake: FakeDriver) -> None:
    fake.apart = {(1, 0)}
    with pytest.raises(
        LaunchError, match="no peer access between GPU 1 and GPU 0: .*choose other GPUs"
    ):
        numpipe.Mesh.local()
    assert repr(numpipe.Mesh.local([1])) == "Mesh.local([1])"


@pytest.mark.parametrize(
    "devices, error, told",
    [
        ([0, 2], TargetError, "GPU 2 cannot run kernels; fix: choose from 0, 1"),
        ([0, 0], SpecError, "distinct CUDA ordinals"),
        ([], SpecError, "non-empty list"),
        (2, SpecError, "devices must be None or a tuple or list"),
    ],
)
def test_a_mesh_has_different_gpus_that_are_there(
    fake: FakeDriver, devices: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        numpipe.Mesh.local(devices)


def test_arrays_are_on_the_gpu_of_their_rank(fake: FakeDriver) -> None:
    mesh, kernel = numpipe.Mesh.local(), shift()
    x, y = arrays(mesh)
    with pytest.raises(
        SpecError,
        match="'x' of kernel 'shift' of rank 0 is on GPU 1 of this process, but rank 0 .* is GPU 0",
    ):
        kernel(x[::-1], y[::-1], mesh=mesh)
    host = [np.zeros((64, 64), np.float32)] * 2
    with pytest.raises(SpecError, match="'x' of kernel 'shift' of rank 0 is on the host"):
        kernel(host, [each.copy() for each in host], mesh=mesh)
    assert not fake.named("launch")


def test_streams_are_a_list_of_one_for_each_gpu(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    with pytest.raises(
        SpecError, match=r"stream= with Mesh.local\(\[0, 1\]\) must be a list of 2 streams"
    ):
        shift()(*arrays(mesh), mesh=mesh, stream=7)


def test_an_output_of_one_gpu_that_overlaps_its_input_is_refused(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    x, _ = arrays(mesh)
    rows = [each.info()._replace(shape=(32, 64)) for each in x]
    with pytest.raises(SpecError, match="overlap|shares"):
        shift()(rows, [each._replace(ptr=each.ptr + 256) for each in rows], mesh=mesh)


def test_memory_of_a_pool_is_shared_once_it_is_reached(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    x, y = arrays(mesh)
    assert fake.named("share_pool") == [(0, (0, 1)), (1, (0, 1))] and fake.named("enable_peer") == [
        (0, 1),
        (1, 0),
    ]
    shift()(x, y, mesh=mesh)
    assert fake.named("share_memory") == [(y[0].ptr, 0), (y[1].ptr, 1)]


def test_a_call_that_may_not_compile_says_how_to_compile_it_ahead(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    with numpipe.jit("error"), pytest.raises(numpipe.JitRefused) as error:
        shift()(*arrays(mesh), mesh=mesh)
    assert 'numpipe.warmup([(shift, (x, y), {"mesh": mesh})])' in str(error.value).replace(
        'numpipe.ArrayType((64, 64), "float32"), numpipe.ArrayType((64, 64), "float32")', "x, y"
    )
    assert "export" not in str(error.value)


# ---- memory
def test_host_arrays_are_copied_to_each_gpu(fake: FakeDriver) -> None:
    host = [np.full((3, 5), gpu, np.float16) for gpu in range(2)]
    there = numpipe.Mesh.local().to_device(host)
    assert [each.device for each in there] == [0, 1]
    for array, each in zip(host, there, strict=True):
        np.testing.assert_array_equal(np.asarray(each), array)


def test_a_workspace_stays_until_a_larger_one_is_wanted(fake: FakeDriver) -> None:
    mesh = numpipe.Mesh.local()
    first, same, other = (
        mesh.workspace("gathered", shape, np.float16, 7)
        for shape in ((64, 64), (32, 32), (640, 64))
    )
    assert (
        [each.ptr for each in first] == [each.ptr for each in same] != [each.ptr for each in other]
    )
    assert [(each.shape, each.strides, each.device) for each in same] == [
        ((32, 32), (64, 2), gpu) for gpu in (0, 1)
    ]
    assert mesh.workspace("gathered", (64, 64), np.float16, 8)[0].ptr != first[0].ptr
