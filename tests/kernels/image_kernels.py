"""Kernels of every kind of image, and a program that launches one from a file in a process that
compiles nothing.

``python image_kernels.py KIND FILE`` prints as JSON what the driver was asked to load and launch,
what `inspect` returns, and which compilers were imported.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpipe
from numpipe import CompilerParams, launch
from numpipe.launch import driver
from tests.kernels import cluster_kernels
from tests.kernels.dynamic_kernels import cases
from tests.kernels.hang_kernels import HANGS
from tests.kernels.kernels_for_tests import SMALL, gemm
from tests.kernels.launch_fakes import CudaArray, FakeDriver
from tests.kernels.split_kernels import Config as Split
from tests.kernels.split_kernels import split_product

SIDE = 512
KINDS = ("plain", "cluster", "dynamic", "split", "debug", "profile")


@functools.cache
def kernel(kind: str) -> tuple[Any, int, dict[str, Any]]:
    """Return (kernel, its number of matrices, Statics)."""
    if kind == "cluster":
        return cluster_kernels.product(replace(cluster_kernels.SMALL, along_m=2)), 3, {}
    if kind == "dynamic":
        case = cases()["turns"]
        return case.kernel, 3, {"cfg": case.cfg}
    if kind == "split":
        return split_product(Split(wgs=1)), 3, {}
    if kind == "debug":
        return HANGS["a_slot_is_not_released"], 2, {}
    made = gemm()
    if kind == "profile":
        params = CompilerParams(profile_space=64, profile_dir="x")
        made = numpipe.Kernel(made.function, replace(made.options, compiler_params=params))
    return made, 3, {"cfg": SMALL}


def arguments(kind: str) -> tuple[list[CudaArray], dict[str, Any]]:
    """Return matrices on a fake GPU."""
    _, count, statics = kernel(kind)
    return [CudaArray((number + 1) << 24, (SIDE, SIDE), "<f2") for number in range(count)], statics


class Driver(FakeDriver):
    """A fake driver with what kernels in debug mode, or with a profile, need."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def pinned(self, nbytes: int) -> tuple[int, int]:
        self.kept.append(ctypes.create_string_buffer(nbytes))
        return ctypes.addressof(self.kept[-1]), 1 << 40

    def symbol(self, kernel: Any, name: str) -> int:
        self.calls.append(("symbol", name))
        return 1 << 41

    def poke(self, address: int, data: bytes, ordinal: int) -> None:
        self.calls.append(("poke", len(data)))


def main(kind: str, file: str) -> None:
    image = launch.Image.from_bytes(Path(file).read_bytes())
    made, _, _ = kernel(kind)
    arrays, statics = arguments(kind)
    made.variant(tuple(arrays), statics).adopt(image)
    fake = Driver()
    fake.sizes = [128 * (max(1, len(image.maps)) + image.dynamic)] + [8] * 5 * len(image.arrays)
    driver._opened = fake  # type: ignore[assignment]
    device = launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    launch.choose_target = lambda *_: launch.Choice("gpu", "a fake", device)  # type: ignore[assignment]
    made(*arrays, **statics)
    [(cubin, entry)] = fake.named("load")
    said = {
        "cubin": cubin == image.cubin,
        "entry": entry,
        "config": fake.named("config")[-1],
        "launches": len(fake.named("launch")),
        "counters": len(fake.named("counter")),
        "symbols": [name for (name,) in fake.named("symbol")],
        "resources": str(made.inspect("resources", *arrays, **statics)),
        "source": made.inspect("source", *arrays, **statics),
        "imported": [
            name for name in ("numba", "llvmlite", "cuda.bindings.nvjitlink") if name in sys.modules
        ],
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
