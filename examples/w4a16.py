"""y = x @ W.T for a few tokens x and 4-bit weights W: the product of a language model that
generates text.

    python examples/w4a16.py                             on the GPU if there is one, else simulated
    python examples/w4a16.py --target sim --shape 200,768

Prints the error against float64.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from dataclasses import dataclass

import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, TilingTransform, cdiv, ds, launch, pipeline, split_tiles

GROUP = 128
"""Adjacent weights of a row that share a scale."""


@dataclass(frozen=True)
class Config:
    """How the product is divided.

    wgs      compute warpgroups of a CTA, each with 64 rows of weights
    cluster  CTAs that divide the columns of these rows among them and add up their sums
    tokens   maximum number of tokens, a multiple of 8 for each CTA of a cluster
    slots    steps in shared memory at once
    groups   groups of 128 columns in a step, 1 or 2. With 2, one is unpacked while the other is
             multiplied
    """

    wgs: int = 2
    cluster: int = 2
    tokens: int = 16
    slots: int = 12
    groups: int = 1


@functools.cache
def kernel(cfg: Config = Config()) -> numpipe.Kernel:
    """Return the kernel ``w4a16(w, scales, x)``, whose result is the transpose of x @ W.T.

    w       uint8 (N, K / 2): int4 weights. Two neighbors along K share a byte, the first one in its
            low half (`pack`)
    scales  float16 (K / 128, N): one for 128 weights of a row
    x       float16 or bfloat16 (tokens, K)
    result  float32 (N, tokens)

    The tensor cores read the unpacked weights from registers. The sums of a group are scaled in
    float32.
    """
    if cfg.groups == 2:
        return in_pairs(cfg)
    rows, share, slots = 64 * cfg.wgs, cfg.tokens // cfg.cluster, cfg.slots

    @numpipe.kernel(
        out_type=lambda w, scales, x: ArrayType((w.shape[0], x.shape[0]), np.float32),
        grid=numpipe.persistent(),
        num_compute_wgs=cfg.wgs,
        wg_axis="wg",
        cluster=cfg.cluster,
        cluster_names="k",
    )
    def w4a16(w, scales, x, y):
        wg, place = numpipe.axis_index("wg"), numpipe.axis_index("k")
        tiles, steps = cdiv(w.shape[0], rows), scales.shape[0]
        for n, part in split_tiles(tiles, steps=steps, split="k"):
            acc = numpipe.zeros((64, cfg.tokens), np.float32)
            specs = (
                BlockSpec((rows, GROUP // 2), lambda k: (n, part.begin + k)),
                BlockSpec((None, rows), lambda k: (part.begin + k, n)),
                BlockSpec((cfg.tokens, GROUP), lambda k: (0, part.begin + k)),
            )
            pipe = pipeline(grid=(part.steps,), in_specs=specs, max_concurrent_steps=slots)
            for _, (w_tile, scale_tile, x_tile) in pipe(w, scales, x):
                scale = scale_tile[ds(wg * 64, 64)].astype(np.float32)[:, None]
                a = numpipe.unpack(w_tile.at[ds(wg * 64, 64), :], "int4", x.dtype)
                acc += scale * numpipe.wgmma_wait(numpipe.wgmma(None, a, x_tile.T))
            acc = numpipe.combine(acc, part, axis="k")
            y[ds(n * rows + wg * 64, 64), ds(place * share, share)] = acc

    return w4a16


def in_pairs(cfg: Config) -> numpipe.Kernel:
    """Return `kernel` with two groups per step: the product of the first group runs while the
    second is unpacked."""
    rows, share, slots = 64 * cfg.wgs, cfg.tokens // cfg.cluster, cfg.slots
    # one panel of shared memory per group
    panels = (TilingTransform((8, GROUP // 2)),)

    @numpipe.kernel(
        out_type=lambda w, scales, x: ArrayType((w.shape[0], x.shape[0]), np.float32),
        grid=numpipe.persistent(),
        num_compute_wgs=cfg.wgs,
        wg_axis="wg",
        cluster=cfg.cluster,
        cluster_names="k",
    )
    def w4a16(w, scales, x, y):
        wg, place = numpipe.axis_index("wg"), numpipe.axis_index("k")
        mine, low, high = ds(wg * 64, 64), ds(0, GROUP // 2), ds(GROUP // 2, GROUP // 2)
        tiles, steps = cdiv(w.shape[0], rows), cdiv(scales.shape[0], 2)
        for n, part in split_tiles(tiles, steps=steps, split="k"):
            acc = numpipe.zeros((64, cfg.tokens), np.float32)
            specs = (
                BlockSpec((rows, GROUP), lambda k: (n, part.begin + k), transforms=panels),
                BlockSpec((None, rows), lambda k: (2 * (part.begin + k), n)),
                BlockSpec((None, rows), lambda k: (2 * (part.begin + k) + 1, n), mode="zero"),
                BlockSpec((cfg.tokens, 2 * GROUP), lambda k: (0, part.begin + k)),
            )
            pipe = pipeline(grid=(part.steps,), in_specs=specs, max_concurrent_steps=slots)
            for _, (w_tile, one, two, x_tile) in pipe(w, scales, scales, x):
                a = numpipe.unpack(w_tile.at[mine, low], "int4", x.dtype)
                first = numpipe.wgmma(None, a, x_tile.at[:, ds(0, GROUP)].T)
                a = numpipe.unpack(w_tile.at[mine, high], "int4", x.dtype)
                second = numpipe.wgmma(None, a, x_tile.at[:, ds(GROUP, GROUP)].T)
                acc += one[mine].astype(np.float32)[:, None] * numpipe.wgmma_wait(first)
                acc += two[mine].astype(np.float32)[:, None] * numpipe.wgmma_wait(second)
            acc = numpipe.combine(acc, part, axis="k")
            y[ds(n * rows + wg * 64, 64), ds(place * share, share)] = acc

    return w4a16


def pack(q: np.ndarray) -> np.ndarray:
    """Pack integers (N, K), of which only the low 4 bits are used, into bytes (N, K / 2).

    For weights 0 … 15 with a zero point of 8, ``pack(q) ^ 0x88`` gives int4.
    """
    q = q.astype(np.uint8) & 15
    return q[:, ::2] | q[:, 1::2] << 4


def quantized(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize float weights (N, K). Return (w, scales), for `kernel`."""
    groups = weights.reshape(len(weights), -1, GROUP)
    scales = (np.abs(groups).max(axis=2) / 7).astype(np.float16)
    q = np.rint(groups / np.maximum(scales, 1e-7).astype(np.float32)[:, :, None])
    w = pack(np.clip(q, -8, 7).astype(np.int8).reshape(weights.shape))
    return w, np.ascontiguousarray(scales.T)


def dequantized(w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the weights (N, K) as float64."""
    q = np.stack([w & 15, w >> 4], axis=2).reshape(len(w), -1)
    return ((q ^ 8).astype(np.float64) - 8) * np.repeat(scales.T.astype(np.float64), GROUP, axis=1)


def relative_error(w: np.ndarray, scales: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Return ``|y - W x^T| / |W x^T|`` against float64, in the Frobenius norm."""
    exact = dequantized(w, scales) @ x.astype(np.float64).T
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", help="N,K; default: 8192,8192 on a GPU, 256,1024 simulated")
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    target = launch.choose_target(options.target).target
    shape = options.shape or ("8192,8192" if target == "gpu" else "256,1024")
    n, k = map(int, shape.split(","))
    rng = np.random.default_rng(0)
    w, scales = quantized(rng.standard_normal((n, k), np.float32))
    x = rng.standard_normal((options.tokens, k), np.float32).astype(np.float16)
    with warnings.catch_warnings():
        # the last line prints the target, so the warning is redundant
        warnings.simplefilter("ignore")
        y = kernel()(w, scales, x, target=target)
    print(f"target: {target}; error {relative_error(w, scales, x, y):.1e}")
