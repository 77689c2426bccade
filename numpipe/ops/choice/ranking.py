"""Rank the configs for a product by predicted time: `choose` returns the first, `space` several.

The cycles of all configs are counted (`cost`), and a network corrects the count of the best ones
(`network`) for the given GPU (`gpu`). The GPU itself is not needed.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...arch.target import LINE
from .cost import Product, cycles
from .gpu import Gpu, gpu_of
from .network import correction, features
from .ways import FUSED, Config, Ways, configs, fitted, ways

LOOKED_AT = 128
"""number of configs with the fewest counted cycles whose counts are corrected together; on average
over measured products on an H200, the fastest of them takes 0.1 % longer than the fastest of all"""
TURNED = 1.01
"""factor by which the transpose must be predicted to be faster to be computed; smaller differences
are within the error of the predictions"""


@functools.lru_cache(maxsize=4096)
def choose(
    m: int,
    n: int,
    k: int,
    gpu: Gpu | None = None,
    batches: int = 1,
    fused: bool = False,
    aligned: int | None = None,
    fixed: bool = False,
    crosswise: tuple[bool, bool] = (False, False),
) -> Config:
    """Return the config that is predicted to be the fastest for a product of these sizes.

    gpu        the GPU to run on (`numpipe.ops.choice.gpu`); None: an H200
    fused      whether there is an epilogue other than alpha, for which some configs lack registers
    aligned    alignment of the operands' rows in bytes, a power of two up to 128; None: that of
               contiguous operands with rows along K
    fixed      only configs that sum in the same order wherever in the output a row is
    crosswise  whether a is contiguous along M, and b along N, rather than along K
    """
    if 0 in (m, n, k, batches):
        return Config()
    aligned = math.gcd(2 * k, LINE) if aligned is None else aligned
    return next(_ordered(m, n, k, gpu, batches, fused, aligned, fixed, crosswise))


def space(
    m: int,
    n: int,
    k: int,
    gpu: Gpu | None = None,
    aligned: int = LINE,
    most: int = 16,
    turned: bool = True,
    widths: int = 1,
) -> list[Config]:
    """Return up to `most` configs, the one that is predicted to be the fastest first.

    gpu     the GPU to run on; None: an H200
    turned  whether to include configs that compute the transpose; `matmul` passes the operands'
            transposes to their kernels
    widths  how many configs may differ in little but `tn`

    >>> first, second = space(377, 13712, 8152, aligned=16, most=2)
    >>> first == choose(377, 13712, 8152, aligned=16)
    True
    """
    found = []
    kinds: Counter[tuple[object, ...]] = Counter()
    for config in _ordered(m, n, k, gpu, aligned=aligned):
        kind = (
            config.tm,
            config.tk,
            config.schedule,
            config.turned,
            config.split,
            config.cluster,
            config.across,
        )
        if config.turned > turned or kinds[kind] == widths:
            continue
        kinds[kind] += 1
        found.append(config)
        if len(found) == most:
            break
    return found


def _ordered(
    m: int,
    n: int,
    k: int,
    gpu: Gpu | None,
    batches: int = 1,
    fused: bool = False,
    aligned: int = LINE,
    fixed: bool = False,
    crosswise: tuple[bool, bool] = (False, False),
) -> Iterator[Config]:
    """Yield configs, the fastest first: the `LOOKED_AT` configs with the fewest cycles in the order
    of their corrected count, then the next ones."""
    gpu, of = gpu or gpu_of(), ways()
    possible = np.full(len(of.tm), True)
    if fused:  # an epilogue reads arrays in strips of at least 64 bytes
        possible &= (of.tm / np.where(of.turns > 0, 1, of.wgs) * of.tn <= FUSED) & (of.tn % 32 == 0)
    if fixed:
        possible &= (of.stream == 0) & (of.parts * of.along == 1)
    sides, counted = ((m, n), (n, m)), []
    for flip in (False, True):
        # rows of blocks of such an operand are cut into powers of two
        allowed = possible & (of.tn % 32 == 0) if crosswise[not flip] else possible
        counts = cycles(of, Product(*sides[flip], k, flip, aligned, batches), gpu)
        # the batches of a transpose would have to be stored by lanes
        counted.append(np.where(allowed & (batches == 1 or not flip), counts, np.inf))
    left = np.concatenate(counted)
    while (most := min(LOOKED_AT, np.isfinite(left).sum())) > 0:
        best = np.argpartition(left, most - 1)[:most]
        at, turned = best % len(possible), best >= len(possible)
        few = Ways(*(field[at] for field in of))
        rows, columns = np.where(turned, n, m), np.where(turned, m, n)
        product = Product(
            rows.astype(np.float32), columns.astype(np.float32), k, turned, aligned, batches
        )
        predicted = left[best] * np.exp(
            correction(features(few, product, left[best], gpu), gpu.layers)
        )
        for i in np.argsort(predicted * np.where(turned, TURNED, 1), kind="stable"):
            flip = bool(turned[i])
            yield fitted(configs()[at[i]], flip, *sides[flip], gpu.sms)
        left[best] = np.inf
