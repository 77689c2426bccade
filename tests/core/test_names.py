"""Kernels, parameters, functions and axes may have any name that Python allows; no name is
executed."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, LoweringSemantics, SpecError, cdiv, ds
from numpipe.compile.build import toolchain
from numpipe.errors import CompileError
from numpipe.launch import driver, profiles

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numba import cuda

A, C = ArrayType((64, 128), np.float16), ArrayType((64, 64), np.float32)


def entries(compiled: Any) -> list[str]:
    """Return the symbols that a launch may look up in the machine code."""
    return re.findall(r"\.visible \.entry (\S+)\(", compiled.ptx)


# ---- names in other scripts ----------------------------------------------------------------------
@numpipe.function
def größer(maß, um):
    return maß + um


@numpipe.kernel(grid=(2,), grid_names=("zeile",))
def größe(ä, 結果, µ, wert):
    """Compute 結果[z] = the sum of the blocks of ä, each plus wert; µ is passed and not read."""
    z = numpipe.axis_index("zeile")
    summe = numpipe.zeros((64, 64), np.float32)
    for (k,), (kachel,) in numpipe.pipeline(
        grid=(cdiv(ä.shape[1], 64),), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(ä):
        summe = summe + größer(kachel[...].astype(np.float32), wert)
    結果[ds(z * 64, 64), ds(0, 64)] = summe


def test_names_of_other_scripts_are_simulated_and_compiled() -> None:
    a, c = np.ones((64, 128), np.float16), np.zeros((128, 64), np.float32)
    größe(a, c, 1, np.float32(0.5), target="sim")
    assert (c == 3).all()
    compiled = größe.compiled(A, ArrayType((128, 64), np.float32), 1, np.float32(0.5))
    (entry,) = entries(compiled)
    assert (
        compiled.image.name == "größe"
        and compiled.image.entry == entry
        and entry.isascii()
        and "gr_c3_b6_c3_9fe" in entry
    )


def test_errors_say_the_names_as_they_are_written() -> None:
    with pytest.raises(SpecError, match="^argument 'ä' of kernel 'größe': "):
        größe.compiled(np.zeros((64, 128), np.complex64), C, 1, np.float32(1))


@cuda.jit(device=True)
def höhe(x):
    cuda.syncthreads()
    return x


def test_what_reaches_the_memory_role_in_a_function_of_such_a_name_is_found_at_its_line() -> None:
    @numpipe.kernel
    def außen(a, c):
        c[ds(höhe(a.shape[0]), 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    with pytest.raises(
        CompileError,
        match=r"test_names.py:\d+: kernel außen: a grid, CTA or warp barrier in 'höhe' reaches",
    ):
        außen.compiled(A, C)


# ---- names that are not identifiers ----------------------------------------------------------
def zeros(a, c):
    numpipe.debug_print("{}", 1)
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


def called(name: str, function: Callable[..., None] = zeros, **options: Any) -> Any:
    """Return a kernel of this function under another name, as decorators and factories may set
    it."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__name__ = name
    return numpipe.kernel(copy, **options)


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "name", ["gemm[64]", "gemm.f16", "tile 64×64", "2nd", "", "class", "entry", "a/../b", "x\n"]
)
def test_a_kernel_may_have_any_name(name: str) -> None:
    kernel = called(name)
    compiled = kernel.compiled(A, C)
    (entry,) = entries(compiled)
    assert (
        compiled.image.name == kernel.name == name
        and compiled.image.entry == entry
        and entry.isascii()
    )


def test_text_in_a_name_is_not_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_NAME", "is data")
    name = "f(*_):\n    pass\n__import__('os').environ.update(NUMPIPE_NAME='was executed')\ndef f"
    assert called(name).compiled(A, C).image.name == name
    assert os.environ["NUMPIPE_NAME"] == "is data"


def test_a_percent_sign_in_a_name_is_printed() -> None:
    llvm = called("50%s").inspect("llvm", A, C)
    assert "[50%%s cta (%d" in llvm and "[50%s" not in llvm


def test_a_kernel_of_another_name_is_still_the_kernel() -> None:
    """Per-lane code is in bodies; the kernel's own statements belong to the warpgroup."""

    def direct(a, c):
        c[ds(numpipe.lane_index(), 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    by_lane = CompilerParams(lowering_semantics=LoweringSemantics.Lane)
    with pytest.raises(SpecError, match="lane_index.* is per-lane code"):
        called("gemm[64]", direct, compiler_params=by_lane).compiled(A, C)


def test_a_profile_stays_in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []
    monkeypatch.setattr(
        driver,
        "get",
        lambda: types.SimpleNamespace(synchronize=lambda *_: None, peek=lambda *_: b""),
    )
    monkeypatch.setattr(profiles, "trace_of", lambda *_: types.SimpleNamespace(save=saved.append))
    image = types.SimpleNamespace(
        name="../größe", gpus=0, recording=types.SimpleNamespace(directory=str(tmp_path))
    )
    recorded = profiles.Recorded(image, 0, 0, 8)  # type: ignore[arg-type]
    recorded.launches = 1
    profiles._fetch(recorded, (1, 1, 1), 0)
    assert saved == [tmp_path / "_2e_2e_2fgr_c3_b6_c3_9fe_0.json"]


# ---- names used by the generated entry, and axes ---------------------------------------------
def test_parameters_may_be_called_as_what_the_entry_calls() -> None:
    @numpipe.kernel(compiler_params=CompilerParams(debug=True))
    def wait(memory, compute, table, maps, start, rest):
        compute[ds(start, 64), ds(table, 64)] = numpipe.zeros((64, 64), np.float32)

    assert len(entries(wait.compiled(A, C, 0, 0, 0, 0))) == 1


def test_axes_may_have_any_name() -> None:
    @numpipe.kernel(grid=(2, 2), grid_names=("Zeile 1", "größe"), wg_axis="$c3")
    def by_axes(a, c):
        rows = (
            numpipe.axis_index("Zeile 1") * 128
            + numpipe.axis_index("größe") * 64
            + numpipe.axis_index("$c3")
        )
        c[ds(rows, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    ptx = by_axes.compiled(A, C).ptx
    assert "%ctaid.x" in ptx and "%ctaid.y" in ptx and "np_axis" not in ptx


@pytest.mark.parametrize("name", ["höhe", "no such", "$24"])
def test_the_error_for_an_unknown_axis_in_a_numba_function_has_the_name_as_written(
    name: str,
) -> None:
    @cuda.jit(device=True)
    def place():
        return numpipe.axis_index(name)

    @numpipe.kernel
    def lost(a, c):
        c[ds(place(), 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    with pytest.raises(SpecError, match=re.escape(f"unknown axis {name!r}")):
        lost.compiled(A, C)
