"""CUPTI, and so torch.profiler and Nsight, shows the name in a kernel's machine code, with and
without a line table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, ds

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("lineinfo", [False, True])
def test_a_profiler_shows_the_name(lineinfo: bool) -> None:
    @numpipe.kernel(compiler_params=CompilerParams(lineinfo=lineinfo))
    def größe(c: Any) -> None:
        c[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 2.0, np.float32)

    c = torch.zeros((64, 64), device="cuda")
    größe(c)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        größe(c)
        torch.cuda.synchronize()
    names = {event.key for event in profile.key_averages()}
    if not names:
        pytest.skip("CUPTI records nothing here")
    assert größe.compiled(c).image.entry == "gr_c3_b6_c3_9fe_f32" in names and (c == 2).all()
