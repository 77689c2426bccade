"""Bad arguments: each is answered as `rule` requires, and the error names the function, the
argument and the value found."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.abuse.arguments import Bad, goods
from tests.abuse.rule import answered, spellings

FOLDER = Path(tempfile.mkdtemp(prefix="numpipe-abuse-"))
GOODS = goods(FOLDER)
HOST = [bad for good in GOODS for bad in good.bad()]


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")


@pytest.mark.variants(150)
@pytest.mark.parametrize("bad", HOST, ids=str)
def test_a_bad_argument_is_refused_by_function_argument_and_value(bad: Bad) -> None:
    text = answered(
        bad,
        *bad.good.name.split(),
        bad.said,
        also=(ZeroDivisionError,) if bad.good.name == "cdiv" else (),
    )
    assert any(found in text for found in spellings(bad.value)), text
