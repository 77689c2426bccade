"""Philox against its published test vectors and its own definition in NumPy, and mulhi."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ds
from numpipe.compile.check import gate
from numpipe.language.tiles.random_numbers import philox_2x32
from tests.kernels.compilers import compiles

# the file kat_vectors of Random123: key, counter, result
PUBLISHED = [
    ((0,) * 2, (0,) * 4, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda words: ArrayType((4, 64, 8), np.uint32))
def draws(words, bits):
    """Draw with key and counter in six blocks of 64 rows."""
    key = words[ds(0, 64), ds(0, 8)], words[ds(64, 64), ds(0, 8)]
    counter = (
        words[ds(128, 64), ds(0, 8)],
        words[ds(192, 64), ds(0, 8)],
        words[ds(256, 64), ds(0, 8)],
        words[ds(320, 64), ds(0, 8)],
    )
    w0, w1, w2, w3 = numpipe.philox(key, counter)
    bits[0, :, :] = w0
    bits[1, :, :] = w1
    bits[2, :, :] = w2
    bits[3, :, :] = w3


@pytest.mark.parametrize("key, counter, result", PUBLISHED)
def test_philox_gives_its_published_test_vectors(
    key: tuple[int, ...], counter: tuple[int, ...], result: tuple[int, ...], target: str
) -> None:
    words = np.repeat(np.array(key + counter, np.uint32), 64)[:, None].repeat(8, 1)
    bits = draws(words, target=target)
    assert (bits == np.array(result, np.uint32)[:, None, None]).all()


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda words: ArrayType((2, 64, 8), np.uint32))
def draws_of_two(words, bits):
    part = ds(0, 8)
    counter = words[ds(64, 64), part], words[ds(128, 64), part]
    w0, w1 = philox_2x32(words[ds(0, 64), part], counter)
    bits[0, :, :] = w0
    bits[1, :, :] = w1


PUBLISHED_OF_TWO = [
    ((0, 0, 0), (0x257A3673, 0xCD26BE2A)),
    ((0xFFFFFFFF,) * 3, (0xAB302C4D, 0x3DC9D239)),
    ((0x13198A2E, 0x243F6A88, 0x85A308D3), (0xBEDBBE6B, 0xE4C770B3)),
]


@pytest.mark.parametrize("words, result", PUBLISHED_OF_TWO)
def test_philox_of_two_words_gives_its_published_test_vectors(
    words: tuple[int, ...], result: tuple[int, ...]
) -> None:
    words = np.repeat(np.array(words, np.uint32), 64)[:, None].repeat(8, 1)
    bits = draws_of_two.simulate(words)
    assert (bits == np.array(result, np.uint32)[:, None, None]).all()


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda number: ArrayType((64, 48), np.float32))
def uniform(number, x):
    row, column = numpipe.iota((64, 48), 0), numpipe.iota((64, 48), 1)
    x[:, :] = numpipe.random(number, row * 48 + column)


def reference(seed: int, counter: np.ndarray) -> np.ndarray:
    """Return `numpipe.random` with Python's integers."""
    result = np.empty(counter.shape, np.float32)
    for place, first in np.ndenumerate(counter):
        k0, k1, c0, c1, c2, c3 = seed % 2**32, 0, int(first), 0, 0, 0
        for _ in range(10):
            p0, p2 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
            c0, c1, c2, c3 = p2 >> 32 ^ c1 ^ k0, p2 % 2**32, p0 >> 32 ^ c3 ^ k1, p0 % 2**32
            k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
        result[place] = (c0 >> 8) * 2.0**-24
    return result


@pytest.mark.parametrize("seed", [0, 5, -1])
def test_random_numbers_are_those_of_seed_and_counter(seed: int, target: str) -> None:
    x = uniform(seed, out=np.empty((64, 48), np.float32), target=target)
    assert (x == reference(seed, np.arange(64 * 48).reshape(64, 48))).all()
    assert x.min() >= 0 and x.max() < 1 and abs(x.mean() - 0.5) < 0.02


@numpipe.kernel(grid=1, num_compute_wgs=1, out_type=lambda a, b: ArrayType((64, 16), a.dtype))
def high_words(a, b, c):
    c[:, :] = numpipe.mulhi(a[ds(0, 64), ds(0, 16)], b[ds(0, 64), ds(0, 16)])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_mulhi_is_the_high_word_of_the_product(dtype: type, target: str) -> None:
    random = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    a, b = (
        random.integers(limits.min, limits.max, (64, 16), dtype, endpoint=True) for _ in range(2)
    )
    a[0, :3], b[0, :3] = [limits.min, limits.max, limits.min], [limits.min, limits.max, limits.max]
    wanted = (a.astype(object) * b.astype(object)) // 2**32
    assert (high_words(a, b, target=target) == wanted.astype(dtype)).all()


def test_mulhi_refuses_smaller_integers() -> None:
    small = np.zeros((64, 16), np.int8)
    with pytest.raises(SpecError, match=r"mulhi.*int32 or uint32, got int8: use \.astype"):
        high_words.simulate(small, small, small)


@compiles
def test_the_code_keeps_the_words_of_an_element_in_registers() -> None:
    for kernel, arguments in (
        (uniform, (3, np.empty((64, 48), np.float32))),
        (draws, (np.zeros((384, 8), np.uint32),)),
        (high_words, (np.zeros((64, 16), np.uint32),) * 2),
    ):
        assert gate.findings(kernel.compiled(*arguments)) == ()
