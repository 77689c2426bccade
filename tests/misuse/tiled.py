"""Misused kernels over tiles: what their functions do with tiles, arrays and the grid."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import GMEM, BlockSpec, CompilerParams, SpecError
from tests.kernels.refusals import A, B, C, Cases

BLOCK = BlockSpec((64, 64), lambda i, k: (i, 0))
TILES = {
    "grid": (1, 1),
    "in_specs": (BLOCK, BLOCK),
    "out_specs": BLOCK,
    "kind": SpecError,
    "compiler_params": CompilerParams(dimension_semantics=("parallel", "sequential")),
}


def tiles(**options):
    return {**TILES, **options}


refused = Cases()
refused(
    "tiled_a_value_of_another_type",
    """
def tiled_a_value_of_another_type(a, b, c):  # called
    c[...] = a[...]
  # ^^^^^^
""",
    "tile[…] = value: the tile is int32, but the value is float16; fix: store "
    "value.astype(tile.dtype)",
    **TILES,
    args=(A, B, C.astype(np.int32)),
    fix={"a[...]": "a[...].astype(c.dtype)"},
)
refused(
    "tiled_a_store_to_an_input",
    """
def tiled_a_store_to_an_input(a, b, c):  # called
    a[...] = b[...]
  # ^^^^^^
""",
    "a tile of a pipeline is read-only: TMA refills its slot; fix: store to an array",
    **TILES,
    fix={"a[...] = b[...]": "c[...] = b[...].astype(c.dtype)"},
)
refused(
    "tiled_a_store_to_an_input_in_global_memory",
    """
def tiled_a_store_to_an_input_in_global_memory(a, b, c):  # called
    b[ds(0, 64), ds(0, 64)] = a[...]
  # ^^^^^^^^^^^^^^^^^^^^^^^
""",
    "'b[…] = tile': the call treats 'b' as an input, because its BlockSpec is in in_specs; fix: "
    "move it to out_specs, and the array after the inputs in the kernel's parameters",
    **tiles(in_specs=(BLOCK, BlockSpec(memory_space=GMEM))),
)
refused(
    "tiled_a_result",
    """
    return a[...]
  # ^^^^^^^^^^^^^
""",
    "a kernel must not return a value; fix: store results to its output tiles",
    **tiles(kind=numpipe.CompileError),
    fix={"return a[...]": "c[...] = a[...].astype(c.dtype)"},
)
refused(
    "tiled_a_dimension_too_many",
    """
def tiled_a_dimension_too_many(a, b, c):  # called
    c[...] = numpipe.zeros((64, 64), np.float32) + numpipe.program_id(2)
    #                                              ^^^^^^^^^^^^^^^^^^^^^
""",
    "program_id(2): dimension 2 does not exist: the kernel's grid has 2",
    **TILES,
    fix={"program_id(2)": "program_id(1)"},
)
refused(
    "tiled_a_dimension_by_another_name",
    """
def tiled_a_dimension_by_another_name(a, b, c):  # called
    last = 1
    c[...] = numpipe.zeros((64, 64), np.float32) + numpipe.num_programs(last)
    #                                              ^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    simulated=(
        "num_programs(1): dimension 1 is sequential, so only the kernel function itself can read "
        "it; fix: write num_programs(1) there, with a literal number, and pass its value to "
        "functions"
    ),
    **TILES,
    fix={"num_programs(last)": "num_programs(1)"},
)
