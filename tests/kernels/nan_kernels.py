"""Kernels that store a NaN where their input is negative, by each kind of store."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, ds

CHECK = CompilerParams(debug=True, check_nan=True)
STORES: dict[str, Any] = {}
ROW, COLUMN = 19, 38
"""the position of the negative input"""


def stores(**options: Any) -> Any:
    def enter(function: Any) -> Any:
        made = STORES[function.__name__] = numpipe.kernel(
            function, compiler_params=CHECK, **options
        )
        return made

    return enter


def given(name: str, nan: bool = True) -> tuple[np.ndarray, np.ndarray]:
    x = np.ones((64, 64), np.float32)
    x[ROW, COLUMN] = -1 if nan else 1
    return x, np.zeros((64, 64), {"halves": np.float16}.get(name, np.float32))


@stores()
def to_an_array(x, y):
    y[ds(0, 64), ds(0, 64)] = np.sqrt(x[ds(0, 64), ds(0, 64)])


@stores()
def halves(x, y):
    y[ds(0, 64), ds(0, 64)] = np.sqrt(x[ds(0, 64), ds(0, 64)]).astype(np.float16)


@stores()
def to_a_block(x, y):
    pipe = numpipe.pipeline(
        grid=(1,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        out_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )
    for _, (tile, block) in pipe(x, y):
        block[...] = np.sqrt(tile[...])


@stores()
def to_shared_memory(x, y):
    buffer, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], buffer, landed)
    numpipe.barrier_wait(landed)
    buffer[...] = np.sqrt(buffer[...])


@stores()
def a_row(x, y):
    y[0, ds(0, 64)] = np.sqrt(x[ds(0, 64), ds(0, 64)].min(axis=0))


@stores()
def a_column(x, y):
    y[ds(0, 64), 0] = np.sqrt(x[ds(0, 64), ds(0, 64)].min(axis=1))


@stores()
def either_way(x, y):
    y[0, ds(0, 64)] = np.sqrt(x[19, ds(0, 64)])


@stores()
def coalesced(x, y):
    y[ds(0, 64), ds(0, 64)] = np.sqrt(
        numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)], layout="coalesced")
    )


@stores()
def a_number(x, y):
    y[2, 3] = np.sqrt(x[19, 38])


_TILE, _VECTOR = rf", element \({ROW}, {COLUMN}\) of the tile", ", element {} of the vector"
PLACES = {
    "to_an_array": (r"y\[…\]", _TILE),
    "halves": (r"y\[…\]", _TILE),
    "to_a_block": (r"block\[…\]", _TILE),
    "to_shared_memory": (r"buffer\[…\]", _TILE),
    "a_row": (r"y\[…\]", _VECTOR.format(COLUMN)),
    "a_column": (r"y\[…\]", _VECTOR.format(ROW)),
    "either_way": (r"y\[…\]", _VECTOR.format(COLUMN)),
    "coalesced": (r"y\[…\]", _TILE),
    "a_number": (r"y\[…\]", ""),
}
"""kernel -> (what is stored to, how the report names the element), as regular expressions"""
