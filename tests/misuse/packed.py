"""Packed 4-bit elements: tiles, types and sizes that `numpipe.unpack` refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe import SpecError
from numpipe.arch.dtypes import TILES, listed
from tests.kernels.refusals import Cases

W = np.zeros((128, 256), np.uint8)
OUT = np.zeros((128, 512), np.float16)
WHAT = "numpipe.unpack(tile, element, dtype): "
refused = Cases()


def wrong(
    name: str, call: str, text: str, spec: str = "(64, 64)", of: str = "w", **more: Any
) -> None:
    """Add a kernel whose only mistake is `call`, in a loop over blocks `x` of an array."""
    refused(
        name,
        f"""
def {name}(w, h, out):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec({spec}, lambda k: (0, k)),))
    for (k,), (x,) in pipe({of}):
        y = {call}
    #       {"^" * len(call)}
        out[ds(0, y.shape[0]), ds(0, y.shape[1])] = y.astype(np.float16)
""",
        WHAT + text,
        kind=SpecError,
        args=(W, OUT[:, :256], OUT),
        **more,
    )


wrong(
    "a_packed_type_that_there_is_not",
    'numpipe.unpack(x, "int3", np.float16)',
    "element must be 'int4' or 'uint4', got 'int3'",
    fix={'"int3"': '"int4"'},
)
wrong(
    "a_packed_tile_as_float32",
    'numpipe.unpack(x, "uint4", np.float32)',
    "uint4 is unpacked to float16 or bfloat16, got float32; fix: numpipe.unpack(tile, 'uint4', "
    "np.float16), then astype",
    fix={"np.float32": "np.float16"},
)
wrong(
    "a_packed_tile_of_float16",
    'numpipe.unpack(x, "uint4", np.float16)',
    "a tile of uint4 is a tile of uint8, which holds 2 elements a byte, got float16; fix: pass "
    "array.view(np.uint8)",
    of="h",
    fix={"pipe(h)": "pipe(w)"},
)
wrong(
    "a_packed_tile_that_is_transposed",
    'numpipe.unpack(x.T, "uint4", np.float16)',
    "elements of a byte are neighbors along the last dimension, so the rows of a tile (M, K) "
    "must be contiguous, got (64, 64) with contiguous columns; fix: pack along K, and pass a "
    "C-contiguous array",
    fix={"x.T": "x"},
)
wrong(
    "a_packed_vector",
    'numpipe.unpack(x, "uint4", np.float16)',
    "elements of a byte are neighbors along the last dimension, so the rows of a tile (M, K) "
    "must be contiguous, got (64,); fix: pack along K, and pass a C-contiguous array",
    spec="(None, 64)",
    fix={"None": "64"},
)
wrong(
    "a_packed_tile_of_32_rows",
    'numpipe.unpack(x, "uint4", np.float16)',
    "a tile (32, 64) of uint8 has (32, 128) elements of uint4, but an operand in registers has "
    "a multiple of 64 rows and at most 256 columns; fix: unpack a part, tile.at[ds(row, 64), :], "
    "of a block of at most 128 bytes a row",
    spec="(32, 64)",
    fix={"(32, 64)": "(64, 64)"},
)
wrong(
    "a_packed_tile_of_512_columns",
    'numpipe.unpack(x, "uint4", np.float16)',
    "a tile (64, 256) of uint8 has (64, 512) elements of uint4, but an operand in registers has "
    "a multiple of 64 rows and at most 256 columns; fix: unpack a part, tile.at[ds(row, 64), :], "
    "of a block of at most 128 bytes a row",
    spec="(64, 256)",
    fix={"(64, 256)": "(64, 128)"},
)
refused(
    "a_tile_that_is_stored_packed",
    """
    y = c[ds(0, 64), ds(0, 64)].astype("int4")
    #   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    f"astype: a tile's dtype must be {listed(TILES, 'or')}, got int4: convert an array before the "
    "call; fix: pack 2 of int4 into each element of a uint8 array, and load them by "
    "numpipe.unpack(tile, 'int4', np.float16); they are not stored",
    kind=SpecError,
    fix={'"int4"': "np.int8"},
)
wrong(
    "a_packed_register_tile",
    'numpipe.unpack(x[...], "uint4", np.float16)',
    "tile must be a tile in shared memory, as a pipeline gives it, got a register tile of "
    "uint8 (64, 64); fix: pass the tile itself, not tile[...]",
    fix={"x[...]": "x"},
)
