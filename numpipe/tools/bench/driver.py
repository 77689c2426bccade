"""The CUDA driver, as far as a measurement calls it itself."""

from __future__ import annotations

import ctypes
from typing import Any

from ...diagnostics.errors import LaunchError


def api() -> Any:
    """Return cuda.bindings.driver, which is not on every machine that reads results."""
    from cuda.bindings import driver

    return driver


def call(result: tuple[Any, ...]) -> Any:
    """Return what a call of the driver gave; raise LaunchError if it failed."""
    if int(result[0]):
        raise LaunchError(f"the CUDA driver reported {result[0]!r} while measuring: has an earlier launch failed?")
    return result[1] if len(result) > 1 else None


def kernel(source: str, name: str) -> Any:
    """Load a kernel that is written in PTX into the current context."""
    driver = api()
    library = call(driver.cuLibraryLoadData(source.encode() + b"\0", [], [], 0, [], [], 0))
    return call(driver.cuKernelGetFunction(call(driver.cuLibraryGetKernel(library, name.encode()))))


def launch(function: Any, ctas: int, threads: int, stream: int, *words: int) -> None:
    """Launch a kernel whose parameters are 64-bit words."""
    parameters = words, (ctypes.c_uint64,) * len(words)
    call(api().cuLaunchKernel(function, ctas, 1, 1, threads, 1, 1, 0, stream, parameters, 0))
