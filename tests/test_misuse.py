"""Misuse, in one table: each kernel is refused with exactly this first line, and exactly this is underlined.

The cases are in ``misuse_*.py``, one file a subject; ``refusals.py`` says how one is written.
"""

from __future__ import annotations

import misuse_barriers
import misuse_blocks
import misuse_bodies
import misuse_debugging
import misuse_lane
import misuse_language
import misuse_layouts
import misuse_outputs
import misuse_params
import misuse_pipelines
import misuse_primitives
import misuse_reductions
import misuse_registers
import misuse_roles
import misuse_single
import misuse_steps
import misuse_tiled
import misuse_tiles
import misuse_turns
import pytest
from refusals import Case, Cases

MODULES = (misuse_barriers, misuse_blocks, misuse_bodies, misuse_debugging, misuse_lane, misuse_language, misuse_layouts,
           misuse_outputs, misuse_params, misuse_pipelines, misuse_primitives, misuse_reductions, misuse_registers, misuse_roles,
           misuse_single, misuse_steps, misuse_tiled, misuse_tiles, misuse_turns)
refused = Cases(case for module in MODULES for case in module.refused)


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@refused.tests
def test_it_is_refused_with_the_line_and_what_is_wrong_in_it(case: Case, execution: str) -> None:
    case.check(execution)


def test_every_kernel_of_the_table_has_a_name_of_its_own() -> None:
    names = [kernel.name for kernel in {id(case.kernel): case.kernel for case in refused}.values()]
    assert len(set(names)) == len(names) >= 60
