"""A fake driver and compiler for exported kernels, to compare the launches of two kernels."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import launch
from numpipe.kernels.calls import Calls
from numpipe.kernels.variants import Variant
from numpipe.launch import driver
from numpipe.launch.table import Table
from tests.kernels.export_kernels import scaled
from tests.kernels.launch_fakes import FakeDriver, TorchTensor
from tests.kernels.launch_kernels import image


class Noting(FakeDriver):
    """A driver that records the parameters of each launch.

    The name of a kernel gives the sizes of its parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream = 5
        self.seen: list[list[int]] = []
        self.kernel = self.note
        self.allocated: dict[int, int] = {}

    def launch(self, config: Any, kernel: Any, params: int, ordinal: int) -> int:
        self.sizes = [int(size) for size in kernel.rpartition("__")[2].split("_")]
        return super().launch(config, kernel, params, ordinal)

    def allocate(self, nbytes: int, stream: int, ordinal: int) -> int:
        address = super().allocate(nbytes, stream, ordinal)
        self.allocated[address] = len(self.allocated)
        return address

    def note(self, parameters: list[int]) -> None:
        words = [
            int.from_bytes((ctypes.c_char * size).from_address(at).raw, "little")
            for at, size in zip(parameters, self.sizes, strict=True)
        ]
        self.seen.append(
            [self.allocated.get(word, -1 if 1 << 40 < word < 1 << 64 else word) for word in words]
        )

    def encode_tiled(self, *what: Any) -> bytes:
        """Return bytes that encode the request."""
        words = repr(
            [self.allocated.get(part, part) if isinstance(part, int) else part for part in what]
        )
        return hashlib.sha512(words.encode()).digest() * 2

    def counter(self, ordinal: int) -> int:
        return 1 << 13


class Torch(TorchTensor):
    """A tensor on the GPU; further tensors are allocated at increasing addresses."""

    made = 0

    def __init__(
        self,
        ptr: int,
        shape: tuple[int, ...] = (64, 64),
        dtype: str = "float32",
        strides: tuple[int, ...] | None = None,
        device: int = 0,
    ) -> None:
        strides = strides or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        super().__init__(ptr, shape, dtype, strides, device)

    @classmethod
    def like(cls, shape: tuple[int, ...], dtype: Any) -> Torch:
        made = cls(0, tuple(shape))
        made.dtype = dtype
        return made


@contextlib.contextmanager
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Noting]:
    """Replace the compile of all kernels, and yield the fake driver that launches them."""
    fake = Noting()
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setenv("NUMPIPE_CACHE", "0")
    monkeypatch.setattr(Variant, "_build", built)
    # other tests compile `scaled`
    monkeypatch.setattr(scaled, "_calls", Calls(scaled.definition, Table()))

    def empty(shape: Any, dtype: Any = None, device: Any = None, **_: Any) -> Torch:
        Torch.made += 1
        return Torch(
            (1 << 24) + 65536 * Torch.made, tuple(shape), getattr(dtype, "name", dtype) or "float32"
        )

    monkeypatch.setitem(
        sys.modules,
        "torch",
        types.SimpleNamespace(
            _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: fake.stream),
            empty=empty,
            empty_like=lambda like, **_: empty(like.shape, like.dtype),
            float32="float32",
            float16="float16",
            contiguous_format=None,
            cuda=types.SimpleNamespace(is_initialized=lambda: False),
        ),
    )
    monkeypatch.setattr(
        launch.output_arrays,
        "_element",
        lambda dtype, _: types.SimpleNamespace(expand=lambda shape: Torch.like(shape, dtype)),
    )
    caches = launch.current_gpu.gpu_state, launch.streams._torch_getter, launch.encode
    for cache in caches:
        cache.cache_clear()
    yield fake
    for cache in caches:
        cache.cache_clear()


def built(self: Variant) -> Any:
    """Return a fake image, which names the types it was compiled for."""
    arrays = self.arrays
    maps = tuple(
        launch.MapRequest(number, (64, 32), 0, "zeros", array.output)
        for number, array in enumerate(arrays)
        if array.ndim == 2 and array.tma and not array.workspace
    )
    sizes = [
        max(len(maps), 1) * 128,
        *[8] * sum(1 + 2 * array.ndim for array in arrays),
        *[kind.itemsize for kind in self.scalars],
    ]
    return types.SimpleNamespace(
        image=image(
            maps,
            tuple(array.name for array in arrays),
            tuple(array.order for array in arrays),
            name=self.definition.name,
            entry=f"{self.definition.name}__{'_'.join(map(str, sizes))}",
            cubin=repr((self.key, [id(type(value)) for _, value in self.statics])).encode(),
        )
    )


def did(fake: Noting, kernel: Any, call: Callable[[Any], Any]) -> Any:
    """Return what a call of a kernel makes the driver do, and what it returns or raises."""
    launch.encode.cache_clear()
    launch.buffers._workspaces.clear()
    fake.calls.clear(), fake.seen.clear(), fake.allocated.clear()
    Torch.made = 0
    try:
        outcome = call(kernel)
    except Exception as error:
        outcome = error
    results = outcome if isinstance(outcome, tuple) else (outcome,)
    shown = [
        (
            type(r).__name__,
            getattr(r, "shape", None),
            str(getattr(r, "dtype", None)),
            getattr(r, "_ptr", 0),
            str(r) if isinstance(r, Exception) else "",
        )
        for r in results
    ]
    calls = [
        what
        for what in fake.calls
        if what[0] not in ("config", "allow_shared", "load", "ctas_at_once", "clusters_at_once")
    ]
    return shown, list(fake.seen), calls


def same(
    fake: Noting,
    kernel: Any,
    signatures: list[Any],
    calls: list[Callable[[Any], Any]],
    **options: Any,
) -> Any:
    """Export the kernel, load it, compare calls of both, and return the loaded kernel."""
    kernel.export("k.numpipe", *signatures, **options)
    loaded = numpipe.load("k.numpipe")
    for number, call in enumerate(calls):
        expected, got = did(fake, kernel, call), did(fake, loaded, call)
        assert got == expected, number
        again = did(fake, kernel, call), did(fake, loaded, call)
        assert again[0] == again[1], number
    return loaded
