"""What numpipe puts in the place of parts of Numba while it compiles: the same answers, and Numba's own again afterwards."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from kernels_for_tests import SMALL, gemm
from numba.cuda.core import analysis, errors, ir
from test_watch import plain

from numpipe.core.numba import hopper, quicker

T16 = ArrayType((512, 512), np.float16)
NUMBAS: dict[str, Any] = {name: getattr(owner, name) for owner, name, _ in quicker.replacements}
OURS: dict[str, Any] = {name: value for _, name, value in quicker.replacements}


def compiled_with(monkeypatch: pytest.MonkeyPatch, **instead: Any) -> Any:
    """A product, compiled anew with these replacements in the place of numpipe's."""
    monkeypatch.setattr(quicker, "replacements", tuple((owner, name, instead.get(name, value))
                                                       for owner, name, value in quicker.replacements))
    return numpipe.Kernel(gemm().function, gemm().options).compiled(T16, T16, cfg=SMALL)


def test_numba_is_left_as_it_was() -> None:
    with hopper.compiling_for_hopper():
        assert all(getattr(owner, name) is value for owner, name, value in quicker.replacements)
    assert all(getattr(owner, name) is NUMBAS[name] for owner, name, _ in quicker.replacements)


def test_each_answer_is_numbas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"values": 0, "_escape_string": 0, "_has_loc": 0, "_rec_list_vars": 0,
             "pysignature": 0, "get_mangle_string": 0}

    def both(name: str) -> Any:
        def answer(*given: Any) -> Any:
            asked[name] += 1
            found, wanted = OURS[name](*given), NUMBAS[name](*given)
            assert found == wanted
            return found

        return answer

    def singly_assigned(lower: Any) -> None:
        NUMBAS["_find_singly_assigned_variable"](lower)
        wanted = lower._singly_assigned_vars
        OURS["_find_singly_assigned_variable"](lower)
        assert lower._singly_assigned_vars == wanted
        found.append(len(wanted))

    def without(name: str) -> Any:
        def unchanged(func_ir: Any) -> Any:
            before = [list(map(str, block.body)) for block in func_ir.blocks.values()]
            after = NUMBAS[name](func_ir)
            assert [list(map(str, block.body)) for block in after.blocks.values()] == before
            return after

        return unchanged

    found: list[int] = []
    peepholes = ("peep_hole_delete_with_exit", "peep_hole_fuse_dict_add_updates")
    compiled_with(monkeypatch, **{name: both(name) for name in asked}, **{name: without(name) for name in peepholes},
                  _find_singly_assigned_variable=singly_assigned)
    assert min(asked.values()) > 10 and len(found) > 10 and sum(found) > 300


def test_the_code_is_that_of_numbas_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (plain(compiled_with(monkeypatch, **instead).ptx) for instead in ({}, NUMBAS))
    assert ours == theirs and ours.count("wgmma.mma_async") == 4


def test_an_error_has_the_context_that_numba_gives_it() -> None:
    def told(context: Any, error: Exception) -> str:
        with pytest.raises(type(error)) as raised, context("typing of {0} at {line}", "x = {}", line=7):
            raise error
        return str(raised.value)

    for kind in (errors.TypingError, ValueError):
        ours, theirs = (told(context, kind("no")) for context in (quicker.ErrorContext, NUMBAS["new_error_context"]))
        assert ours == theirs and ("x = {} at 7" in ours) == (kind is errors.TypingError)


def test_with_debug_information_variables_are_where_numba_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    for name in ("_alloca", "_storevar"):
        monkeypatch.setattr(quicker, name, lambda *given: seen.append(given[1:]))
    lower = types.SimpleNamespace(context=types.SimpleNamespace(enable_debuginfo=True))
    quicker.alloca(lower, "x", "double", "model")
    quicker.storevar(lower, "value", "x", 1)
    assert seen == [("x", "double", "model"), ("value", "x", 1)]


def block_of(*statements: Any) -> Any:
    return types.SimpleNamespace(body=list(statements))


def test_a_variable_that_is_read_before_it_is_defined_is_used_in_its_block() -> None:
    """x = y; y = f(y, (x, 2)); return y: only the y that comes in is used, and y is not defined where it is read."""
    scope, loc = ir.Scope(None, ir.Loc("", 1)), ir.Loc("", 1)
    f, x, y = (ir.Var(scope, name, loc) for name in "fxy")
    pair = ir.Expr.build_tuple([x, y], loc)
    blocks = {0: block_of(ir.Assign(y, x, loc), ir.Assign(ir.Expr.call(f, [y, x], (), loc), y, loc)),
              4: block_of(ir.Assign(pair, x, loc), ir.Return(x, loc))}
    found, wanted = quicker.uses(blocks), analysis.compute_use_defs(blocks).usemap
    assert found == wanted == {0: {"f", "y"}, 4: {"x", "y"}}


def test_a_variable_of_two_assignments_keeps_its_place() -> None:
    """x = y; x = y; z = x in one block: z alone is assigned once, and y comes from elsewhere."""
    scope, loc = ir.Scope(None, ir.Loc("", 1)), ir.Loc("", 1)
    x, y, z = (ir.Var(scope, name, loc) for name in "xyz")
    blocks = {0: ir.Block(scope, loc)}
    blocks[0].body = [ir.Assign(y, x, loc), ir.Assign(y, x, loc), ir.Assign(x, z, loc)]
    for find in (quicker.find_singly_assigned_variable, NUMBAS["_find_singly_assigned_variable"]):
        lower = types.SimpleNamespace(blocks=blocks, func_ir=types.SimpleNamespace(
            blocks=blocks, func_id=types.SimpleNamespace(is_generator=False)))
        find(lower)
        assert lower._singly_assigned_vars == {"z"}


def test_a_code_generator_that_takes_a_place_is_told_from_one_that_does_not() -> None:
    assert OURS["_has_loc"](lambda context, builder, sig, args, loc: None)
    assert not OURS["_has_loc"](lambda context, builder, sig, args: None)
