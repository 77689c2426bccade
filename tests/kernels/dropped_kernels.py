"""A program that compiles many kernels, each from its own source, drops them, and prints the
resident memory in MiB at two points."""

from __future__ import annotations

import gc
import json
import linecache
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

from numpipe import ArrayType

SOURCE = """
import numpy as np
import numpipe
from numpipe import BlockSpec, ds

@numpipe.kernel
def kernel_{number}(a, c, scale):
    def scaled(x):
        return x * scale + {number}.0

    acc = numpipe.zeros((64, 64), np.float32)
    spec = BlockSpec((64, 64), lambda k: (0, k))
    for (k,), (x,) in numpipe.pipeline(grid=(a.shape[1] // 64,), in_specs=(spec,))(a):
        acc = numpipe.wgmma(acc, x, x.T)
    c[ds(0, 64), ds(0, 64)] = scaled(acc)
"""


def defined(number: int) -> Any:
    """Return a kernel, defined as a module or notebook cell with this number would define it."""
    name, text = f"<source {number}>", SOURCE.format(number=number)
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    namespace: dict[str, Any] = {"__name__": f"source_{number}"}
    exec(compile(text, name, "exec"), namespace)
    del linecache.cache[name]
    return namespace[f"kernel_{number}"]


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE / 2**20


def main(count: int, first: int) -> None:
    """Print the resident memory after the first kernels and after all of them."""
    found = []
    for number in range(1, count + 1):
        defined(number).inspect(
            "resources", ArrayType((64, 64), np.float16), ArrayType((64, 64), np.float32), 1.0
        )
        if number in (first, count):
            found.append(resident())
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
