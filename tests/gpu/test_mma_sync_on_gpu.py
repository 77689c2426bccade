"""Products with mma.sync and float64 products on the GPU agree with NumPy within the error bound of
`product_kernels.bound`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.product_kernels import CASES, is_right

SHAPES = 25
"""Random shapes of each of the twelve cases: 300 products."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_random_shapes_are_numpys(case: tuple[str, bool, bool, bool]) -> None:
    name, a_by_k, b_by_k, moved = case
    rng = np.random.default_rng(CASES.index(case))
    wrong = []
    for _ in range(SHAPES):
        m, n, k = (8 * int(rng.integers(1, 65)) for _ in range(3))
        m -= int(rng.integers(0, 8)) * a_by_k
        shape = m, n, 2 * k
        if not is_right(name, shape, a_by_k, b_by_k, moved=moved, target="gpu"):
            wrong.append(shape)
    assert wrong == []


def test_a_wrong_product_is_found() -> None:
    """The bound is tight enough to detect that one element of K is left out."""
    import numpipe

    @numpipe.kernel(num_compute_wgs=1)
    def short(a, b, c):
        pipe = numpipe.pipeline(
            grid=(1,),
            in_specs=(
                numpipe.BlockSpec((64, 64), lambda k: (0, 0)),
                numpipe.BlockSpec((64, 64), lambda k: (0, 0)),
            ),
        )
        acc = numpipe.zeros((64, 64), np.float32)
        for (_,), (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.mma(acc, a_tile, b_tile.T)
        c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = acc

    def partly(a, b, c, **_):
        a = a.copy()
        a[:, -1] = 0
        short(a, b, c, target="gpu")

    assert not is_right("float16", (64, 64, 64), kernel=partly)
