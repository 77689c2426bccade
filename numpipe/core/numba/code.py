"""From the LLVM IR of a kernel to LTO-IR, PTX, a cubin and SASS, and what the IR calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from numba.cuda import codegen

from ...arch.target import Target
from ...arch.targets import DEFAULT

__all__ = ["calls", "disassemble", "link", "rewrite_ir", "to_ltoir", "to_ptx", "undefined_symbols"]


def rewrite_ir(library: Any, change: Callable[[str], str]) -> None:
    """Replace the text of each LLVM module of a kernel, before anything is made of it."""
    library._llvm_strs = [change(text) for text in library.llvm_strs]


def to_ltoir(library: Any, target: Target = DEFAULT) -> bytes:
    """NVVM: LLVM IR -> LTO-IR (what users get; PTX is never linked)."""
    return bytes(library.get_ltoir(cc=target.capability))


def to_ptx(library: Any, target: Target = DEFAULT) -> str:
    """PTX after link-time optimisation: what becomes SASS."""
    return str(library.get_lto_ptx(cc=target.capability)).rstrip("\0")


def link(ltoir: bytes, name: str, target: Target = DEFAULT) -> tuple[bytes, str]:
    """nvJitLink, whole program -> (cubin, log with registers, spills and C75xx notes)."""
    from cuda.bindings import nvjitlink

    # what is found in a cache is not logged: a kernel would have 0 registers, and no spills
    flags = ["-lto", f"-arch={target.name}", "-O3", "-verbose", "-no-cache"]
    handle = nvjitlink.create(len(flags), flags)
    try:
        def log(kind: str) -> str:
            size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
            text = bytearray(size)
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
    """SASS by nvdisasm (the nvidia-cuda-nvdisasm wheel or a CUDA toolkit).

    Its data flow analysis, a third of the time, has something to add to spills and to branches by register only.
    """
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(cubin)
    text = str(codegen.run_nvdisasm(code, ["-ndf"]))
    return str(codegen.run_nvdisasm(code, [])) if re.search(r"\b(STL|LDL|BRX|BRXU|JMX|JMXU)\b", text) else text


def calls(library: Any, *functions: str) -> bool:
    """Whether a kernel calls one of these functions."""
    return any(re.search(rf'call [^\n]*@"?({"|".join(functions)})"?\(', text) for text in library.llvm_strs)


def undefined_symbols(library: Any, prefix: str) -> list[str]:
    """Symbols of this prefix that are called and that nothing defines."""
    text = "\n".join(library.llvm_strs)
    called = set(re.findall(rf'declare [^@\n]*@"?({re.escape(prefix)}[\w$]+)"?\(', text))
    defined = set(re.findall(rf'define [^@\n]*@"?({re.escape(prefix)}[\w$]+)"?\(', text))
    return sorted(called - defined)
