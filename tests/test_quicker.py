"""What numpipe puts in the place of parts of Numba while it compiles: the same answers, and Numba's own again afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.compile.build import toolchain

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from kernels_for_tests import SMALL, gemm
from numba.cuda.core import errors
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
    asked = {"values": 0, "_escape_string": 0, "_has_loc": 0, "pysignature": 0, "get_mangle_string": 0}

    def both(name: str) -> Any:
        def answer(*given: Any) -> Any:
            asked[name] += 1
            found, wanted = OURS[name](*given), NUMBAS[name](*given)
            assert found == wanted
            return found

        return answer

    def without(name: str) -> Any:
        def unchanged(func_ir: Any) -> Any:
            before = [list(map(str, block.body)) for block in func_ir.blocks.values()]
            after = NUMBAS[name](func_ir)
            assert [list(map(str, block.body)) for block in after.blocks.values()] == before
            return after

        return unchanged

    peepholes = ("peep_hole_delete_with_exit", "peep_hole_fuse_dict_add_updates")
    compiled_with(monkeypatch, **{name: both(name) for name in asked}, **{name: without(name) for name in peepholes})
    assert min(asked.values()) > 10


def test_the_code_is_that_of_numbas_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (plain(compiled_with(monkeypatch, **instead).inspect("ptx")) for instead in ({}, NUMBAS))
    assert ours == theirs and ours.count("wgmma.mma_async") == 4


def test_an_error_has_the_context_that_numba_gives_it() -> None:
    def told(context: Any, error: Exception) -> str:
        with pytest.raises(type(error)) as raised, context("typing of {0} at {line}", "x = {}", line=7):
            raise error
        return str(raised.value)

    for kind in (errors.TypingError, ValueError):
        ours, theirs = (told(context, kind("no")) for context in (quicker.ErrorContext, NUMBAS["new_error_context"]))
        assert ours == theirs and ("x = {} at 7" in ours) == (kind is errors.TypingError)


def test_a_code_generator_that_takes_a_place_is_told_from_one_that_does_not() -> None:
    assert OURS["_has_loc"](lambda context, builder, sig, args, loc: None)
    assert not OURS["_has_loc"](lambda context, builder, sig, args: None)
