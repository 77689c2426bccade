"""numpipe.explain of an op: which kernels a call launches, and which operands it copies first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ops
from numpipe.kernels import noted_calls

F16 = np.float16


def told(op: Any, *args: Any, **named: Any) -> numpipe.model.OpExplanation:
    found = numpipe.explain(op, *args, compiled=False, **named)
    assert isinstance(found, numpipe.model.OpExplanation)
    return found


def kernels(found: numpipe.model.OpExplanation) -> list[str]:
    return [kernel.kernel for kernel in found.kernels]


def test_a_product_of_operands_that_tma_can_address_is_one_kernel() -> None:
    a, b, bias = (ArrayType(shape, F16) for shape in ((200, 128), (128, 64), (64,)))
    found = told(ops.matmul, a, b, bias=bias, activation="relu")
    assert kernels(found) == ["matmul"] and found.copied == ()
    [kernel] = found.kernels
    assert (
        kernel.flop >= 2 * 200 * 128 * 64
        and kernel.stored == {"c": 200 * 64 * 2}
        and "bias" in kernel.loaded
    )
    assert found.predicted_seconds == kernel.predicted_seconds and str(kernel) in str(found)
    assert found.nbytes == 2 * (200 * 128 + 128 * 64 + 64 + 200 * 64)
    assert found.operations == 2 * 200 * 128 * 64


def test_an_operand_whose_rows_tma_cannot_address_is_copied_first_and_reported() -> None:
    odd = np.zeros((129, 77), F16)
    found = told(ops.matmul, ArrayType((200, 129), F16), odd)
    assert kernels(found) == ["copy_lanes", "matmul"]
    assert [why.split(",")[0] for why in found.copied] == [
        "'a'",
        "'b'",
    ] and "strides (154, 2) bytes, is copied" in found.copied[1]
    assert found.predicted_seconds > found.kernels[-1].predicted_seconds
    assert "op matmul: 2 kernels" in str(found) and found.copied[0] in str(found)
    assert found.as_dict()["kernels"][1]["kernel"] == "matmul"


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "window, copied",
    [
        (lambda x: x[:, 8:136], 0),
        (lambda x: x[:, 1:129], 1),
        (lambda x: x.T[8:136], 0),
        (lambda x: x[::-1, 8:136], 1),
    ],
    ids=["aligned", "one off", "transposed", "backwards"],
)
def test_strides_and_the_place_of_a_numpy_array_count(window: Any, copied: int) -> None:
    memory = np.zeros(256 * 256 + 64, F16)
    first = -memory.__array_interface__["data"][0] % 128 // 2
    a = window(memory[first : first + 256 * 256].reshape(256, 256))
    assert len(told(ops.matmul, a, ArrayType((a.shape[1], 64), F16)).copied) == copied


@pytest.mark.thorough
def test_attention_and_copies_are_explained_too() -> None:
    q = ArrayType((1, 2, 70, 60), F16)
    found = told(ops.attention, q, q, q)
    assert [why[:3] for why in found.copied] == ["'q'", "'k'", "'v'"] and kernels(found)[
        -1
    ] == "attend"
    assert kernels(told(ops.copy, np.zeros((100, 60), np.float32).T)) == ["copy_turned"]


def test_nothing_is_launched_and_no_notes_are_left() -> None:
    out = np.full((64, 64), 7, F16)
    told(ops.matmul, np.ones((64, 64), F16), np.ones((64, 64), F16), out=out)
    assert (out == 7).all() and noted_calls.taken() is None
    with pytest.raises(SpecError, match="K = 64 in 'a'"):
        told(ops.matmul, ArrayType((64, 64), F16), ArrayType((65, 64), F16))
    assert noted_calls.taken() is None
    assert (ops.matmul(np.ones((64, 64), F16), np.ones((64, 64), F16), target="sim") == 64).all()


def test_neither_a_kernel_nor_an_op_is_refused_and_so_is_a_target() -> None:
    with pytest.raises(
        SpecError,
        match="target= is for calls that run, and explain runs nothing; fix: leave it out",
    ):
        told(ops.copy, ArrayType((64, 64), F16), target="sim")
    with pytest.raises(SpecError, match="a kernel, as @numpipe.kernel makes it"):
        numpipe.explain(np.exp, ArrayType((64, 64), F16))
