"""The order of configs for a product, fastest first: `choose` takes the first, `space` several.

The cycles of all ways to cut the product are counted (`cost`); a network corrects the count of the
best ones (`network`) for the GPU at hand (`gpu`). None of this needs the GPU itself.
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
from .network import corrected
from .ways import FUSED, Config, Ways, config_of, ways

__all__ = ["choose", "space"]

LOOKED_AT = 600
"""configs of the fewest counted cycles, whose count is corrected"""
TURNED = 1.01
"""how many times as fast the transpose must be predicted to be, to be computed: predictions that
differ by less do not tell which is faster"""


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

    fused      whether there is an epilogue beside alpha, for which not every config has the
               registers
    aligned    the operands' rows begin at multiples of so many bytes, a power of two up to 128;
               None: those of contiguous ones that are summed along
    fixed      only configs that sum a row's products in one order, wherever in the output it lies
    crosswise  whether a, and b, are contiguous along M, and N, rather than along K
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
    """Return the `most` configs that are predicted to be the fastest, the best of them first.

    turned  whether those that compute the transpose may be among them: `matmul` passes their
            kernels the operands' transposes
    widths  how many may differ in little but `tn`

    >>> first, second = space(377, 13712, 8152, aligned=16, most=2)
    >>> first == choose(377, 13712, 8152, aligned=16)
    True
    """
    found: list[Config] = []
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
    """Yield configs, the fastest first."""
    gpu, every_way, both = gpu or gpu_of(), ways(), (False, True)
    sides = {False: (m, n), True: (n, m)}
    possible = np.ones(len(every_way.tm), bool)
    if fused:  # and their arrays are read in strips of at least 64 bytes
        possible &= (
            every_way.tm / np.where(every_way.turns > 0, 1, every_way.wgs) * every_way.tn <= FUSED
        ) & (every_way.tn % 32 == 0)
    if fixed:
        possible &= (every_way.stream == 0) & (every_way.parts * every_way.along == 1)
    counted = []
    for turned in both:
        # rows of an operand's block, which are cut into powers of two
        wide = (every_way.tn % 32 == 0) | (not crosswise[not turned])
        of = Product(*sides[turned], k, turned, aligned, batches)
        allowed = possible & wide & (batches == 1 or not turned)
        counted.append(np.where(allowed, cycles(every_way, of, gpu), np.inf))
    every = np.concatenate(counted)
    best = np.argpartition(every, LOOKED_AT)[:LOOKED_AT]
    best = best[np.isfinite(every[best])]
    turned, number = best >= len(possible), best % len(possible)
    few = Ways(*(field[number] for field in every_way))
    product = Product(np.where(turned, n, m), np.where(turned, m, n), k, turned, aligned, batches)
    for at in np.argsort(corrected(few, product, gpu) * np.where(turned, TURNED, 1), kind="stable"):
        yield config_of(
            Ways(*(field[at] for field in few)), bool(turned[at]), *sides[bool(turned[at])], gpu.sms
        )
