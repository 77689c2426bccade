"""Random numbers by counting (Philox 4x32-10): the number at a position depends on a seed and the
position alone, so every execution, tile shape and schedule draws the same ones.

Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.functions import function
from .mathematics import elementwise_function

__all__ = ["philox", "random"]

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)

Word = Any
"""an array of uint64 below 2**32 on the simulated SM, an LLVM value of 32 bits on the GPU"""


def rounds(
    words: tuple[Word, ...],
    multiply: Callable[[Word, int], tuple[Word, Word]],
    add: Callable[[Word, int], Word],
    xor: Callable[[Word, Word], Word],
) -> tuple[Word, ...]:
    """Return the four words of a draw, given two words of a key and four of a counter.

    `multiply` returns the high and the low word of a product.
    """
    k0, k1, c0, c1, c2, c3 = words
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high2, low2 = multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = xor(xor(high2, c1), k0), low2, xor(xor(high0, c3), k1), low0
        k0, k1 = add(k0, INCREMENTS[0]), add(k1, INCREMENTS[1])
    return c0, c1, c2, c3


def _drawn(number: int, *words: Any) -> Any:
    return rounds(
        tuple(np.asarray(word).astype(np.uint64) for word in words),
        lambda x, by: (x * np.uint64(by) >> np.uint64(32), x * np.uint64(by) & LOW),
        lambda x, y: x + np.uint64(y) & LOW,
        operator.xor,
    )[number].astype(np.int64)


_word0, _word1, _word2, _word3 = WORDS = tuple(
    elementwise_function(
        f"philox word {number}",
        functools.partial(_drawn, number),
        operands=("k0", "k1", "c0", "c1", "c2", "c3"),
        takes="i",
        numbers=(),
        words=True,
    )
    for number in range(4)
)


@function
def philox(key: Any, counter: Any) -> Any:
    """Return four uint32 tiles of random bits, for use inside a kernel.

    key      a tuple of two words
    counter  a tuple of four words: elements with the same key and counter get the same bits

    Words are uint32 tiles of shapes that broadcast, or int literals below 2**32.
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    return (
        _word0(k0, k1, c0, c1, c2, c3),
        _word1(k0, k1, c0, c1, c2, c3),
        _word2(k0, k1, c0, c1, c2, c3),
        _word3(k0, k1, c0, c1, c2, c3),
    )


@function
def random(seed: Any, counter: Any) -> Any:
    """Return float32 random numbers in [0, 1), one for each element of `counter`, for use inside a
    kernel.

    seed     an int32 number, or an int32 or uint32 tile
    counter  an int32 or uint32 tile: elements with the same counter get the same number

    The number is ``philox((seed, 0), (counter, 0, 0, 0))[0] >> 8``, times 2**-24.
    """
    words = counter.astype(np.uint32)
    key = (words.astype(np.int32) * 0 + seed).astype(np.uint32)
    return (_word0(key, 0, words, 0, 0, 0) >> 8).astype(np.float32) * 2.0**-24
