"""wgmma of 16-bit types: every N, M, source of A and order of B, simulated and compiled."""

from __future__ import annotations

import re

import pytest

from numpipe.compile.check import gate
from tests.kernels.compilers import compiles
from tests.kernels.wgmma_kernels import COLUMNS, K, arguments, every_form, is_right

COMPILED = (56,)
"""each takes a second; the others, and those of the examples, are compiled with ``-m soak``"""


def test_every_number_of_columns_simulated() -> None:
    assert [n for n in COLUMNS if not is_right(n, target="sim")] == []


@pytest.mark.thorough
@compiles
@pytest.mark.parametrize(
    "n", [n if n in COMPILED else pytest.param(n, marks=pytest.mark.soak) for n in COLUMNS]
)
def test_a_number_of_columns_compiled(n: int) -> None:
    """Five products of M / 64 blocks and K / 16 steps, two of them with A from shared memory.

    The build gate finds nothing.
    """
    arrays, statics = arguments(n)
    built = every_form.compiled(*arrays, **statics)
    assert gate.findings(built) == ()
    kind = {"float16": "f16", "bfloat16": "bf16"}[arrays[0].dtype.name]
    text = (
        rf"wgmma\.mma_async\.sync\.aligned\.m64n{n}k16\.f32\.{kind}\.{kind} {{[^}}]*}}, "
        r"(.)[^;]*([01]), ([01]);"
    )
    made = [
        source + (a if source == "d" else "") + b for source, a, b in re.findall(text, built.ptx)
    ]
    counts = {form: made.count(form) * 16 * 64 // (K * statics["m"]) for form in made}
    # A from shared memory or registers, and which operands are transposed
    assert counts == {"d01": 1, "d00": 1, "{1": 2, "{0": 1}
