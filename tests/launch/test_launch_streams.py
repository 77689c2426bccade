"""Streams of every library and GPU, CUDA graphs, and launch attributes, with a driver that needs no
GPU."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import LaunchError, SpecError, launch
from numpipe.launch import attributes, driver, streams
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import SIZES, arrays, doubled, image

TWO = (("NVIDIA H200", (9, 0)),) * 2


def forget() -> None:
    streams._device_of.clear()
    streams._torch_getter.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget()
    yield
    forget()


# ---- streams
def test_streams_of_numba_and_cuda_core() -> None:
    stream = types.SimpleNamespace(handle=9, __cuda_stream__=lambda: (0, 9))
    assert launch.as_stream(stream) == 9


def test_handles_of_cuda_bindings_are_streams() -> None:
    api = pytest.importorskip("cuda.bindings.driver")
    assert launch.as_stream(api.CUstream(9)) == 9


def test_a_stream_of_cuda_core_and_one_that_was_closed() -> None:
    core = pytest.importorskip("cuda.core")
    stream = core.Stream.from_handle(9)
    assert launch.as_stream(stream) == 9
    stream.close()
    with pytest.raises(
        SpecError,
        match=r"stream: this \w+ cannot be used \(Stream has been closed\): pass one that is open",
    ):
        launch.as_stream(stream)


@pytest.mark.parametrize(
    "stream", [-1, [], types.SimpleNamespace(handle="x"), types.SimpleNamespace(handle=True), int]
)
def test_no_streams(stream: Any) -> None:
    with pytest.raises(SpecError, match="is not a (CUDA stream|handle)"):
        launch.as_stream(stream)


def test_with_one_gpu_the_driver_is_not_queried_about_streams(fake: FakeDriver) -> None:
    doubled()(*arrays(), stream=4096)
    assert fake.named("launch") == [((1, 1, 1), 4096, 0)] and not fake.named("stream_device")


def several(fake: FakeDriver) -> None:
    fake.count, fake.gpus, fake.streams = 2, TWO, {4096: 0, 8192: 1}  # arrays are on GPU 1


def test_a_stream_of_another_gpu_is_refused_before_the_launch_with_both_named(
    fake: FakeDriver,
) -> None:
    several(fake)
    with pytest.raises(
        SpecError,
        match=r"kernel doubled: the stream 0x1000 belongs to GPU 0, but the arrays are on GPU 1: "
        r"pass a stream of GPU 1",
    ):
        doubled()(*arrays(), stream=4096)
    assert not fake.named("launch")


def test_a_stream_is_asked_for_its_gpu_once(fake: FakeDriver) -> None:
    several(fake)
    kernel = doubled()
    for place in (0, 64, 128):
        kernel(*arrays(place), stream=8192)
    assert fake.named("stream_device") == [(8192,)] and len(fake.named("launch")) == 3
    with pytest.raises(SpecError, match="belongs to GPU 1, but the arrays are on GPU 0"):
        streams.check(8192, 0, "k")


def test_a_stream_of_another_gpu_is_refused_for_host_arrays_before_anything_is_copied(
    fake: FakeDriver,
) -> None:
    several(fake)
    with pytest.raises(
        SpecError,
        match="kernel doubled: the stream 0x2000 belongs to GPU 1, but the arrays are on GPU 0",
    ):
        doubled()(*host(), stream=8192)  # computed on the first GPU
    assert [call[0] for call in fake.calls] == ["stream_device"]


def test_a_stream_handle_may_be_reused(fake: FakeDriver) -> None:
    several(fake)
    streams.check(8192, 1, "k")
    fake.streams[8192] = 0  # destroyed and created again
    streams.check(8192, 0, "k")


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_each_gpu_has_its_own_default_stream(fake: FakeDriver, stream: int) -> None:
    several(fake)
    doubled()(*arrays(), stream=stream)
    assert fake.named("launch") == [((1, 1, 1), stream, 1)]


def test_a_handle_that_the_driver_does_not_know(fake: FakeDriver) -> None:
    several(fake)
    with pytest.raises(
        SpecError, match="kernel doubled: the driver does not know stream 0x7b .*destroyed"
    ):
        doubled()(*arrays(), stream=123)


@pytest.mark.parametrize("code", [400, 709])
def test_a_launch_on_a_destroyed_stream_says_so(fake: FakeDriver, code: int) -> None:
    fake.code = code
    with pytest.raises(
        LaunchError,
        match=rf"kernel 'doubled'.*\({code}\): the stream 0x1000 was destroyed, or belongs to "
        rf"another",
    ):
        doubled()(*arrays(), stream=4096)
    with pytest.raises(
        LaunchError, match="belongs to another GPU" if code == 400 else "primary context was reset"
    ):
        doubled()(*arrays())


# ---- CUDA graphs
def test_a_call_on_device_arrays_is_one_launch_also_while_its_stream_is_captured(
    fake: FakeDriver,
) -> None:
    kernel = doubled()
    kernel(*arrays(), stream=4096)
    fake.calls.clear()
    fake.captured = {4096}
    kernel(*arrays(), stream=4096)
    assert [call[0] for call in fake.calls] == ["launch"]


def test_the_first_call_may_be_captured_it_allocates_and_waits_on_no_stream_of_the_users(
    fake: FakeDriver,
) -> None:
    fake.captured = {4096}
    doubled()(*arrays(), stream=4096)
    assert {call[0] for call in fake.calls} <= {"load", "allow_shared", "config", "launch"}


def test_the_gpu_of_a_captured_stream_is_not_queried_which_would_end_the_capture(
    fake: FakeDriver,
) -> None:
    several(fake)
    fake.captured = {8192}
    doubled()(*arrays(), stream=8192)
    assert not fake.named("stream_device") and len(fake.named("launch")) == 1
    fake.captured = set()
    with pytest.raises(SpecError, match="belongs to GPU 1, but the arrays are on GPU 0"):
        streams.check(8192, 0, "k")  # only what was queried is remembered


def host() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)


def test_a_call_on_host_arrays_on_a_stream_that_is_captured_is_refused_before_anything_is_queued(
    fake: FakeDriver,
) -> None:
    fake.captured = {4096}
    with pytest.raises(
        SpecError,
        match=r"kernel doubled: its arrays are on the host and its stream \(0x1000\) is being "
        r"captured",
    ):
        doubled()(*host(), stream=4096)
    assert not fake.calls
    doubled()(*host())  # another stream, and no library is capturing
    assert fake.named("launch")


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_so_is_one_while_a_librarys_current_stream_is_captured(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    modules = {
        "torch": types.SimpleNamespace(
            cuda=types.SimpleNamespace(is_initialized=lambda: True),
            _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda gpu: 4096),
        ),
        "cupy": types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                get_current_stream=lambda gpu: types.SimpleNamespace(ptr=4096)
            )
        ),
    }
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, modules[library])
    doubled()(*host())
    fake.captured = {4096}
    with pytest.raises(
        SpecError,
        match=f"{ {'torch': 'PyTorch', 'cupy': 'CuPy'}[library] }'s current stream.*being captured",
    ):
        doubled()(*host())


def test_an_output_that_would_be_memory_of_the_graph_is_refused(fake: FakeDriver) -> None:
    a, c = arrays()
    kernel = doubled(out_type=lambda a: numpipe.ArrayType(a.shape, np.float32))
    kernel(a, stream=4096)
    fake.captured = {4096}
    with pytest.raises(
        SpecError, match=r"out: the stream \(0x1000\) is being captured.*pass it as out="
    ):
        kernel(a, stream=4096)
    kernel(a, out=c, stream=4096)
    assert len(fake.named("launch")) == 2 and len(fake.named("allocate")) == 1


def test_kernels_that_the_host_watches_are_not_captured(fake: FakeDriver) -> None:
    told: list[Any] = []
    by = types.SimpleNamespace(launched=lambda *what: told.append(what[1:]))
    prepared = launch.Prepared(image(), [])
    prepared.observers = [by]
    launched = prepared.launcher((1, 1, 1), 4096, 0)
    parameters = (ctypes.c_void_p * len(SIZES))()
    config = types.SimpleNamespace(gridDimX=1, gridDimY=1, gridDimZ=1, hStream=4096)
    launched(config, "kernel", ctypes.addressof(parameters), 0)
    assert told == [((1, 1, 1), 4096, 0)] == fake.named("launch")
    fake.captured = {4096}
    with pytest.raises(
        SpecError,
        match=r"kernel doubled: it is built with CompilerParams\(debug=True\) or profile_space.*"
        "captured",
    ):
        launched(config, "kernel", ctypes.addressof(parameters), 0)
    assert len(fake.named("launch")) == len(told) == 1


# ---- launch attributes
def test_attributes_of_a_kernel_reach_the_driver(fake: FakeDriver) -> None:
    doubled()(*arrays())
    assert fake.attributes == attributes.Attributes((1, 1, 1), False, True)
    doubled(grid=(4, 2), cluster=(2, 1), programmatic=False)(*arrays())
    assert fake.attributes == attributes.Attributes((2, 1, 1), False, False)
    doubled(grid=(4,), cooperative=True)(*arrays())
    assert fake.attributes == attributes.Attributes((1, 1, 1), True, False)


def test_the_driver_gets_only_requested_attributes() -> None:
    api = pytest.importorskip("cuda.bindings.driver")
    cuda = object.__new__(driver.Driver)
    cuda._api = api
    kept: list[Any] = []

    def made(*given: Any) -> list[tuple[str, Any]]:
        config = cuda.config(384, 1000, attributes.Attributes(*given))
        assert (config.blockDimX, config.sharedMemBytes, config.numAttrs) == (
            384,
            1000,
            len(config.attrs),
        )
        kept.append(config)  # it owns the memory of the values
        return [(a.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"), a.value) for a in config.attrs]

    assert made((1, 1, 1), False, False) == []
    ((name, value),) = made()
    assert (name, value.programmaticStreamSerializationAllowed) == (
        "PROGRAMMATIC_STREAM_SERIALIZATION",
        1,
    )
    (name, value), (other, dims) = made((4, 2, 1), True, False)
    assert (name, value.cooperative, other) == ("COOPERATIVE", 1, "CLUSTER_DIMENSION")
    assert (dims.clusterDim.x, dims.clusterDim.y, dims.clusterDim.z) == (4, 2, 1)


@pytest.mark.parametrize(
    "options, part",
    [
        ({"cluster": 0}, "kernel doubled: cluster must be 1 to 3 positive ints.*got 0"),
        ({"cluster": (1, 1, 1, 2)}, r"cluster must be 1 to 3 positive ints.*got \(1, 1, 1, 2\)"),
        ({"cluster": 2.0}, "cluster must be 1 to 3 positive ints.*got 2.0"),
        ({"cluster": 32}, r"a cluster \(32,\) has 32 CTAs, but on Hopper it has at most 16"),
        ({"cluster": (4, 8)}, r"a cluster \(4, 8\) has 32 CTAs"),
        ({"cooperative": 1}, "cooperative must be True or False, got 1"),
        ({"programmatic": "no"}, "programmatic must be True, False or None, got 'no'"),
        (
            {"cluster": 2, "grid": (3,)},
            "the grid has 3 CTAs along x, not a multiple of the 2 of a cluster .*round it up to 4",
        ),
        (
            {"cluster": (1, 2), "grid": (4,)},
            r"the grid \(4,\) has 1 dimension, but a cluster \(1, 2, 1\) needs 2",
        ),
    ],
    ids=str,
)
def test_attributes_that_no_launch_can_have_are_refused_at_the_decorator(
    options: dict[str, Any], part: str
) -> None:
    with pytest.raises(SpecError, match=part):
        doubled(**options)


def test_a_grid_that_a_function_returns_is_checked_at_the_call_on_both_targets(
    fake: FakeDriver,
) -> None:
    odd = doubled(grid=lambda a: (a.shape[0] // 64 + 2,), cluster=2)
    with pytest.raises(
        SpecError,
        match="kernel doubled: the grid has 3 CTAs along x, not a multiple of the 2 of a cluster",
    ):
        odd(*arrays())
    with pytest.raises(
        SpecError,
        match="kernel doubled: the grid has 3 CTAs along x, not a multiple of the 2 of a cluster",
    ):
        odd(*host(), target="sim")


def test_a_persistent_grid_is_a_whole_number_of_clusters(fake: FakeDriver) -> None:
    for cluster, grid in (
        (1, (132, 1, 1)),
        (4, (132, 1, 1)),
        (8, (128, 1, 1)),
        (16, (128, 1, 1)),
        ((4, 2), (64, 2, 1)),
        ((1, 3, 2), (22, 3, 2)),
    ):
        doubled(grid=numpipe.persistent(), cluster=cluster)(*arrays())
        assert fake.named("launch")[-1] == (grid, 0, 0)
    with pytest.raises(
        SpecError,
        match=r"persistent\(9\) is not a multiple of the 2 CTAs of a cluster.*round it up to 10",
    ):
        doubled(grid=numpipe.persistent(9), cluster=2)(*arrays())


def test_a_persistent_grid_has_the_clusters_that_the_driver_says_run_at_once(
    fake: FakeDriver,
) -> None:
    fake.at_once = 30
    doubled(grid=numpipe.persistent(), cluster=4)(*arrays())
    assert fake.named("launch")[-1] == ((120, 1, 1), 0, 0)
    fake.at_once = 7
    doubled(grid=numpipe.persistent(), cluster=(2, 5))(*arrays())
    assert fake.named("launch")[-1] == ((14, 5, 1), 0, 0)
    fake.at_once = 66
    doubled(grid=numpipe.persistent(), cluster=2)(*arrays())
    assert fake.named("launch")[-1] == ((132, 1, 1), 0, 0)
    doubled(grid=numpipe.persistent(8), cluster=4)(*arrays())
    assert fake.named("launch")[-1] == ((8, 1, 1), 0, 0)


def test_clusters_that_no_gpc_holds_are_refused_when_the_kernel_is_loaded(fake: FakeDriver) -> None:
    fake.at_once = 0
    with pytest.raises(
        LaunchError,
        match="kernel 'doubled': a cluster of 16 CTAs, each of 384 threads and 200000 bytes of "
        "shared memory, does not fit on GPU 0",
    ):
        doubled(grid=(16,), cluster=16)(*arrays())
    assert fake.named("allow_cluster") and not fake.named("launch")
    doubled(grid=(16,))(*arrays())
    assert fake.named("launch")


def test_clusters_of_eight_need_no_leave(fake: FakeDriver) -> None:
    doubled(grid=(16,), cluster=8)(*arrays())
    assert not fake.named("allow_cluster") and fake.named("clusters_at_once") == [((8, 1, 1),)]


def test_a_cooperative_grid_must_run_at_once(fake: FakeDriver) -> None:
    doubled(grid=(132,), cooperative=True)(*arrays())
    assert fake.named("ctas_at_once") == [(384, 200_000, 0)] and fake.named("launch")
    with pytest.raises(
        LaunchError,
        match=r"kernel 'doubled': cooperative=True needs all CTAs to run at once, and the grid "
        r"\(133, 1, 1\) has 133; GPU 0 holds 132 of 384 threads",
    ):
        doubled(grid=(133,), cooperative=True)(*arrays())
    fake.at_once = 16  # clusters
    doubled(grid=(128,), cluster=8, cooperative=True)(*arrays())
    with pytest.raises(LaunchError, match=r"the grid \(136, 1, 1\) has 136; GPU 0 holds 128"):
        doubled(grid=(136,), cluster=8, cooperative=True)(*arrays())
    assert len(fake.named("launch")) == 2


def test_other_grids_have_any_number_of_ctas(fake: FakeDriver) -> None:
    doubled(grid=(100_000,))(*arrays())
    assert not fake.named("ctas_at_once") and not fake.named("clusters_at_once")


def test_a_kernel_over_tiles_has_attributes_too(fake: FakeDriver) -> None:
    spec = numpipe.BlockSpec((64, 64), lambda i: (i, 0))

    @numpipe.kernel(grid=(3,), in_specs=(spec,), out_specs=(spec,), cluster=1, programmatic=False)
    def copied(a, c):
        c[...] = a[...]

    assert copied.options.attributes == attributes.Attributes(programmatic=False)
    with pytest.raises(SpecError, match="the grid has 3 CTAs along x"):
        numpipe.kernel(copied.function, grid=(3,), in_specs=(spec,), out_specs=(spec,), cluster=2)
