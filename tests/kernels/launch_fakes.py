"""A fake driver and fake arrays that need no GPU: "device" memory is host memory, and a kernel is a
Python function."""

from __future__ import annotations

import contextlib
import ctypes
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from numpipe import launch
from numpipe.launch import current_gpu, driver


def choose_a_fake_gpu(monkeypatch: Any) -> None:
    """Let calls run on a GPU that does not exist."""
    gpu = launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    monkeypatch.setattr(launch, "choose_target", lambda *_: launch.Choice("gpu", "a fake", gpu))


class FakeDriver:
    """A fake of `numpipe.launch.driver.Driver` on host memory; `calls` lists the requests in order.

    Memory is filled with 0xAB when allocated and when freed. `kernel` runs at each launch with the
    list of parameter addresses; `code` is what launches return.
    """

    def __init__(
        self,
        count: int = 1,
        version: int = 13000,
        gpus: Sequence[tuple[str, tuple[int, int]]] = (("NVIDIA H200", (9, 0)),),
    ) -> None:
        self.count = count
        self.gpus = gpus
        self.cuda = version
        self.calls: list[tuple[Any, ...]] = []
        self.kernel: Callable[[list[int]], None] = lambda parameters: None
        self.sizes: list[int] = []
        self.code = 0
        self.captured: set[int] = set()
        """streams being captured, in the mode that allows no other calls"""
        self.relaxed = False
        self.streams: dict[int, int] = {}
        """stream -> GPU"""
        self.at_once = 132
        """the number of CTAs, or clusters, that run at once"""
        self.live: dict[int, Any] = {}
        self.freed: dict[int, list[Any]] = {}
        self.apart: set[tuple[int, int]] = set()
        """pairs of GPUs that cannot access each other"""
        self.maps: list[tuple[Any, ...]] = []
        self.events: list[Any] = []
        self.failure_at_sync: driver.DriverError | None = None

    def maps_as_text(self) -> list[str]:
        return [str(m) for m in self.maps]

    def named(self, call: str) -> list[tuple[Any, ...]]:
        return [c[1:] for c in self.calls if c[0] == call]

    # ---- devices
    def version(self) -> int:
        return self.cuda

    def properties(self, ordinal: int) -> tuple[str, tuple[int, int], int, int, float]:
        return *self.gpus[ordinal], 132, 232448, 0.0

    @contextlib.contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def aside(self, ordinal: int) -> Iterator[int]:
        self.relaxed = True
        try:
            yield 99
        finally:
            self.relaxed = False

    def abandon(self) -> None:
        self.calls.append(("abandon",))

    def capturing(self, stream: int, ordinal: int) -> bool:
        return stream in self.captured

    def stream_device(self, stream: int) -> int:
        self.calls.append(("stream_device", stream))
        if stream in self.captured:
            raise driver.DriverError(
                "cuStreamGetDevice", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            )
        if stream not in self.streams:
            raise driver.DriverError("cuStreamGetDevice", 400, "CUDA_ERROR_INVALID_HANDLE")
        return self.streams[stream]

    def pointer_device(self, address: int) -> int:
        self.calls.append(("pointer_device", address))
        return 1

    # ---- kernels
    def load(self, cubin: bytes, entry: str) -> Any:
        self.calls.append(("load", cubin, entry))
        if self.captured and not self.relaxed:
            raise driver.DriverError(
                "cuLibraryLoadData", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            )
        return f"kernel {entry}"

    def allow_shared(self, kernel: Any, nbytes: int, ordinal: int) -> None:
        self.calls.append(("allow_shared", kernel, nbytes, ordinal))
        if self.captured and not self.relaxed:
            raise driver.DriverError("cuFuncLoad", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    def config(self, threads: int, nbytes: int, attributes: Any = None) -> Any:
        self.calls.append(("config", threads, nbytes))
        self.attributes = attributes
        return types.SimpleNamespace(
            gridDimX=0, gridDimY=0, gridDimZ=0, hStream=0, blockDimX=threads, sharedMemBytes=nbytes
        )

    def allow_cluster(self, kernel: Any, ordinal: int) -> None:
        self.calls.append(("allow_cluster", kernel, ordinal))

    def clusters_at_once(self, kernel: Any, config: Any) -> int:
        self.calls.append(("clusters_at_once", (config.gridDimX, config.gridDimY, config.gridDimZ)))
        return self.at_once

    def ctas_at_once(self, kernel: Any, threads: int, nbytes: int, ordinal: int) -> int:
        self.calls.append(("ctas_at_once", threads, nbytes, ordinal))
        return self.at_once

    def launch(self, config: Any, kernel: Any, params: int, ordinal: int) -> int:
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        self.calls.append(("launch", grid, config.hStream, ordinal))
        slots = (ctypes.c_void_p * len(self.sizes)).from_address(params)
        self.kernel([slot or 0 for slot in slots])
        return self.code

    def launcher(
        self, ordinal: int, cleared: tuple[int, int, int] | None = None
    ) -> Callable[..., tuple[int]]:
        def launch(config: Any, kernel: Any, params: int, _: int) -> tuple[int]:
            if cleared is not None:
                self.clear(cleared[0], 0, cleared[1], 1, cleared[2], ordinal)
            return (self.launch(config, kernel, params, ordinal),)

        return launch

    def relaunch(
        self, code: int, config: Any, kernel: Any, params: int, extra: int, ordinal: int
    ) -> int:
        return code

    def error(self, call: str, code: int) -> driver.DriverError:
        return driver.DriverError(
            call, code, {700: "CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code, "CUDA_ERROR")
        )

    def encode_tiled(self, *what: Any) -> bytes:
        self.maps.append(what)
        return len(self.maps).to_bytes(128, "little")

    # ---- events
    def mark(self, event: Any, stream: int) -> Any:
        event = event or types.SimpleNamespace(reached=False)
        event.reached = False
        self.calls.append(("mark", stream))
        self.events.append(event)
        return event

    def unmark(self, event: Any, ordinal: int) -> None:
        self.events.remove(event)

    def reached(self, event: Any, ordinal: int) -> bool:
        return bool(event.reached)

    # ---- memory
    def allocate(self, nbytes: int, stream: int, ordinal: int) -> int:
        # like the driver's pools, reuse the memory that was freed last
        freed = self.freed.get(nbytes + 256)
        storage = freed.pop() if freed else (ctypes.c_uint8 * (nbytes + 256))()
        ctypes.memset(storage, 0xAB, len(storage))
        address = (ctypes.addressof(storage) + 255) // 256 * 256
        self.live[address] = storage
        self.calls.append(("allocate", nbytes, stream, ordinal))
        return address

    def blank(self, ordinal: int, written: bool, fill: str = "zeros") -> int:
        return 1 << 12

    def counter(self, ordinal: int) -> int:
        """Return the address of 8 zero bytes, kept alive by `live`."""
        storage = (ctypes.c_uint64 * 1)()
        self.calls.append(("counter", ordinal))
        self.live[ctypes.addressof(storage)] = storage
        return ctypes.addressof(storage)

    def free(self, address: int, stream: int, ordinal: int) -> None:
        storage = self.live.pop(address)
        ctypes.memset(storage, 0xAB, len(storage))
        self.freed.setdefault(len(storage), []).append(storage)
        self.calls.append(("free", stream, ordinal))

    def copy_in(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        stream: int,
        ordinal: int,
    ) -> None:
        self.calls.append(("copy_in", dst_pitch, src_pitch, width, height, stream))
        for row in range(height):
            ctypes.memmove(dst + row * dst_pitch, src + row * src_pitch, width)

    def copy_on(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        stream: int,
        ordinal: int,
    ) -> None:
        self.calls.append(("copy_on", dst_pitch, src_pitch, width, height, stream))
        assert height == 1 or min(dst_pitch, src_pitch) >= width, "the driver refuses such rows"
        for row in range(height):
            ctypes.memmove(dst + row * dst_pitch, src + row * src_pitch, width)

    def copy_out(
        self,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        stream: int,
        ordinal: int,
    ) -> None:
        self.calls.append(("copy_out", dst_pitch, src_pitch, width, height, stream))
        for row in range(height):
            ctypes.memmove(dst + row * dst_pitch, src + row * src_pitch, width)

    def clear(
        self, address: int, pitch: int, words: int, rows: int, stream: int, ordinal: int
    ) -> None:
        self.calls.append(("clear", address, stream))
        for row in range(rows):
            ctypes.memset(address + row * pitch, 0, 4 * words)

    def page_locked(self, address: int, nbytes: int, ordinal: int) -> bool:
        return False

    def lock_pages(self, address: int, nbytes: int, ordinal: int) -> None:
        """Fail to lock pages, so that the driver makes all copies; the driver of `host_fakes` locks
        them."""
        raise driver.DriverError("cuMemHostRegister", 801, "CUDA_ERROR_NOT_SUPPORTED")

    # ---- several GPUs
    def enable_peer(self, ordinal: int, peer: int) -> None:
        if (ordinal, peer) in self.apart:
            name = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
            raise driver.DriverError("cuCtxEnablePeerAccess", 217, name)
        self.calls.append(("enable_peer", ordinal, peer))

    def share_pool(self, ordinal: int, ordinals: Sequence[int]) -> None:
        self.calls.append(("share_pool", ordinal, tuple(ordinals)))

    def share_memory(self, address: int, ordinal: int, ordinals: Sequence[int]) -> None:
        self.calls.append(("share_memory", address, ordinal))

    def kept(self, data: bytes, ordinal: int) -> int:
        address = self.allocate(len(data), 99, ordinal)
        self.poke(address, data, ordinal)
        return address

    def pinned(self, nbytes: int) -> tuple[int, int]:
        storage = (ctypes.c_uint8 * nbytes)()
        self.live[ctypes.addressof(storage)] = storage
        return ctypes.addressof(storage), ctypes.addressof(storage)

    def poke(self, address: int, data: bytes, ordinal: int) -> None:
        ctypes.memmove(address, data, len(data))

    def peek(self, address: int, nbytes: int, ordinal: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def finish(self, ordinal: int) -> None:
        self.calls.append(("finish", ordinal))

    def synchronize(self, stream: int, ordinal: int) -> None:
        self.calls.append(("synchronize", stream))
        if self.failure_at_sync is not None:
            raise self.failure_at_sync


class CudaArray:
    """An object with ``__cuda_array_interface__`` and nothing else."""

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...],
        typestr: str,
        strides: tuple[int, ...] | None = None,
        readonly: bool = False,
        **more: Any,
    ) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (ptr, readonly),
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            **more,
        }


class TorchDtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


TORCH_DTYPES = {name: TorchDtype(name) for name in ("float16", "bfloat16", "float32", "complex64")}


class TorchTensor:
    """The attributes of a torch.Tensor that describe reads; strides in elements, as in PyTorch."""

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...],
        device: int = 0,
    ) -> None:
        self._ptr, self.shape, self._strides, self._device = ptr, shape, strides, device
        self.dtype = TORCH_DTYPES[dtype]
        self.device = types.SimpleNamespace(type="cuda" if device >= 0 else "meta", index=device)

    def data_ptr(self) -> int:
        return self._ptr

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def get_device(self) -> int:
        return self._device

    def is_neg(self) -> bool:
        return False


def view(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any
) -> np.ndarray[Any, Any]:
    """Return fake device memory as a NumPy array."""
    extent = (
        sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) + np.dtype(dtype).itemsize
    )
    raw = np.frombuffer((ctypes.c_uint8 * extent).from_address(address), np.uint8)
    return np.lib.stride_tricks.as_strided(
        raw.view(dtype) if extent % np.dtype(dtype).itemsize == 0 else raw, shape, strides
    )


@contextlib.contextmanager
def opened(monkeypatch: Any, fake: Any) -> Iterator[Any]:
    """Install `fake` as the driver, with the wheels for CUDA 13; reset GPUs and tensor maps before
    and after.

    Simulated calls do not compile kernels, and nothing is cached on disk: tests count or fake
    compiles.
    """
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setattr(current_gpu, "cuda_wheels_major", lambda: 13)
    monkeypatch.delenv(current_gpu.VARIABLE, raising=False)
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setenv("NUMPIPE_CACHE", "0")
    caches = launch.gpu_state, launch.encode
    for cache in caches:
        cache.cache_clear()
    yield fake
    for cache in caches:
        cache.cache_clear()


def raising(error: Exception) -> Callable[[], Any]:
    """Return a replacement for the function that opens the driver, which raises."""

    def fail() -> Any:
        raise error

    return fail


@contextlib.contextmanager
def pretended(
    monkeypatch: Any, machines: Mapping[str, Callable[[], Any]]
) -> Iterator[Callable[[str], None]]:
    """Yield a function that pretends to be one of `machines`, which are what opens the driver.

    The wheels are for CUDA 13.
    """

    def become(name: str) -> None:
        monkeypatch.setattr(driver, "_opened", None)
        monkeypatch.setattr(driver, "_open", machines[name])
        launch.gpu_state.cache_clear()

    monkeypatch.delenv(current_gpu.VARIABLE, raising=False)
    monkeypatch.setattr(current_gpu, "cuda_wheels_major", lambda: 13)
    yield become
    launch.gpu_state.cache_clear()
