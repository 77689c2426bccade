"""Kernels whose launches must run one after another: each adds 1."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, cdiv, ds
from numpipe.intrinsics import special


def step(**options: Any) -> Any:
    """Return a new kernel, never called before: c = a + 1 for float32 matrices, 64 rows per CTA."""
    options = {
        "grid": lambda a: (cdiv(a.shape[0], 64),),
        "grid_names": "cta",
        **options,
    }

    @numpipe.kernel(**options)
    def step(a, c):
        cta = numpipe.axis_index("cta")
        pipe = numpipe.pipeline(
            grid=(cdiv(a.shape[1], 32),),
            max_concurrent_steps=2,
            in_specs=(BlockSpec((64, 32), lambda k: (cta, k)),),
        )
        for (k,), (tile,) in pipe(a):
            c[ds(cta * 64, 64), ds(k * 32, 32)] = tile[...] + 1.0

    return step


def ranks(**options: Any) -> Any:
    """Store each CTA's rank in its cluster to its 64 rows of c, float32 with 32 columns."""
    options = {
        "grid": lambda c: (cdiv(c.shape[0], 64),),
        "grid_names": "cta",
        **options,
    }

    @numpipe.kernel(**options)
    def ranks(c):
        cta = numpipe.axis_index("cta")
        c[ds(cta * 64, 64), ds(0, 32)] = (
            numpipe.zeros((64, 32), np.float32) + special.cluster_rank()
        )

    return ranks
