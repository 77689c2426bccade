"""Kernels with a fake compiled form: calls run up to a fake driver, in microseconds."""

from __future__ import annotations

import types
from typing import Any

import numpy as np

import numpipe
from numpipe import ds, launch
from numpipe.plan.resources import Resources
from tests.kernels.launch_fakes import CudaArray


def image(
    maps: tuple[launch.MapRequest, ...] = (),
    arrays: tuple[str, ...] = ("a", "c"),
    majors: tuple[Any, ...] | None = None,
    **fields: Any,
) -> launch.Image:
    """Return the compiler's output for `doubled`, or for a kernel of other arrays."""
    name = fields.setdefault("name", "doubled")
    used = Resources(168, 0, 0, 200_000, 384, 40, 232, ())
    given: dict[str, Any] = {
        "entry": f"{name}_entry",
        "cubin": b"cubin",
        "threads": 384,
        "parts": ("compute", "compute", "memory"),
        "smem_bytes": 200_000,
        "target": "sm_90a",
        **fields,
    }
    majors = ("row",) * len(arrays) if majors is None else majors
    return launch.Image(maps=maps, arrays=arrays, majors=majors, resources=used, **given)


def compiled_as(kernel: Any, compiled: Any) -> Any:
    """Return the kernel with fake variants that are never compiled.

    `compiled` returns the image for a variant's key and for the arrays that TMA cannot address.
    """

    class Variants(dict[Any, Any]):
        def setdefault(self, key: Any, variant: Any) -> Any:
            variant._build = lambda: types.SimpleNamespace(image=compiled(key, variant.obstacles))
            return super().setdefault(key, variant)

    kernel._calls.variants = Variants()
    return kernel


SIZES = [128] + [8] * 10
"""bytes of each kernel parameter"""


def doubled(compiled: Any = None, **options: Any) -> Any:
    """Return a kernel of two 2-D arrays, the second an output; `compiled` is called to compile
    it."""

    @numpipe.kernel(**options)
    def doubled(a, c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    return compiled_as(doubled, compiled or (lambda *_: image()))


def arrays(place: int = 0) -> tuple[CudaArray, CudaArray]:
    """Return two float32 arrays (64, 64) on the GPU; `place` moves them."""
    return CudaArray((1 << 20) + place, (64, 64), "<f4"), CudaArray(
        (1 << 22) + place, (64, 64), "<f4"
    )
