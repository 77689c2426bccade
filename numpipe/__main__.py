"""``python -m numpipe info``: what this machine offers numpipe, for bug reports and first steps."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Sequence

from .errors import NumpipeError
from .launch import device

_PACKAGES = ("numpipe", "numpy", "ml_dtypes", "greenlet", "numba", "llvmlite", "numba-cuda", "cuda-core",
             "cuda-bindings")
_TOOLKIT = ("nvidia-nvvm", "nvidia-nvjitlink")


def version(package: str) -> str:
    """Version of an installed distribution, CUDA 12's suffixed names included."""
    for name in (package, f"{package}-cu12"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def report() -> Iterator[tuple[str, str]]:
    """(what, value) lines of ``info``."""
    state = device.gpu_state()
    found = state.device
    if found is not None:
        yield "GPU", f"{found.name} (device {found.ordinal})"
        yield "compute capability", "{}.{}".format(*found.cc)
        yield "SMs", str(found.sm_count)
        yield "shared memory of a CTA", f"{found.max_dynamic_smem} bytes"
        yield "driver", f"CUDA {device.spell(found.driver_version)}"
    else:
        yield "GPU", f"none usable: {state.reason}"
        yield "to use one", state.mend
    for package in _TOOLKIT:
        yield package, version(package)
    yield "python", f"{platform.python_version()} ({platform.platform()})"
    for package in _PACKAGES:
        yield package, version(package)
    try:
        choice = device.choose_target()
    except NumpipeError as error:
        yield "target", f"none: {error}"
    else:
        yield "target", f"{choice.target} ({choice.why})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m numpipe",
                                     description="Software-pipelined kernels for NVIDIA Hopper.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("info", help="print the GPU, the driver, the versions, and the target kernels would run on")
    parser.parse_args(arguments)
    lines = list(report())
    width = max(len(what) for what, _ in lines)
    for what, value in lines:
        print(f"{what:<{width}}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
