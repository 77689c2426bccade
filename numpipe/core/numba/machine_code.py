"""From a kernel's LLVM IR to LTO-IR, PTX, a cubin and SASS, and queries about the functions that
the IR calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from numba.cuda import codegen
from numba.cuda.cudadrv import nvvm

from ...arch.target import Target

__all__ = ["calls", "disassemble", "link", "rewrite_ir", "to_ltoir", "to_ptx", "undefined_symbols"]


def rewrite_ir(library: Any, change: Callable[[str], str]) -> None:
    """Transform the text of each LLVM module of a kernel, before NVVM reads it."""
    library._llvm_strs = [change(text) for text in library.llvm_strs]


def to_ltoir(library: Any, target: Target) -> bytes:
    """Return the LTO-IR that NVVM makes from a kernel's LLVM IR. PTX is never linked, because
    nvJitLink would compile it as relocatable code, in which ptxas ignores setmaxnreg and serializes
    wgmma."""
    # avoids loading NVRTC, which Numba would ask whether this architecture exists
    cache = library._ltoir_cache
    if target.capability not in cache:
        architecture = "compute_{}{}{}".format(*target.capability)
        options = library._nvvm_options | {"arch": architecture, "gen-lto": None}
        cache[target.capability] = nvvm.compile_ir(library.llvm_strs, **options)
    return bytes(cache[target.capability])


def to_ptx(library: Any, target: Target) -> str:
    """Return the PTX after link-time optimization, from which SASS is made."""
    return str(library.get_lto_ptx(cc=target.capability)).rstrip("\0")


def link(ltoir: bytes, name: str, target: Target) -> tuple[bytes, str]:
    """Link a whole program with nvJitLink. Return (cubin, log with registers, spills and C75xx
    notes)."""
    from cuda.bindings import nvjitlink

    # without -no-cache, nvJitLink logs nothing for a cached cubin, so registers and spills would be
    # 0
    flags = ["-lto", f"-arch={target.name}", "-O3", "-verbose", "-no-cache"]
    handle = nvjitlink.create(len(flags), flags)
    try:

        def log(kind: str) -> str:
            text = bytearray(getattr(nvjitlink, f"get_{kind}_log_size")(handle))
            getattr(nvjitlink, f"get_{kind}_log")(handle, text)
            return text.decode(errors="replace").strip("\x00")

        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), name)
            nvjitlink.complete(handle)
        except Exception as error:
            raise RuntimeError(f"nvJitLink: {log('error')}{log('info')}") from error
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), log("info") + log("error")
    finally:
        nvjitlink.destroy(handle)


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a cubin, from nvdisasm (the nvidia-cuda-nvdisasm wheel or a CUDA toolkit).

    nvdisasm's data flow analysis takes a third of the time and only matters for spills and indirect
    branches, so it is skipped otherwise. Code with a line table is returned with comments that name
    the lines, and without the sections of the table itself.
    """
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(cubin)
    lines = ["-gi", "-c"] * (b"\0.debug_line\0" in cubin)
    text = str(codegen.run_nvdisasm(code, ["-ndf", *lines]))
    return (
        str(codegen.run_nvdisasm(code, lines))
        if re.search(r"\b(STL|LDL|BRX|BRXU|JMX|JMXU)\b", text)
        else text
    )


def calls(library: Any, *functions: str) -> bool:
    return any(
        re.search(rf'call [^\n]*@"?({"|".join(functions)})"?\(', text) for text in library.llvm_strs
    )


def undefined_symbols(library: Any, prefix: str) -> list[str]:
    """Return the symbols with this prefix that are called but not defined."""
    called, defined = (
        {
            symbol
            for text in library.llvm_strs
            for symbol in re.findall(rf'{kind} [^@\n]*@"?({re.escape(prefix)}[\w$]+)"?\(', text)
        }
        for kind in ("declare", "define")
    )
    return sorted(called - defined)
