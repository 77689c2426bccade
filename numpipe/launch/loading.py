"""Loading machine code, and what it means when the driver does not take it."""

from __future__ import annotations

import contextlib
import importlib.metadata
from typing import Any

from . import driver
from .device import spell
from .faults import IMAGES


def load(cubin: bytes, entry: str) -> Any:
    """The driver's handle of a kernel, good on every GPU.

    Raises DriverError; where the driver does not take the code, its version and that of the linker which made it are named.
    """
    cuda = driver.get()
    try:
        return cuda.load(cubin, entry)
    except driver.DriverError as error:
        if error.code not in IMAGES:
            raise
        made, runs = linker(), cuda.version()
        by = "" if made is None else f", made by nvJitLink {made}"
        if made is not None and (runs // 1000, runs % 1000 // 10) < tuple(int(part) for part in made.split(".")[:2]):
            mend = (f"the driver is older than the linker: update it, or pip install \"nvidia-nvjitlink=={spell(runs)}.*\" "
                    f"\"nvidia-nvvm=={spell(runs)}.*\"")
        else:
            mend = ("the code is damaged, or the GPU is none of Hopper's (sm_90a): run it on an H100 or H200, where a new process "
                    "compiles it again")
        raise driver.DriverError(error.call, error.code, error.name,
                                 f"the driver, of CUDA {spell(runs)}, does not take the {len(cubin)} bytes of machine code for "
                                 f"sm_90a{by}: {mend}") from error


def linker() -> str | None:
    """CUDA version of the installed nvJitLink, "13.0.88" say, or None."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("nvidia-nvjitlink")
    return None
