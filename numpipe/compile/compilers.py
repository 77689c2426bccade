"""What compiles kernels, as far as machine code depends on it: numpipe's own files, Numba, llvmlite, NVVM, nvJitLink, Python."""

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

_PACKAGES = re.compile(r"(numba|numba_cuda|llvmlite|ml_dtypes|cuda_(?:bindings|core|pathfinder)|pynvjitlink\w*|"
                       r"nvidia_(?:nvvm|nvjitlink|cuda_nvcc)\w*)-(.+)\.dist-info")
"""the packages that decide what machine code a kernel becomes, beside numpipe"""
_LIBRARIES = ("nvvm/lib64/libnvvm.so*", "nvvm/libdevice/libdevice*", "lib64/libnvJitLink.so*", "lib/libnvvm.so*",
              "lib/libnvJitLink.so*")
"""those of them that may be a toolkit's files"""
_VARIABLES = ("NUMBA_", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
_SETTINGS = ".numba_config.yaml"
"""a file in the working directory from which Numba takes what its variables do not say"""


def compiler() -> str | None:
    """Return a digest of what compiles; None where the environment is another one than when this was first asked for, since Numba
    has read one of the two."""
    return _found() if _environment() == _first_environment() else None


def _environment() -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))


@functools.cache
def _first_environment() -> list[tuple[str, str]]:
    return _environment()


def _files(folder: str) -> list[tuple[str, bytes]]:
    """Return names and bytes of the Python files of a folder, of a wheel its record, and the files that were changed since."""
    records = sorted(glob.glob(f"{glob.escape(os.path.dirname(folder))}/numpipe-*.dist-info/RECORD"))
    written = max((os.stat(record).st_mtime for record in records), default=-1.0)
    found = [(os.path.basename(os.path.dirname(record)), Path(record).read_bytes()) for record in records]
    folders = [folder]
    for place in folders:
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            if entry.is_dir():
                folders.append(entry.path)
            elif entry.name.endswith(".py") and (not records or entry.stat().st_mtime > written):
                found.append((entry.path[len(folder) + 1:], _bytes(entry.path)))
    return found


def _bytes(path: str) -> bytes:
    """Return what is in a file, in a quarter of the time that `open` takes: there are hundreds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = b""
        while len(part := os.read(descriptor, 1 << 16)) == 1 << 16:
            data += part
        return data + part
    finally:
        os.close(descriptor)


@functools.cache
def _found() -> str:
    found = hashlib.sha256()
    for folder in sorted({Path(__file__).parents[1], Path(intrinsics.__file__).parent}):  # beside each other in a source tree
        for name, data in _files(str(folder)):
            found.update(f"{name}\0{len(data)}\0".encode() + data)
    packages: dict[str, tuple[str, list[str]]] = {}
    for path in sys.path:  # the first of two versions is the one that is imported
        if os.path.isdir(path):
            for entry in os.listdir(path):
                if entry.endswith(".dist-info") and (match := _PACKAGES.fullmatch(entry)):
                    packages.setdefault(match[1], (path, []))
                    if packages[match[1]][0] == path:
                        packages[match[1]][1].append(match[2])
    versions = sorted((name, sorted(found)) for name, (_, found) in packages.items())
    roots = {*(os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")), *glob.glob("/usr/local/cuda*")}
    patterns = [f"{glob.escape(root)}/{library}" for root in roots if root for library in _LIBRARIES]
    patterns += [f"{glob.escape(folder)}/libnv{name}.so*" for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
                 for name in ("vm", "JitLink")]
    libraries = sorted({(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for pattern in patterns
                        for file in glob.glob(pattern) if os.path.exists(file)})
    settings = Path(_SETTINGS).read_bytes() if os.path.isfile(_SETTINGS) else None
    return repr([found.hexdigest(), versions, libraries, settings, _first_environment(), sys.version, sys.flags.optimize,
                 platform.machine(), np.__version__])
