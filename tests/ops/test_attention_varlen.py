"""numpipe.ops.attention_varlen: every sequence against float64, the list of tiles, and lengths that
are not possible."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import flash_attention
import numpipe
from numpipe.ops import attention_varlen
from numpipe.ops.attention_varlen import plan
from tests.kernels.attention_cases import BOUND, DTYPES

QUERIES, KEYS = (70, 0, 200, 5, 129, 8), (40, 30, 210, 0, 129, 260)
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "the last query sees the last key": {"causal": True},
    "the first query sees the first key": {"causal": True, "align": "start"},
    "fewer keys": {"causal": True, "diagonal": -60},
}


def starts(lengths: Any) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


def check(
    target: str,
    heads: tuple[int, int],
    depth: int,
    dtype: str,
    lengths: tuple[Any, Any] = (QUERIES, KEYS),
    **options: Any,
) -> None:
    """Compare the result and the sums of each sequence with float64."""
    rng, at = np.random.default_rng(0), tuple(map(starts, lengths))
    q, k, v = (
        rng.standard_normal((at[side][-1], heads[side], depth)).astype(DTYPES[dtype])
        for side in (0, 1, 1)
    )
    out = np.full_like(q, np.nan), np.full((heads[0], len(q)), np.nan, np.float32)
    attention_varlen(q, k, v, *at, return_lse=True, out=out, target=target, **options)
    named = {"causal": options.get("causal", False), "diagonal": options.get("diagonal", 0)}
    for n in range(len(lengths[0])):
        own, other = (slice(*each[n : n + 2]) for each in at)
        if options.get("align") != "start" and named["causal"]:
            named["diagonal"] = options.get("diagonal", 0) + lengths[1][n] - lengths[0][n]
        exact, logs = flash_attention.exactly(
            *(x[of].swapaxes(0, 1)[None] for x, of in ((q, own), (k, other), (v, other))), **named
        )
        found, sums = out[0][own].swapaxes(0, 1)[None].astype(np.float64), out[1][None, :, own]
        assert np.linalg.norm(found - exact) <= BOUND[dtype] * np.linalg.norm(exact)
        np.testing.assert_allclose(sums, logs, rtol=2e-5, atol=2e-5)
        assert not found[np.isneginf(logs)].any()


@pytest.mark.parametrize("name", CASES)
def test_every_sequence_matches_float64(name: str) -> None:
    check("sim", (2, 1), 40, "float16", **CASES[name])


def test_one_sequence_is_attention() -> None:
    check("sim", (1, 1), 128, "bfloat16", ((72,), (136,)))


def listed(queries: Any, keys: Any, causal: bool, align: str, diagonal: int) -> np.ndarray:
    """Return the list of tiles of 64 queries and blocks of 64 keys."""
    at = starts(queries), starts(keys)
    table = np.zeros((at[0][-1] // 64 + len(queries), 5), np.int32)
    count = np.zeros(1, np.int32)
    made = plan(64, 64, causal, align == "end")
    totals = {"total_q": int(at[0][-1]), "total_k": int(at[1][-1])}
    made(*at, table, count, diagonal=diagonal, **totals, target="sim")
    return table[: count[0]]


@pytest.mark.parametrize("align", ["start", "end"])
def test_the_tiles_with_the_most_steps_are_first(align: str) -> None:
    rng = np.random.default_rng(0)
    for causal, diagonal in itertools.product((False, True), (0, -100, 70)):
        queries, keys = rng.integers(0, 600, (2, 9))
        queries[[3, 8]] = keys[5] = 0
        wanted = []
        for n, (size, size_k) in enumerate(zip(queries, keys, strict=True)):
            first, first_key = queries[:n].sum(), keys[:n].sum()
            offset = diagonal + (size_k - size if align == "end" else 0)
            for i in range(0, size, 64):
                seen = min(size_k, max(0, i + 64 + offset)) if causal else size_k
                row = first + i, first + size, first_key, size_k, i + offset + 1
                wanted.append((-(-seen // 64), row))
        ordered = [row for _, row in sorted(wanted, key=lambda each: -each[0])]
        assert (listed(queries, keys, causal, align, diagonal) == ordered).all()


@pytest.mark.parametrize(
    "at", [(0, 60, 40, 100), (0, 50, 101), (-1, 100)], ids=["decrease", "overrun", "negative"]
)
def test_lengths_that_decrease_or_overrun_are_reported(at: tuple[int, ...]) -> None:
    x, good = np.ones((100, 2, 64), np.float16), np.linspace(0, 100, len(at)).astype(np.int32)
    for pair in ((np.array(at, np.int32), good), (good, np.array(at, np.int32))):
        with pytest.raises(numpipe.SimulationError, match="lengths decrease, or exceed the array"):
            attention_varlen(x, x, x, *pair, target="sim")


def test_shapes_that_do_not_match_are_refused() -> None:
    x, at = np.ones((100, 2, 64), np.float16), starts([100])
    with pytest.raises(numpipe.SpecError, match=r"'k' must have 3 dimensions, \(positions, heads"):
        attention_varlen(x, x[None], x, at, at)
    with pytest.raises(numpipe.SpecError, match="'cu_seqlens_k' must have the shape"):
        attention_varlen(x, x, x, at, starts([50, 50]))
    with pytest.raises(numpipe.SpecError, match="'cu_seqlens_q' is int64, expected int32"):
        attention_varlen(x, x, x, at.astype(np.int64), at)
    with pytest.raises(numpipe.SpecError, match="the 2 heads of 'q' must be a multiple of the 3"):
        attention_varlen(x, np.ones((100, 3, 64), np.float16), np.ones((100, 3, 64), np.float16), at, at)
