"""A digest of everything that determines the generated machine code: numpipe's files, Numba,
llvmlite, NVVM, nvJitLink, Python."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import platform
import re
import sys
from pathlib import Path

import numpy as np

from .. import intrinsics

_PACKAGES = re.compile(
    r"(numba|numba_cuda|llvmlite|ml_dtypes|cuda_(?:bindings|core|pathfinder)|pynvjitlink\w*|"
    r"nvidia_(?:nvvm|nvjitlink|cuda_nvcc)\w*)-.+\.dist-info"
).fullmatch
_LIBRARIES = (
    "nvvm/lib64/libnvvm.so*",
    "nvvm/libdevice/libdevice*",
    "lib64/libnvJitLink.so*",
    "lib/libnvvm.so*",
    "lib/libnvJitLink.so*",
)
"""The files of a toolkit that affect the code."""
_VARIABLES = ("NUMBA_", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")


def compiler() -> str | None:
    """Return a digest of the compilers.

    None if the environment has changed since the first call: Numba may have read either one.
    """
    return _found() if _environment() == _first_environment() else None


def _environment() -> list[tuple[str, str]]:
    return sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES)
    )


@functools.cache
def _first_environment() -> list[tuple[str, str]]:
    return _environment()


def _bytes(path: str) -> bytes:
    """Return the contents of a file. There are hundreds of files, and a buffer for each takes
    time."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _sources(folder: str) -> bytes:
    """Return a digest of the Python files in a folder."""
    found = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                data = _bytes(os.path.join(place, name))
                found.update(f"{name}\0{len(data)}\0".encode() + data)
    return found.digest()


@functools.cache
def _found() -> str:
    own = {str(Path(__file__).parents[1]), os.path.dirname(intrinsics.__file__)}
    # the first one is the package that is imported
    packages = [
        entry
        for path in sys.path
        if os.path.isdir(path)
        for entry in sorted(os.listdir(path))
        if _PACKAGES(entry)
    ]
    roots = {os.environ.get(name, "") for name in _VARIABLES[1:4]} - {""}
    roots.update(glob.glob("/usr/local/cuda*"))
    patterns = [f"{glob.escape(root)}/{library}" for root in roots for library in _LIBRARIES]
    patterns += [
        f"{glob.escape(folder)}/libnv{name}.so*"
        for name in ("vm", "JitLink")
        for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":")
        if folder
    ]
    libraries = sorted(
        {
            (file, os.stat(file).st_size, os.stat(file).st_mtime_ns)
            for pattern in patterns
            for file in glob.glob(pattern)
            if os.path.exists(file)
        }
    )
    sources = sorted(map(_sources, own))
    python = sys.version, sys.flags.optimize, platform.machine(), np.__version__
    return repr([sources, packages, libraries, _first_environment(), python])
