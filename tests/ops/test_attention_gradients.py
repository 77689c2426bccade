"""Gradients of numpipe.ops.attention, simulated: every kind against float64, in any schedule; what
is refused; and the machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.arch.dimensions import round_up
from numpipe.ops import attention_gradients
from numpipe.ops.attention import Form, attention_backward
from numpipe.ops.attention_gradients import of_keys
from tests.kernels.attention_function_cases import documents
from tests.kernels.attention_gradient_cases import CASES, Case, operands, options, run, wrong
from tests.kernels.compilers import compiles


@pytest.mark.variants(3)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_match_float64(name: str, deterministic: bool) -> None:
    assert wrong(CASES[name], run(CASES[name], "sim", deterministic)) == ""


@pytest.mark.variants(2)
@pytest.mark.parametrize("depth", [7, 200, 96, 1, 136])
def test_gradients_of_any_depth(depth: int) -> None:
    case = Case(1, 2, 1, 41, 72, depth, layout="bshd" if depth == 96 else "bhsd")
    for deterministic in (False, True):
        assert wrong(case, run(case, "sim", deterministic)) == ""


@pytest.mark.variants(2)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_gradients_of_divided_tiles_match_float64(
    depth: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tiles are whole, and CTAs have 1, 2 and 2 of the blocks of the last one."""
    monkeypatch.setattr(attention_gradients, "division", lambda *_: (3, 1, 3))
    case = Case(1, 2, 2, 310, 200, depth, causal=depth != 128)
    assert wrong(case, run(case, "sim", deterministic)) == ""


@pytest.mark.parametrize(
    "form, heads, shared, positions, wanted",
    [
        (Form(128), 6, 6, 4096, (132, 60, 2)),
        (Form(128), 64, 64, 4096, (2048, 0, 1)),  # many waves
        (Form(64), 66, 66, 384, (132, 0, 1)),
        (Form(128, True), 16, 2, 624, (0, 10, 10)),  # a part has one block, in 8 heads
        (Form(128, True), 64, 64, 4096, (2048, 0, 1)),
        (Form(256), 2, 2, 4352, (66, 2, 14)),  # in clusters of two
        (Form(128, mask=documents), 16, 2, 624, (10, 0, 1)),
    ],
)
def test_only_the_last_wave_is_divided(
    form: Form, heads: int, shared: int, positions: int, wanted: tuple[int, int, int]
) -> None:
    q, k = (np.broadcast_to(0, (1, each, positions, form.depth)) for each in (heads, shared))
    assert attention_gradients.division(form, False, q, k) == wanted


def test_each_part_of_the_gradient_is_checked() -> None:
    """The mask, the gradient of the sums, and sum(grad * o) are needed."""
    case = CASES["causal"]
    found = run(case, "sim", False)
    assert wrong(case, found) == "" and wrong(CASES["whole blocks"], [x[:, :, :128] for x in found])
    given = operands(case)
    for broken in (3, 6):
        changed = [x * 0 if k == broken else x for k, x in enumerate(given)]
        made = attention_backward(*changed, **options(case), target="sim")
        assert "of dq" in wrong(case, list(made))


def arrays(case: Case, ordered: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of `of_keys`."""
    q, k, _ = case.arrays()
    numbers = [np.zeros(q.shape[:3], np.float32) for _ in range(2)]
    # in register order, whole blocks of queries
    lines = np.prod(q.shape[:2]) * round_up(case.queries, 128) * case.depth // 32
    total = [np.zeros((lines, 32), np.float32), np.zeros(lines // 64, np.int32)][: 1 + ordered]
    read = [np.zeros(x.shape, x.dtype) for x in (q, k, k, q)]
    grads = [np.zeros(k.shape, k.dtype) for _ in range(2)]
    scalars = {"scale": 0.2, "diagonal": case.diagonal, "group": 1}
    whole, _, parts = attention_gradients.division(Form(case.depth, case.causal), ordered, q, k)
    return [*read, *numbers, *total, *grads], scalars | {"whole": whole, "parts": parts}


@pytest.mark.parametrize(
    "changed, words",
    [
        ({1: (1, 2, 72, 32)}, "depth = 64 in 'q' .*, 32 in 'k' "),
        ({3: (1, 2, 64, 64)}, r"j = 72 in 'q' .*, 64 in 'o' \(1, 2, 64, 64\)"),
        ({4: (1, 2, 64), 6: (1, 2, 64)}, r"'lse' must have the shape \(1, 2, 72\), got"),
        ({5: (1, 2, 72, 32)}, r"depth = 64 in 'q' .*, 32 in 'grad_o' \(1, 2, 72, 32\)"),
        ({6: (2, 72)}, r"'grad_lse' must have the dimensions batch m n, got shape \(2, 72\)"),
    ],
)
def test_operands_that_do_not_match_are_refused(changed: dict[int, Any], words: str) -> None:
    given = operands(Case(1, 2, 2))
    given = [np.zeros(changed.get(k, x.shape), x.dtype) for k, x in enumerate(given)]
    with pytest.raises(numpipe.SpecError, match=f"attention.*: {words}"):
        attention_backward(*given, target="sim")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_no_schedule_finds_a_race(
    depth: int, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_gradients, "division", lambda *_: (1, 1, 2))
    case = Case(queries=256, keys=200, depth=depth, causal=True)
    given, scalars = arrays(case, ordered)
    divided = attention_gradients.divides(Form(depth, True), ordered)
    made = of_keys(Form(depth, True), ordered, divided)
    found = numpipe.verify(made, *given, **scalars, schedules=4)
    assert found.ok and found.schedules == 4, str(found)


@compiles
@pytest.mark.variants(0, thorough=4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("depth", [64, 128, 256])
@pytest.mark.parametrize("divided", [False, True])
def test_kernels_pass_the_build_gate(
    divided: bool, depth: int, ordered: bool, causal: bool
) -> None:
    case = Case(queries=256, keys=256, depth=depth, dtype="bfloat16")
    given, scalars = arrays(case, ordered)
    form = Form(depth, causal)
    made = of_keys(form, ordered, divided and attention_gradients.divides(form, ordered))
    notes = made.inspect("gate", *given, **scalars)
    # the storing role of depth 256 spills two of its 24 registers
    assert not notes or ((depth, ordered) == (256, True) and "16 bytes of spills" in notes[0])
