"""examples/exhibits: bugs of real kernels are reported in every schedule, their fixes pass in all,
and docs/exhibits shows today's reports."""

from __future__ import annotations

import make_exhibits
import pytest

HAZARDS = {
    "shared_operand": "refilled-while-read",
    "late_wait": "read-before-ready",
    "missing_wait": "read-before-ready",
    "empty_tile": "named-barrier-mismatch",
    "slow_role": "too-few-arrivals",
    "missing_fence": "unfenced-writes",
    "missed_phase": "wrong-phase",
    "early_read": "array-in-transfer",
}


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.mark.parametrize("name", make_exhibits.NAMES)
def test_every_schedule_reports_the_bug_and_none_its_fix(name: str) -> None:
    broken = make_exhibits.verified(name, fixed=False)
    assert {failure.hazard for failure in broken.failures} == {HAZARDS[name]}
    assert sum(failure.schedules for failure in broken.failures) == broken.schedules == 21
    fixed = make_exhibits.verified(name, fixed=True)
    assert fixed.ok and not fixed.warnings
    assert fixed.coverage.complete


def test_pages_show_the_reports_of_today() -> None:
    assert not make_exhibits.stale(), "python docs/make_exhibits.py"


@pytest.mark.parametrize("name", make_exhibits.NAMES)
def test_an_exhibit_is_short(name: str) -> None:
    source = (make_exhibits.SOURCES / f"{name}.py").read_text(encoding="utf8")
    assert len(source.splitlines()) <= 60
    assert HAZARDS[name] in (make_exhibits.FOLDER / "index.md").read_text(encoding="utf8")
