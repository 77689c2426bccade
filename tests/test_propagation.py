"""Type inference that looks again at what has changed only: the types are those that Numba finds, in fewer looks."""

from __future__ import annotations

import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from kernels_for_tests import SMALL, gemm
from numba.cuda import types as kinds
from numba.cuda.core import errors, ir, typeinfer

from numpipe.core.numba import hopper, propagation, quicker

ARRAY = ArrayType((512, 512), np.float16)
NAMES = {name for _, name, _ in propagation.replacements}


def numbas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quicker, "replacements", tuple(each for each in quicker.replacements if each[1] not in NAMES))


def typed(compiled: Callable[[], object]) -> tuple[list[tuple[str, dict[str, str]]], int]:
    """Of each function that is compiled: (its name, the types of its variables). And how many calls were resolved for it."""
    found: list[tuple[str, dict[str, str]]] = []
    resolved = []

    def tell(self: Any, state: Any) -> bool:
        kinds = {name: re.sub(r"[#@]\d+", "", str(kind)) for name, kind in state.typemap.items()}
        found.append((state.func_ir.func_id.func_qualname, kinds))
        return False

    resolve = typeinfer.CallConstraint.resolve

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        resolved.append(self)
        return resolve(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper._Tell, "run_pass", tell)
        patch.setattr(typeinfer.CallConstraint, "resolve", counted)
        compiled()
    return found, len(resolved)


def test_the_types_of_a_kernel_are_numbas_with_half_of_the_calls_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> object:
        return numpipe.Kernel(gemm().function, gemm().options).compiled(ARRAY, ARRAY, cfg=SMALL)

    compiled()  # what is compiled once in a process
    ours, looks = typed(compiled)
    numbas(monkeypatch)
    theirs, more = typed(compiled)
    assert ours == theirs and len(ours) > 10
    assert looks < 0.7 * more


def changing(out: Any, n: Any) -> None:
    """What `y` is of is known when `x`, which is of it, has got another type."""
    x = 0
    for _ in range(n):
        y = x * 2
        x = y + 0.5
        out[0] = y


def test_what_is_of_a_variable_whose_type_changes_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> object:
        return hopper.compile_kernel(changing, (kinds.float64[:], kinds.int32), threads=32)

    ours, _ = typed(compiled)
    (_, found), = ours
    assert {kind for name, kind in found.items() if name.startswith("y")} == {"float64"}
    numbas(monkeypatch)
    assert typed(compiled)[0] == ours


class Constraint:
    """Reads a variable, and does something."""

    def __init__(self, line: int, reads: str, does: Callable[[], object]) -> None:
        self.loc, self.reads, self.does = ir.Loc("kernel.py", line), reads, does

    def __call__(self, typeinferer: Any) -> None:
        typeinferer.typevars[self.reads]
        self.does()


@pytest.fixture
def inferer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What constraints are told of."""
    monkeypatch.setattr(typeinfer.TypeVarMap, "__getitem__", propagation.variable)
    made = types.SimpleNamespace(warnings=errors.WarningsFixer(errors.NumbaWarning), typevars=typeinfer.TypeVarMap())
    made.typevars.set_context(None)
    return made


def network(*constraints: Constraint) -> Any:
    made = typeinfer.ConstraintNetwork()
    for each in constraints:
        made.append(each)
    return made


def test_a_constraint_runs_again_when_it_failed_or_what_it_read_changed(inferer: Any) -> None:
    ran: list[str] = []

    def fails() -> None:
        ran.append("fails")
        raise errors.TypingError("no")

    made = network(*(Constraint(line, name, lambda name=name: ran.append(name)) for line, name in enumerate("xy")),
                   Constraint(3, "y", fails))
    for expected in (["x", "y", "fails"], ["fails"]):
        failed, = propagation.propagate(made, inferer)
        assert ran == expected and isinstance(failed, errors.TypingError) and "kernel.py" in str(failed)
        ran.clear()
    inferer.typevars["x"].type = kinds.int32
    propagation.propagate(made, inferer)
    assert ran == ["x", "fails"]


def test_a_call_of_a_function_that_is_not_typed_yet_runs_each_time(inferer: Any) -> None:
    ran: list[int] = []
    made = network(Constraint(1, "f", lambda: ran.append(1)))
    inferer.typevars["f"].type = kinds.RecursiveCall.__new__(kinds.RecursiveCall)
    for _ in range(3):
        assert propagation.propagate(made, inferer) == []
    assert len(ran) == 3


def test_a_function_that_is_compiled_on_the_way_reads_for_itself(inferer: Any) -> None:
    ran: list[str] = []
    inner = network(Constraint(7, "y", lambda: ran.append("inner")))
    made = network(Constraint(1, "x", lambda: (ran.append("outer"), propagation.propagate(inner, inferer), inferer.typevars["z"])))
    propagation.propagate(made, inferer)
    inferer.typevars["y"].type = kinds.int32
    ran.clear()
    propagation.propagate(made, inferer)
    assert ran == []
    inferer.typevars["z"].type = kinds.int32  # read behind the other function
    propagation.propagate(made, inferer)
    assert ran == ["outer", "inner"]


def test_a_constraint_that_changes_what_it_has_read_runs_again(inferer: Any) -> None:
    ran: list[int] = []

    def change() -> None:
        ran.append(1)
        dict.get(inferer.typevars, "x").type = kinds.int32  # type: ignore[union-attr]

    made = network(Constraint(1, "x", change))
    for _ in range(3):
        propagation.propagate(made, inferer)
    assert len(ran) == 2


def test_warnings_have_the_line_of_their_constraint(inferer: Any) -> None:
    def warn(kind: type[Warning]) -> Callable[[], object]:
        return lambda: warnings.warn("told", kind, stacklevel=1)

    made = network(Constraint(5, "x", warn(errors.NumbaWarning)), Constraint(6, "x", warn(DeprecationWarning)))
    with pytest.warns(DeprecationWarning, match="told"):
        assert propagation.propagate(made, inferer) == []
    assert dict(inferer.warnings._warnings) == {("kernel.py", 5, errors.NumbaWarning): {"told"}}
