"""Score and mask functions of numpipe.ops.attention, simulated: results against float64, the blocks
that are loaded, any schedule, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.kernels.noted_calls import imagined
from numpipe.ops import attention, attention_blocks
from numpipe.ops.attention import Config, fitting, kernel
from numpipe.ops.attention_configs import Form, with_functions
from numpipe.ops.attention_functions import (
    attention_mask_lists,
    attention_mask_order,
    classify,
    visible_blocks,
)
from numpipe.ops.attention_gradients import of_keys
from numpipe.ops.derivatives import derivative
from tests.kernels import attention_function_cases as functions
from tests.kernels.attention_function_cases import CASES, Case, alibi, documents
from tests.kernels.compilers import compiles

SMALL = Config(64)


def run(case: Case, config: Config | None = SMALL, **named: Any) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = map(case.laid, case.arrays())
    options = {"scale": case.scale, "layout": case.layout, **case.functions(), **named}
    o, sums = attention(q, k, v, **options, return_lse=True, config=config, target="sim")
    return case.laid(o), sums


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", CASES)
def test_attention_with_functions_matches_float64(name: str) -> None:
    assert CASES[name].wrong(*run(CASES[name])) == ""


def test_the_chosen_config_and_lazy_rescaling_give_the_same() -> None:
    case = CASES["documents"]
    assert case.wrong(*run(case, None)) == ""
    alone = replace(CASES["alibi"], depth=128)
    assert alone.wrong(*run(alone, None)) == ""
    case = replace(CASES["both, with arrays"], batches=1)
    assert case.wrong(*run(case, None, exact=False), more=1.3) == ""


def test_blocks_can_be_computed_once() -> None:
    case = CASES["documents"]
    q, k, v = case.arrays()
    options = case.functions()
    blocks = attention_blocks(q, k, **options, target="sim")
    found = attention(q, k, v, **options, blocks=blocks, target="sim")
    assert (found == attention(q, k, v, **options, target="sim")).all()
    hidden = np.where(np.arange(blocks.shape[3]) < 2, 0, blocks)
    assert not attention(q, k, v, **options, blocks=hidden, target="sim").any()
    with pytest.raises(
        numpipe.SpecError, match=r"blocks \(2, 1, 2, 2\) must have the shape \(2, 1"
    ):
        attention(q, k, v, **options, blocks=np.ones((2, 1, 2, 2), np.int32), target="sim")


@pytest.mark.variants(3)
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("name", CASES)
def test_gradients_match_float64(name: str, depth: int) -> None:
    case = replace(CASES[name], depth=depth)
    assert case.wrong_gradients("sim", False, True) == ""


def test_dropout_drops_the_same_weights_forward_and_backward() -> None:
    case = CASES["dropout, with both"]
    found = run(case)
    assert case.wrong(*found) == "" == case.wrong_gradients("sim", False)
    assert replace(case, seed=-6).wrong(*found)
    assert not run(replace(case, dropout=1.0))[0].any()


def test_each_function_matters() -> None:
    case = CASES["both, with arrays"]
    found = run(case)
    assert replace(case, mask=None).wrong(*found) and replace(case, score=None).wrong(*found)


def test_a_score_is_masked_by_causal() -> None:
    case = replace(CASES["alibi"], queries=136, keys=136)
    o = run(case, causal=True, diagonal=3)
    masked = replace(case, mask=numpipe.function(diagonal))
    assert masked.wrong(*o) == ""


def diagonal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query + 3 >= key


def test_blocks_that_a_mask_leaves_out_are_not_loaded() -> None:
    case = replace(CASES["window"], batches=1, heads=1, queries=512, keys=512)
    form = Form(64, mask=functions.window)
    q, k, v = case.arrays()
    flags, lists = np.zeros((1, 1, 4, 8), np.int32), np.full((1, 1, 4, 11), -1, np.int32)
    classify(functions.window, 0, 128, 64)(flags, queries=512, keys=512, sharing=1, target="sim")
    i, j = np.ogrid[:512, :512]
    seen = functions.window(0, 0, i, j).reshape(4, 128, 8, 64)
    assert (flags[0, 0] == seen.any((1, 3)).astype(int) + seen.all((1, 3))).all()
    attention_mask_lists(flags, lists, counts=False, target="sim")
    attention_mask_order(lists, target="sim")
    assert lists[0, 0, 1].tolist() == [4, 0, 1, 2, 3, 4, *[-1] * 4, 2]
    assert lists[0, 0, :, -1].tolist() == [1, 2, 0, 3]
    trace, o = numpipe.Trace(), np.zeros_like(q)
    kernel(SMALL, form).simulate(q, k, v, lists, o, scale=0.18, diagonal=0, group=1, trace=trace)
    loads = [event.details["tensor"] for event in trace.of("load")]
    # blocks, one more for the step that only multiplies by V
    assert loads.count("k") - 4 == loads.count("v") - 4 == (flags > 0).sum() == 14


def test_lists_of_long_rows_continue() -> None:
    rng = np.random.default_rng(0)
    flags = rng.integers(0, 3, (1, 1, 3, 2500)).astype(np.int32)
    lists = np.zeros((1, 1, 3, 2503), np.int32)
    attention_mask_lists(flags, lists, counts=False, target="sim")
    for row, found in zip(flags[0, 0], lists[0, 0], strict=True):
        parts, wholes = (np.flatnonzero(row == of) for of in (1, 2))
        assert found[: 2 + len(parts)].tolist() == [len(parts), len(wholes), *parts]
        assert (found[-2::-1][: len(wholes)] == wholes).all()
    attention_mask_lists(flags, lists, counts=True, target="sim")
    earlier = np.cumsum(flags[0, 0] > 0, axis=0) - (flags[0, 0] > 0)
    for row, before, found in zip(flags[0, 0], earlier, lists[0, 0], strict=True):
        seen = np.flatnonzero(row)
        entries = before[seen] << 16 | seen << 1 | (row[seen] == 1)
        assert found[: 2 + len(seen)].tolist() == [len(seen), 0, *entries]


def test_gradients_refuse_more_blocks_than_an_entry_has_bits_for() -> None:
    q, k = (imagined((1, 1, positions, 64), np.float16) for positions in (1 << 10, (1 << 22) + 1))
    with pytest.raises(
        numpipe.SpecError, match=r"up to 2097152 queries and 4194304 keys, got 1024"
    ):
        visible_blocks(q, k, Form(64, mask=functions.window), [], 64, 128, {}, by_keys=True)


def test_no_schedule_finds_a_race() -> None:
    case = replace(CASES["prefix"], batches=1, heads=1, depth=64, layout="bhsd")
    form = Form(64, score=functions.soft_cap, mask=functions.prefix, arrays=(0, 1))
    (lengths,) = case.arrays_of(functions.prefix)
    lists = np.array([[[[2, 0, 0, 1, 0, 1], [2, 1, 1, 2, 0, 0]]]], np.int32)
    q, k, v = case.arrays()
    found = numpipe.verify(
        kernel(replace(SMALL, dynamic=False), form),
        *(q, k, v, lists, lengths, np.zeros_like(q)),
        scale=0.2,
        diagonal=0,
        group=1,
        schedules=4,
    )
    assert found.ok and found.schedules == 4, str(found)


@compiles
@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("what", ["forward", "gradients", "gradients in turn"])
def test_kernels_pass_the_build_gate(what: str, depth: int) -> None:
    form = Form(depth, score=alibi, mask=documents, arrays=(1, 1), dropout=0.1)
    x, numbers = np.zeros((1, 2, 256, depth), np.float16), np.zeros((1, 2, 256), np.float32)
    of = np.zeros((1, 1, 2, 7), np.int32), numbers[0, :, 0], np.zeros((1, 256), np.int32)
    of += (np.zeros(1, np.int32),)
    if what == "forward":
        made, given = kernel(with_functions(depth), form), (x, x, x, *of, x)
    else:
        lines, ordered = 16 * depth, what != "gradients"
        turns = np.zeros(lines // 64, np.int32)
        made = of_keys(form, ordered)
        total = (np.zeros((lines, 32), np.float32), turns)[: 1 + ordered]
        given = x, x, x, x, numbers, numbers, *of, *total, x, x
    scalars = {} if what == "forward" else {"whole": 4, "parts": 1}
    assert made.inspect("gate", *given, scale=0.1, diagonal=0, group=1, **scalars) == ()


@numpipe.function
def earlier(batch, head, query, key, ids):
    return (ids[batch, query] == ids[batch, key]) & (query >= key)


@compiles
@pytest.mark.thorough
def test_what_functions_load_does_not_spill() -> None:
    x, ids = np.zeros((1, 2, 256, 128), np.float16), np.zeros((1, 256), np.int32)
    for form, more in (
        (Form(128, mask=earlier, arrays=(0, 1)), (np.zeros((1, 1, 2, 7), np.int32), ids)),
        (Form(128, score=alibi, arrays=(1, 0)), (np.zeros(2, np.float32),)),
    ):
        made = kernel(fitting(form, True, False, 256, 256, 2), form)
        assert made.inspect("gate", x, x, x, *more, x, scale=0.1, diagonal=0, group=1) == ()


@compiles
@pytest.mark.thorough
def test_distances_of_positions_are_converted_once_per_lane() -> None:
    x, form = np.zeros((1, 2, 256, 128), np.float16), Form(128, score=alibi, arrays=(1, 0))
    made = kernel(fitting(form, True, False, 256, 256, 2), form)
    sass = made.inspect("sass", x, x, x, np.zeros(2, np.float32), x, scale=0.1, diagonal=0, group=1)
    assert sass.count("I2FP") < 32  # a lane has 64 elements of a block


# ---- derivatives
@numpipe.function
def wild(score, batch, head, query, key, table):
    """A docstring."""
    x = score * 0.5 + table[0]
    for _ in range(2):
        x += np.sin(x) / (2.0 + x * x)
    if head > 0:
        x = np.maximum(x, 0.1 * x) ** 3
    y = np.exp2(-abs(x)) - np.abs(x) % 3.0
    return np.where(query >= key, y, 2.0 * score) + np.sqrt(1.0 + np.square(x)) - np.floor(x)


@numpipe.function
def unknown(score, batch, head, query, key):
    return np.arctan(score)


@numpipe.function
def peak(score, batch, head, query, key):
    return score - score.max(1)


@pytest.mark.parametrize("of", [wild, functions.soft_cap, functions.alibi, functions.relative])
@pytest.mark.parametrize("head", [0, 1])
def test_a_derivative_is_that_of_small_differences(of: Any, head: int) -> None:
    x = np.random.default_rng(0).standard_normal((6, 5))
    places = 0, head, *np.ogrid[:6, :5]
    tables = {wild: [x[0]], functions.relative: [np.zeros((2, 6, 5)), np.arange(600.0)]}
    arrays = tables.get(of, [] if of is functions.soft_cap else [x[0]])
    ahead, behind = (of.function(x + step, *places, *arrays) for step in (1e-6, -1e-6))
    found = derivative(of)(x, *places, *arrays)
    np.testing.assert_allclose(found + 0 * x, (ahead - behind) / 2e-6, rtol=1e-4, atol=1e-6)


@numpipe.function
def rounded(score, batch, head, query, key):
    return 0.5 * score.astype(np.float16).astype(np.float32)


def test_the_derivative_of_a_converted_score_is_converted() -> None:
    assert derivative(rounded)(np.ones((6, 5), np.float32), 0, 0, 0, 0) == 0.5


@pytest.mark.parametrize(
    ("of", "operation"), [(unknown, r"np.arctan\(score\)"), (peak, r"score.max\(1\)")]
)
def test_an_operation_without_a_rule_is_named_with_a_fix(of: Any, operation: str) -> None:
    with pytest.raises(
        numpipe.SpecError,
        match=rf"test_attention_functions.py:\d+: score {of.__name__}: the derivative of "
        rf"'{operation}' is not known; fix: pass score_gradient=",
    ):
        derivative(of)


# ---- refusals
@numpipe.function
def a_mask(score, batch, head, query, key):
    return query >= key


@numpipe.function
def never(batch, head, query, key):
    return query < 0


@pytest.mark.parametrize(
    "named, words",
    [
        ({"score": a_mask}, "a score function must return a float32 tile of its first .*; fix:"),
        ({"score": lambda s: s}, "score must be a numpipe.function, or a tuple of one and its"),
        (
            {"mask": functions.documents},
            r"mask documents\(batch, head, query, key, ids\) is called",
        ),
        ({"mask": (functions.documents, np.zeros((1, 50), np.int32))}, "index 50 along dimension"),
        ({"mask": never}, "mask never leaves no key for any query; fix: return True where"),
        ({"mask": functions.causal, "causal": True}, "causal=True and a mask; fix: leave causal"),
        ({"score": (functions.alibi, 3.0)}, "'score_0' .*: a float is not an array"),
        ({"score": (functions.alibi, *[np.ones(2)] * 4)}, "score: a function takes up to 3 arrays"),
        (
            {"dropout": 0.1},
            "dropout=0.1 needs a seed, an int32 array of one element .*; fix: seed=",
        ),
        ({"dropout": 1.1}, r"dropout must be a number of 0…1, got 1.1"),
    ],
)
def test_what_does_not_fit_is_refused(named: Any, words: str) -> None:
    q = np.ones((1, 2, 72, 64), np.float16)
    with pytest.raises(numpipe.errors.NumpipeError, match=words):
        attention(q, q, q, target="sim", **named)
