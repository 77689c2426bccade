"""c = a @ b.T in Triton: a plain blocked product with one program per tile, tuned over a small
space. This module imports Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

SPACE = [
    (128, 256, 64, 3, 8),
    (128, 256, 64, 4, 8),
    (256, 128, 64, 3, 8),
    (128, 128, 64, 4, 8),
    (128, 128, 64, 4, 4),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 128, 4, 4),
    (32, 128, 128, 4, 4),
    (16, 128, 128, 4, 4),
]
"""rows, columns and depth of a block; stages; warps"""


@triton.autotune(
    configs=[
        triton.Config(
            {"TM": tm, "TN": tn, "TK": tk, "GROUP": 8}, num_stages=stages, num_warps=warps
        )
        for tm, tn, tk, stages, warps in SPACE
    ],
    key=["m", "n", "k", "batches"],
)
@triton.jit
def _matmul(
    a,
    b,
    c,
    m,
    n,
    k,
    batches,
    a_batch,
    a_row,
    b_batch,
    b_row,
    c_batch,
    c_row,
    TM: tl.constexpr,
    TN: tl.constexpr,
    TK: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = tl.cdiv(m, TM), tl.cdiv(n, TN)
    strip = tile // (GROUP * columns)  # strips of GROUP rows of tiles, column by column
    height = min(rows - strip * GROUP, GROUP)
    inside = tile % (GROUP * columns)
    i = strip * GROUP + inside % height
    j = inside // height

    at_m, at_n, at_k = i * TM + tl.arange(0, TM), j * TN + tl.arange(0, TN), tl.arange(0, TK)
    from_a = a + batch * a_batch + (at_m % m)[:, None] * a_row + at_k[None, :]
    from_b = b + batch * b_batch + (at_n % n)[None, :] * b_row + at_k[:, None]
    acc = tl.zeros((TM, TN), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, TK)):
        left = k - step * TK
        x = tl.load(from_a, mask=at_k[None, :] < left, other=0.0)
        y = tl.load(from_b, mask=at_k[:, None] < left, other=0.0)
        acc = tl.dot(x, y, acc)
        from_a += TK
        from_b += TK
    to = c + batch * c_batch + at_m[:, None] * c_row + at_n[None, :]
    tl.store(to, acc.to(c.dtype.element_ty), mask=(at_m[:, None] < m) & (at_n[None, :] < n))


def matmul(a: Any, b: Any, out: Any) -> None:
    """Compute out = a @ b.T for a (M, K), b (N, K), out (M, N), or a batch of each; K must be
    contiguous in a and b, N in out."""
    *batch, m, k = a.shape
    n, batches = b.shape[-2], batch[0] if batch else 1

    def strides(x: Any) -> tuple[int, int]:
        return (x.stride(0) if batch else 0), x.stride(-2)

    _matmul[lambda meta: (triton.cdiv(m, meta["TM"]) * triton.cdiv(n, meta["TN"]), batches)](
        a, b, out, m, n, k, batches, *strides(a), *strides(b), *strides(out)
    )


def best() -> str:
    """Return the configuration that the latest call ran with."""
    return str(_matmul.best_config)
