"""Kernels whose warps read what other warps have written, with and without automatic barriers, for
the simulator and the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, BlockSpec, CompilerParams, cdiv, ds

UNSAFE = CompilerParams(unsafe_no_auto_barriers=True)


def turned(x: Any, y: Any) -> None:
    """Transpose each 64 x 64 block of x repeatedly: warps read columns of what they have stored as
    rows."""
    tile = numpipe.scratch(SMEM((64, 64), x.dtype))
    for (i, j), (x_tile,) in numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64), cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
    )(x):
        tile[...] = x_tile[...]
        y[ds(i * 64, 64), ds(j * 64, 64)] = tile.T[...]


def sent(x: Any, y: Any) -> None:
    """Compute y = x + 1 through a tile that TMA stores."""
    tile = numpipe.scratch(SMEM((64, 64), x.dtype))
    for (i, j), (x_tile,) in numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64), cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
    )(x):
        tile[...] = (x_tile[...].astype(np.float32) + 1.0).astype(x.dtype)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(i * 64, 64), ds(j * 64, 64)])
        numpipe.wait_smem_to_gmem(0, wait_read_only=True)


def squared(x: Any, y: Any) -> None:
    """Multiply each block of x by itself: the tensor cores read what the warps have stored."""
    tile = numpipe.scratch(SMEM((64, 64), x.dtype))
    for (i, j), (x_tile,) in numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64), cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
    )(x):
        tile[...] = x_tile[...]
        acc = numpipe.wgmma_wait(numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile), 0)
        y[ds(i * 64, 64), ds(j * 64, 64)] = acc.astype(y.dtype)


def in_place(x: Any, y: Any) -> None:
    """Compute y = x + 1 through rows of a tile that only the warp that wrote them reads.

    It is correct without barriers.
    """
    tile = numpipe.scratch(SMEM((64, 64), x.dtype))
    for (i, j), (x_tile,) in numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64), cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
    )(x):
        tile[...] = x_tile[...]
        y[ds(i * 64, 64), ds(j * 64, 64)] = (tile[...].astype(np.float32) + 1.0).astype(y.dtype)


def turned_twice(x: Any, y: Any) -> None:
    """Compute y = x by transposing twice: on the way in, and in place in an output's tile."""
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], 64), cdiv(x.shape[1], 64)),
        in_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
        out_specs=(BlockSpec((64, 64), lambda i, j: (i, j)),),
    )
    for _, (x_tile, y_tile) in pipe(x, y):
        y_tile[...] = x_tile.T[...]
        y_tile[...] = y_tile.T[...]


FUNCTIONS = (turned, sent, squared, in_place, turned_twice)
SAFE = {function.__name__: numpipe.kernel(function) for function in FUNCTIONS}
BARE = {
    function.__name__: numpipe.kernel(compiler_params=UNSAFE)(function) for function in FUNCTIONS
}


def operand(shape: tuple[int, int] = (192, 128)) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float16)


def result(name: str, x: np.ndarray) -> np.ndarray:
    """Return a kernel's expected result."""
    blocks = x.reshape(x.shape[0] // 64, 64, -1, 64).swapaxes(1, 2)
    made = {
        "turned": lambda: blocks.swapaxes(2, 3),
        "turned_twice": lambda: blocks,
        "squared": lambda: blocks.astype(np.float32) @ blocks.astype(np.float32),
    }.get(name, lambda: blocks + np.float16(1))()
    return made.swapaxes(1, 2).reshape(x.shape).astype(np.float16)  # type: ignore[no-any-return]
