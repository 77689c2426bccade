"""Ten kernels that needed workarounds in earlier versions, in their plain form: right when
simulated, and compiled through the build gate."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from tests.kernels import wish_kernels
from tests.kernels.compilers import compiles
from tests.kernels.wish_kernels import CASES, wrong

PAGE = Path(__file__).parents[3] / "docs" / "from_pallas.md"


@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    assert not wrong(name, "sim")


@pytest.mark.variants(0, thorough=4)
@compiles
@pytest.mark.parametrize("name", CASES)
def test_it_passes_the_build_gate(name: str) -> None:
    kernel, given = CASES[name]
    assert kernel.inspect("gate", *given(np.random.default_rng(0))[0].values()) == ()


def test_the_page_says_how_many_lines_they_take() -> None:
    source, lines = inspect.getsource(wish_kernels), []
    for name in CASES:
        body = re.search(rf"^def {name}\(.*\n((?:    .*\n)+)", source, re.M)
        assert body is not None, name
        lines.append(body[1].count("\n"))
    page = " ".join(PAGE.read_text(encoding="utf8").split())
    assert f"Each takes {min(lines)} to {max(lines)} lines." in page
