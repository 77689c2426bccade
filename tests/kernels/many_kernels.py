"""A program that compiles many kernels and prints as JSON what the code of each contains and
costs."""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from typing import Any

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, ds


@numpipe.function
def shifted(x, by):
    return x + by


def printing(number: int) -> Any:
    """Return a kernel with its number among its constants.

    The number is used in a nested function and passed to a function that all kernels share.
    """
    value = float(1 << 16 | number)

    def prints(a, c, scale):
        def plus(x):
            return x + value

        numpipe.debug_print("{}", shifted(plus(scale), float(1 << 17 | number)))

    return prints


def multiplying(number: int) -> Any:
    """Return a similar kernel on tiles, with a pipeline and a store."""
    value = float(1 << 16 | number)

    def multiplies(a, c, scale):
        def plus(x):
            return x + value

        acc = numpipe.zeros((64, 64), np.float32)
        for (k,), (x,) in numpipe.pipeline(
            grid=(a.shape[1] // 64,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
        )(a):
            acc = numpipe.wgmma(acc, x, x.T)
        c[ds(0, 64), ds(0, 64)] = shifted(plus(acc), float(1 << 17 | number))

    return multiplies


def constants(text: str) -> list[int]:
    """Return the kernel numbers among the constants of PTX text (float32 in hexadecimal) or LLVM IR
    (float64)."""
    values = [
        float(np.uint32(int(bits, 16)).view(np.float32))
        for bits in re.findall(r"\b0[fF]([0-9A-F]{8})\b", text)
    ]
    values += [
        float(np.uint64(int(bits, 16)).view(np.float64))
        for bits in re.findall(r"\b0x([0-9A-Fa-f]{16})\b", text)
    ]
    return sorted({int(v) & 0xFFFF for v in values if 1 << 16 <= v < 3 << 16 and v.is_integer()})


def main(count: int, full_every: int) -> None:
    """Compile the kernels: one in `full_every` down to machine code for both roles, the others less
    far.

    For the others only the LLVM IR of one role is built, which is where names and types are kept.
    """
    from numpipe.compile.build import front_end

    types = ArrayType((64, 64), np.float16), ArrayType((64, 64), np.float32)
    report = []
    for number in range(count):
        full = number % full_every == 0
        function = (multiplying if full else printing)(number)
        function.__name__ = f"{function.__name__}_{number}"
        kernel = numpipe.kernel(warp_specialized=full)(function)
        gc.disable()
        begin = time.process_time()
        if full:
            built = kernel.compiled(*types, 1.0)
            entry, text = built.image.entry, built.ptx
        else:
            variant = kernel.variant((*types, 1.0), {})
            made = front_end(variant.unit(), variant.lifted, [("scale", np.dtype(np.float32))])[0]
            entry, text = made.entry_name, made._codelibrary.get_llvm_str()
        seconds = time.process_time() - begin
        gc.enable()
        report.append(
            {
                "number": number,
                "full": full,
                "constants": constants(text),
                "seconds": seconds,
                "entry": entry,
            }
        )
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
