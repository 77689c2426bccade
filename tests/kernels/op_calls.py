"""Calls of ops that run each kernel of `numpipe.ops` over rows, tiles and vectors, simulated."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe import ops
from numpipe.ops.cumsum import long_rows, rows_of_parts
from numpipe.ops.gated import gated_backward
from numpipe.ops.norms import norm_backward
from numpipe.ops.reduce_axis import row_reducer
from numpipe.ops.rotary import rotated_rows


def run_ops_over_rows() -> None:
    def numbers(*shape: int, dtype: Any = np.float32) -> Any:
        return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)

    x = numbers(6, 128)
    ops.swiglu(x, x, target="sim")
    gated_backward(x, x, x, activation="silu", target="sim")
    ops.rms_norm(x, numbers(128), target="sim")
    norm_backward(x, x, numbers(6, 1), numbers(128), target="sim")
    ops.rotary(numbers(1, 2, 5, 64), numbers(5, 32), numbers(5, 32), target="sim")
    ops.sum(x, 0, target="sim")
    ops.argmax(x[:1], 0, target="sim")
    ops.quantize(x, target="sim")
    ops.matvec(numbers(2, 3, 128), numbers(2, 128), target="sim")
    ops.matvec(numbers(128, 6).T, numbers(128), target="sim")
    ops.matvec(numbers(1, 20000), numbers(20000), target="sim")
    ops.cumsum(x, target="sim")
    # ops call these for matrices that are too large to simulate here
    arrays = numbers(1, 72, 64), numbers(1, 8), numbers(1, 72, 64), numbers(1, 8)
    long_rows(2, 64, False)(*arrays, 700, target="sim")
    rows_of_parts(1, 1, 1, 2, 4, 2)(numbers(3, 501), numbers(3, 501), target="sim")
    row_reducer("sum", None)(numbers(130, 20), y=numbers(130), scale=1.0, target="sim")
    flat = numbers(2 * 20 * 26), numbers(20 * 13), numbers(20 * 13)
    rotated_rows(13, False, 2, 8)(*flat, numbers(2 * 20 * 26), target="sim")
    ops.topk(numbers(1, 9000), 33, target="sim")
    ops.topk(numbers(1, 300), 70, target="sim")
