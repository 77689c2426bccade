"""Random words in NumPy, as kernels draw them: Philox 2x32-7 (Salmon et al., 2011)."""

from __future__ import annotations

from typing import Any

import numpy as np


def words(key: Any, first: Any, second: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two words of 32 bits, as uint64, for a key and two counters that broadcast."""
    low, every = np.uint64(2**32 - 1), (key, first, second)
    key, first, second = (np.asarray(x).astype(np.uint64) & low for x in every)
    for _ in range(7):
        product = first * np.uint64(0xD256D193)
        first, second = product >> np.uint64(32) ^ key ^ second, product & low
        key = key + np.uint64(0x9E3779B9) & low
    return first, second
