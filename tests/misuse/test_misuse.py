"""Misused kernels: each is rejected with exactly the expected first line and underlined part, and
its fix works.

The cases are in the other files of this folder, one subject each; ``kernels/refusals.py`` documents
their format.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from tests.kernels.refusals import Case, Cases

FILES = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
MODULES = [
    importlib.import_module(f"tests.misuse.{name}")
    for name in FILES
    if name not in ("__init__", "test_misuse")
]
refused = Cases(case for module in MODULES for case in module.refused)


@pytest.mark.variants(100)
@refused.tests
def test_it_is_refused_with_the_line_and_the_mistake_in_it(case: Case, execution: str) -> None:
    case.check(execution)


@pytest.mark.variants(40)
@refused.fixed
def test_it_runs_with_the_fix_that_the_message_names(case: Case) -> None:
    case.fixed().simulate(*case.args)


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in refused
        if case.kernel.name in ("a_number_that_becomes_a_tile", "a_tile_that_becomes_a_vector")
    ],
    ids=lambda case: case.kernel.name,
)
def test_a_simulated_error_gets_a_loop_variables_type_from_a_compile(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "1")
    for _ in range(2):
        dataclasses.replace(case, texts={"simulated": case.texts["compiled"]}).check("simulated")


def test_every_kernel_of_the_table_has_a_name_of_its_own_and_many_have_a_fix() -> None:
    names = [kernel.name for kernel in {id(case.kernel): case.kernel for case in refused}.values()]
    assert len(set(names)) == len(names) >= 60
    assert sum(case.options is not None for case in refused) >= 340
