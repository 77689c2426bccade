"""examples/attention_ladder.py on the GPU: every rung, with more tiles than SMs and partial tiles,
against float64."""

from __future__ import annotations

import attention_ladder
import numpy as np
import pytest

import flash_attention

PROCESSES = 3


@pytest.mark.parametrize("depth", attention_ladder.DEPTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", attention_ladder.RUNGS)
def test_a_rung_gives_what_float64_gives(name: str, causal: bool, depth: int) -> None:
    arrays = flash_attention.inputs((2, 9, 9, 1001, depth), np.dtype(np.float16))
    out = np.full_like(arrays[0], np.nan)
    attention_ladder.attention(
        *arrays, cfg=attention_ladder.RUNGS[name], causal=causal, out=out, target="gpu"
    )
    exact, _ = flash_attention.exactly(*arrays, causal=causal)
    assert np.linalg.norm(out.astype(np.float64) - exact) < 1e-3 * np.linalg.norm(exact)
