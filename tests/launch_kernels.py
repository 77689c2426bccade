"""Kernels whose compiled form is a stand-in: calls run up to a fake driver, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from launch_fakes import CudaArray

import numpipe
from numpipe import ds, launch


@dataclass
class Compiled:
    """What the compiler returns for `doubled`."""

    name: str = "doubled"
    maps: tuple[launch.MapRequest, ...] = ()
    arrays: tuple[str, ...] = ("a", "c")
    majors: tuple[str, ...] = ("row", "row")
    cubin: bytes = field(default=b"cubin", repr=False)
    entry: str = "doubled_entry"
    threads: int = 384
    smem_bytes: int = 200_000
    debug: bool = False
    profiled: bool = False
    dynamic: bool = False


SIZES = [128] + [8] * 10
"""bytes of its parameters"""


def doubled(compiled: Any = None, **options: Any) -> Any:
    """A kernel of two arrays of two dimensions, the second an output; `compiled` is called where it is compiled."""

    @numpipe.kernel(num_compute_wgs=1, **options)
    def doubled(a, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    doubled.built = compiled or (lambda *_: Compiled())
    return doubled


def arrays(place: int = 0) -> tuple[CudaArray, CudaArray]:
    """Two float32 arrays (64, 64) on the GPU; `place` moves them."""
    return CudaArray((1 << 20) + place, (64, 64), "<f4"), CudaArray((1 << 22) + place, (64, 64), "<f4")
