"""The name of a kernel's machine code, as shown by Nsight, CUPTI and torch.profiler: its function,
its tiles and its arrays' types.

::

    matmul_128x64_256x64_s3_f16_f16_f16

is a `matmul` whose pipeline loads blocks of 128 x 64 and 256 x 64 elements into 3 slots, and whose
three arrays are float16. The name is a plain C identifier, which no tool demangles. It depends only
on what was compiled, so that processes that share a disk cache have the same name for the same
code. Kernels that differ only in other constants have the same name; each is a program of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ..arch.dtypes import BY_DTYPE
from ..core.symbols import symbol
from ..plan.cluster_ranks import ALONE
from ..plan.unit import Unit

LONGEST = 120
_FUNCTION = 60
"""The maximum number of characters that the function contributes to a name that is too long."""


def entry_name(unit: Unit) -> str:
    """Return the name of a kernel's machine code, an ASCII identifier of at most `LONGEST`
    characters.

    The parts, in order; parts that do not apply are left out:

    128x64_256x64_s3   each ring: the blocks of its operands, rows x columns, and its slots
    c2x1x1             CTAs of a cluster
    pingpong           the schedule
    f16_bf16col        the arrays' types, "col" where an array is column-major

    A name that would be too long is cut, and ends with a digest of the whole. A function name that
    is not an identifier is spelled by `symbol`.
    """
    function = symbol(unit.kernel)
    function = "_" * (not function or function[0].isdigit()) + function
    parts = [
        *_rings(unit),
        *(["c" + "x".join(map(str, unit.cluster))] * (unit.cluster != ALONE)),
        *[unit.schedule] * (unit.schedule != "cooperative"),
        *(
            BY_DTYPE[array.dtype].short + "col" * (array.order == "col")
            for array in unit.arrays
            if not array.workspace
        ),
    ]
    name = "_".join([function, *(parts or ["kernel"])])  # "vprintf" alone would be another function
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return "_".join([function[:_FUNCTION], *parts])[: LONGEST - 9] + "_" + digest


def _rings(unit: Unit) -> Iterator[str]:
    """Yield the part for each ring of tiles; equal rings appear once."""
    for blocks, slots in dict.fromkeys(
        (tuple(block.layout.shape for block in plan.blocks), plan.slots)
        for plan in unit.all_rings
        if not plan.numbers
    ):
        yield from ("x".join(map(str, shape)) for shape in blocks)
        yield f"s{slots}"
