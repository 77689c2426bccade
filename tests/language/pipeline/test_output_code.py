"""Compiled code of outputs: barriers per step, and the rules of the build gate."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kernels.compilers import compiles
from tests.kernels.kernels_for_tests import F16
from tests.kernels.output_kernels import CHECKS, Config, copy

pytestmark = compiles


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("outs, barriers", [(1, 2), (2, 1), (4, 1)])
def test_a_step_has_one_barrier_where_there_are_slots(outs: int, barriers: int) -> None:
    half = np.zeros((128, 64), F16)
    sass = copy().inspect("sass", half, half, cfg=Config(outs=outs))
    meetings = len(re.findall(r"BAR\.SYNC\S* (?:0xf|R\d+), 0x100", sass))
    assert meetings == barriers + 1  # and one after the last step


def compiled(kernel: Any, *args: Any, **statics: Any) -> None:
    assert kernel.inspect("gate", *args, **statics) == ()
    assert not re.search(r"\b(LDL|STL)\b", kernel.inspect("sass", *args, **statics))


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("name", ["copy float32", "sums", "nested", "alone, 3 slots"])
def test_it_passes_the_build_gate(name: str) -> None:
    # nothing has run, so the results are wrong
    with pytest.raises(AssertionError, match="not equal"):
        CHECKS[name](compiled)
