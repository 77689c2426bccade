"""`numpipe.explain` of what L2 keeps, of reductions, and of products at different rates."""

from __future__ import annotations

import functools

import gemm_mma
import numpy as np
import pytest

import gemm
import numpipe
from numpipe import ArrayType, BlockSpec, ds
from numpipe.model import H200

F16 = np.dtype(np.float16)
explain = functools.partial(numpipe.explain, compiled=False)


@numpipe.kernel(grid=lambda a, c: (c.shape[0] // 64,))
def of_all(a, c):
    """Each CTA adds up all blocks of a column."""
    acc = numpipe.zeros((64, 64), np.float32)
    block = BlockSpec((64, 64), lambda k: (k, 0))
    for _, (tile,) in numpipe.pipeline(grid=(a.shape[0] // 64,), in_specs=(block,))(a):
        acc += tile[...].astype(np.float32)
    c[ds(numpipe.program_id(0) * 64, 64), ds(0, 64)] = acc


def test_hbm_delivers_once_what_fits_into_half_of_l2_and_once_a_wave_what_does_not() -> None:
    for nbytes, fits in ((H200.l2_bytes // 4, True), (2 * H200.l2_bytes, False)):
        a, c = ArrayType((nbytes // 128, 64), F16), ArrayType((64 * 132 * 32, 64), np.float32)
        found = explain(of_all, a, c)
        assert found.loaded == {"a": 132 * 32 * nbytes}
        read = found.hbm_bytes - 64 * c.shape[0] * 4
        assert read == pytest.approx((1 if fits else found.waves) * nbytes, rel=0.01)


@numpipe.kernel(grid=lambda a, c: (a.shape[0] // 64,), warp_specialized=False, num_compute_wgs=1)
def added(a, c):
    rows = ds(numpipe.program_id(0) * 64, 64), ds(0, 64)
    numpipe.atomic_add(c.at[rows], a[rows])


def test_what_is_added_to_is_read_and_written() -> None:
    x = ArrayType((1 << 20, 64), np.float32)
    found, nbytes = explain(added, x, x), 4 * 64 << 20
    assert found.loaded == {"a": nbytes} and found.stored == {"c": nbytes}
    assert found.hbm_bytes == 3 * nbytes


def test_products_of_warps_take_longer_than_those_of_warpgroups() -> None:
    """The same FLOP by mma.sync and by wgmma, which multiplies twice as fast."""
    a, c = ArrayType((2048, 2048), F16), ArrayType((2048, 2048), F16)
    slow = explain(gemm_mma.matmul, a, a, c, sums=np.float32, cfg=gemm_mma.HALF)
    fast = explain(gemm.matmul, a, a)
    assert slow.flop == fast.flop == 2 * 2048**3
    one, other = (it.limits["tensor cores"] * it.clock_mhz for it in (slow, fast))
    assert one == pytest.approx(2 * other) and slow.clock_mhz > fast.clock_mhz
