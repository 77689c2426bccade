"""The CUDA driver, as far as a measurement calls it itself."""

from __future__ import annotations

from typing import Any

from ...diagnostics.errors import LaunchError


def api() -> Any:
    """cuda.bindings.driver, which is not on every machine that reads results."""
    from cuda.bindings import driver

    return driver


def call(result: tuple[Any, ...]) -> Any:
    """What a call of the driver gave; LaunchError if it failed."""
    if int(result[0]):
        raise LaunchError(f"the CUDA driver reported {result[0]!r} while measuring: has an earlier launch failed?")
    return result[1] if len(result) > 1 else None


def kernel(source: str, name: str) -> Any:
    """A kernel of a text in PTX, in the current context."""
    driver = api()
    library = call(driver.cuLibraryLoadData(source.encode() + b"\0", [], [], 0, [], [], 0))
    return call(driver.cuKernelGetFunction(call(driver.cuLibraryGetKernel(library, name.encode()))))
