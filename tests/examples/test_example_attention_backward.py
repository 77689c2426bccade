import numpy as np
import pytest
from attention_backward import backward, exact, run

import numpipe


@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "diagonal"),
    [(256, 256, (1, 1), None), (200, 300, (2, 1), 100), (136, 72, (2, 2), -40)],
)
def test_gradients_match_float64(depth, queries, keys, heads, diagonal):
    rng = np.random.default_rng(0)
    q, do = (
        rng.standard_normal((1, heads[0], queries, depth)).astype(np.float16) for _ in range(2)
    )
    k, v = (rng.standard_normal((1, heads[1], keys, depth)).astype(np.float16) for _ in range(2))
    causal = diagonal is not None
    o, lse, *expected = exact(q, k, v, do, causal, diagonal or 0)
    kernel = backward(depth, causal)
    made = run(
        kernel,
        q,
        k,
        v,
        o.astype(np.float16),
        lse.astype(np.float32),
        do,
        lambda shape, dtype: np.full(shape, np.nan, dtype),
        diagonal or 0,
        target="sim",
    )
    for x, y in zip(made, expected, strict=True):
        assert np.linalg.norm(x - y) < 5e-4 * np.linalg.norm(y)


@pytest.mark.parametrize("depth", [64, 128])
def test_no_schedule_has_a_race(depth):
    rng = np.random.default_rng(1)
    q, do = (rng.standard_normal((1, 1, 256, depth)).astype(np.float16) for _ in range(2))
    k, v = (rng.standard_normal((1, 1, 256, depth)).astype(np.float16) for _ in range(2))
    stats, delta = (np.zeros((1, 1, 256), np.float32) for _ in range(2))
    dq = np.zeros((1, 1, 256, depth), np.float32)
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    options = {"scale": 0.125, "scale_log2": 0.18, "diagonal": 0, "group": 1}
    kernel = backward(depth, True)
    found = numpipe.verify(kernel, q, k, v, do, stats, delta, dq, dk, dv, schedules=5, **options)
    assert found, str(found)
