"""numpipe.ops.attention_varlen and its gradients: every sequence against float64, the list of
tiles, and lengths that are not possible."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.ops import attention, attention_varlen
from numpipe.ops.attention_gradients import BLOCK, place_of
from numpipe.ops.attention_varlen import attention_tiles_in_order, attention_varlen_backward, plan
from tests.kernels import attention_gradient_cases as gradients
from tests.kernels.attention_cases import Case

LENGTHS = [(70, 40), (0, 30), (200, 210), (5, 0), (129, 129), (8, 260)]
"""queries and keys of sequences"""
SMALL = Case(heads=2, depth=40, layout="bshd")
CASES: dict[str, tuple[Case, str, int]] = {
    "full": (SMALL, "end", 0),
    "the last query sees the last key": (replace(SMALL, shared=2, causal=True), "end", 0),
    "the first query sees the first key": (replace(SMALL, causal=True), "start", 0),
    "fewer keys": (replace(SMALL, dtype="bfloat16", causal=True), "end", -60),
    "depth 128": (replace(SMALL, depth=128, causal=True), "end", 3),
    "depth 256": (replace(SMALL, heads=1, depth=256, causal=True), "end", 0),
}
"""name -> a sequence, the end to which masks are aligned, and the diagonal"""


def sequences(name: str, lengths: Any = LENGTHS) -> tuple[list[Case], list[np.ndarray], dict]:
    """Return the sequences as cases of their own, and the operands and options of one call."""
    case, align, diagonal = CASES[name]
    cases = [
        replace(case, queries=queries, keys=keys)
        if not case.causal
        else replace(
            case,
            queries=queries,
            keys=keys,
            diagonal=diagonal + (keys - queries if align == "end" else 0),
        )
        for queries, keys in lengths
    ]
    parts = zip(*map(gradients.operands, cases), strict=True)
    q, k, v, o, lse, grad, grad_lse = (
        np.concatenate([x[0] for x in each], axis=int(each[0].ndim == 3)) for each in parts
    )
    at = [starts(side) for side in zip(*lengths, strict=True)]
    options = {"causal": case.causal, "align": align, "diagonal": diagonal}
    return cases, [q, k, v, *at, o, lse, grad, grad_lse], options


def starts(lengths: Any) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


def check(name: str, target: str) -> None:
    """Compare the result and the sums of each sequence with float64."""
    cases, (q, k, v, *at, o, lse, _, _), options = sequences(name)
    out = np.full_like(o, np.nan), np.full_like(lse, np.nan)
    attention_varlen(q, k, v, *at[:2], return_lse=True, out=out, target=target, **options)
    for case, first in zip(cases, at[0], strict=False):
        own = slice(first, first + case.queries)
        assert case.wrong(out[0][own].swapaxes(0, 1)[None], out[1][None, :, own]) == ""


def check_gradients(name: str, target: str) -> None:
    cases, operands, options = sequences(name)
    out = tuple(np.full_like(x, np.nan) for x in operands[:3])
    how = {"target": target, "out": out}
    attention_varlen_backward(*operands, **options, **how)
    for n, case in enumerate(cases):
        own, other = (slice(*side[n : n + 2]) for side in operands[3:5])
        found = [x[of].swapaxes(0, 1)[None] for x, of in zip(out, (own, other, other), strict=True)]
        assert gradients.wrong(case, found) == ""


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", CASES)
def test_every_sequence_matches_float64(name: str) -> None:
    check(name, "sim")


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_every_sequence_match_float64(name: str) -> None:
    check_gradients(name, "sim")


def check_bits(target: str) -> None:
    """Compare the bits of rows among other queries, heads, batches and sequences with those of each
    row alone."""
    case = Case(2, 2, 1, 130, 200, causal=True, diagonal=70)
    q, k, v = case.arrays()
    how = {"batch_invariant": True, "target": target}
    whole = attention(q, k, v, causal=True, diagonal=70, **how)
    for i in (0, 63, 129):
        part = slice(0, i + 71)
        one = attention(q[1:, 1:, i : i + 1], k[1:, :, part], v[1:, :, part], **how)
        assert (one[0, 0, 0] == whole[1, 1, i]).all()
    packed = (np.concatenate([*x.swapaxes(1, 2)]) for x in (q, k, v))
    found = attention_varlen(*packed, starts([130, 130]), starts([200, 200]), causal=True, **how)
    assert (found == np.concatenate([*whole.swapaxes(1, 2)])).all()


def test_bits_of_a_row_do_not_depend_on_other_rows() -> None:
    check_bits("sim")
    x = np.ones((1, 1, 8, 64), np.float16)
    with pytest.raises(numpipe.SpecError, match="batch_invariant=True is not possible; fix: leave"):
        attention(x, x, x, exact=False, batch_invariant=True)


def listed(queries: Any, keys: Any, causal: bool, align: str, diagonal: int) -> np.ndarray:
    """Return the list of tiles of 64 queries."""
    at = starts(queries), starts(keys)
    found = np.zeros((at[0][-1] // 64 + len(queries), 7), np.int32)
    table, count = found[:, :6].copy(), np.zeros(1, np.int32)
    made = plan(64, causal, align == "end")
    totals = {"total_q": int(at[0][-1]), "total_k": int(at[1][-1])}
    made(*at, found, count, diagonal=diagonal, **totals, target="sim")
    attention_tiles_in_order(found, table, target="sim")
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
                row = first + i, first + size, first_key, size_k, i + offset + 1, n
                wanted.append((-(-seen // 64), row))
        ordered = [row for _, row in sorted(wanted, key=lambda each: -each[0])]
        assert (listed(queries, keys, causal, align, diagonal) == ordered).all()


def test_the_largest_sequences_keep_all_tiles() -> None:
    """The number of blocks of a tile, times the number of tiles, would exceed an int32."""
    tiles = listed([64, 129 * 64], [100, 1 << 30], False, "end", 0)
    assert sorted(tiles[:, 0]) == [*range(0, 130 * 64, 64)] and tiles[-1, 0] == 0


def test_whole_blocks_of_sequences_do_not_overlap() -> None:
    """Where gradients have whole blocks of each sequence, no two sequences share one."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.choice([0, 1, 127, 128, 129, 256, 300], 30)
        first = starts(lengths)
        table = np.zeros((30, 6), np.int32)
        table[:, 0], table[:, 5] = first[:-1], range(30)
        places = np.array([place_of(table, i, 0) for i in range(30)])
        ends = places + -(-lengths // BLOCK) * BLOCK
        assert (places % BLOCK == 0).all() and (ends[:-1] <= places[1:]).all()
        assert ends[-1] <= (first[-1] // BLOCK + 30) * BLOCK


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
    with pytest.raises(numpipe.SpecError, match="'k' must have the dimensions keys key_heads"):
        attention_varlen(x, x[None], x, at, at)
    with pytest.raises(numpipe.SpecError, match="n = 2 in 'cu_seqlens_q' .*, 3 in 'cu_seqlens_k'"):
        attention_varlen(x, x, x, at, starts([50, 50]))
    with pytest.raises(numpipe.SpecError, match="'cu_seqlens_q' is int64, expected int32"):
        attention_varlen(x, x, x, at.astype(np.int64), at)
    with pytest.raises(numpipe.SpecError, match="the 2 heads of 'q' must be a multiple of the 3"):
        attention_varlen(
            x, np.ones((100, 3, 64), np.float16), np.ones((100, 3, 64), np.float16), at, at
        )
