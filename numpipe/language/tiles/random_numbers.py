"""Random numbers by counting (Philox 4x32-10 and 2x32-7): the number at a position depends on a
seed and the position alone, so every execution, tile shape and schedule draws the same ones.

Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.functions import function
from ...core.static_range import static_range
from .mathematics import mulhi, mullo

__all__ = ["philox", "random"]

ROUNDS, ROUNDS_OF_TWO = 10, 7
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
MULTIPLIER = 0xD256D193
"""of two words"""
INCREMENTS = 0x9E3779B9, 0xBB67AE85


@function
def philox(key: Any, counter: Any) -> Any:
    """Return four uint32 tiles of random bits, for use inside a kernel.

    key      a tuple of two words
    counter  a tuple of four words: elements with the same key and counter get the same bits

    Words are uint32 tiles of shapes that broadcast.
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in static_range(ROUNDS):
        first, second = mulhi(c2, MULTIPLIERS[1]) ^ c1 ^ k0, mulhi(c0, MULTIPLIERS[0]) ^ c3 ^ k1
        c0, c1, c2, c3 = first, mullo(c2, MULTIPLIERS[1]), second, mullo(c0, MULTIPLIERS[0])
        k0, k1 = k0 + INCREMENTS[0], k1 + INCREMENTS[1]
    return c0, c1, c2, c3


@function
def philox_2x32(key: Any, counter: Any) -> Any:
    """Return two uint32 tiles of random bits for one key word and a tuple of two counter words: 3.5
    products a word, where `philox` takes 5. Seven rounds pass BigCrush (Salmon et al.)."""
    c0, c1 = counter
    for _ in static_range(ROUNDS_OF_TWO):
        c0, c1 = mulhi(c0, MULTIPLIER) ^ key ^ c1, mullo(c0, MULTIPLIER)
        key = key + INCREMENTS[0]
    return c0, c1


@function
def random(seed: Any, counter: Any) -> Any:
    """Return float32 random numbers in [0, 1), one for each element of `counter`, for use inside a
    kernel.

    seed     an int32 number, or an int32 or uint32 tile
    counter  an int32 or uint32 tile: elements with the same counter get the same number

    The number is ``philox((seed, 0), (counter, 0, 0, 0))[0] >> 8``, times 2**-24.
    """
    words = counter.astype(np.uint32)
    zero = words * 0
    key = (zero.astype(np.int32) + seed).astype(np.uint32)
    return (philox((key, zero), (words, zero, zero, zero))[0] >> 8).astype(np.float32) * 2.0**-24
