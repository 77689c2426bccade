"""Memory kept by a compile: nothing once its kernel is dropped, except what serves other
kernels."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from numpipe.arch.targets import HOPPER
from numpipe.compile.build import front_end, toolchain
from tests.kernels.many_kernels import multiplying, printing

if toolchain() is not None:
    pytest.skip(f"no compiler: {toolchain()}", allow_module_level=True)

from numba import cuda
from numba.cuda import types
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.descriptor import cuda_target

from numpipe.core.numba import kernel_compiler, kernel_entries, numba_contexts
from numpipe.intrinsics import mbarrier
from numpipe.plan.unit import Unit

TYPES = ArrayType((64, 64), np.float16), ArrayType((64, 64), np.float32), 1.0
SCALARS = [("scale", np.dtype(np.float32))]
MIB = 0.2
"""memory that a kernel may leave behind"""


@pytest.fixture(autouse=True)
def _no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")


def typed(function: Callable[..., Any]) -> list[weakref.ref[Any]]:
    """Compile a kernel of this function to LLVM IR and drop it; return weak references to its
    parts."""
    made = numpipe.kernel(function)
    variant = made.variant(TYPES, {})
    unit = variant.unit()
    compiled, _ = front_end(unit, variant.lifted, SCALARS)
    libraries = compiled._codelibrary._linking_libraries
    return [
        weakref.ref(part)
        for part in (
            unit,
            compiled,
            compiled.dispatcher,
            *libraries,
            made,
            variant,
            variant.lifted,
            variant.lifted.compiled,
        )
    ]


def left(parts: list[weakref.ref[Any]]) -> list[Any]:
    gc.collect()
    return [part() for part in parts if part() is not None]


def table_sizes() -> list[int]:
    """Return the number of meanings, of type layouts, and of additional entries in Numba."""
    with global_compiler_lock, numba_contexts.own_contexts():
        target = cuda_target.target_context
        return [
            sum(len(known.versions) for known in target._defns.values()),
            len(target.data_model_manager._cache),
            sum(map(len, kernel_entries._tables(target))),
        ]


def test_nothing_of_a_kernel_is_left_when_it_is_dropped_and_numbas_tables_do_not_grow() -> None:
    sizes = []
    for number in range(3):
        parts = typed(multiplying(number))
        assert len(parts) > 8 and left(parts) == []
        sizes.append(table_sizes())
    assert sizes[1] == sizes[2]


def test_where_nothing_is_forgotten_a_kernel_stays_until_the_next_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed(printing(1))
    before = table_sizes()
    with monkeypatch.context() as patched:
        patched.setattr(kernel_compiler, "drop_entries", lambda: None)
        parts = typed(printing(2))
    assert sum(isinstance(part, Unit) for part in left(parts)) == 1
    assert all(now > then for now, then in zip(table_sizes(), before, strict=True))
    typed(printing(3))
    assert left(parts) == [] and table_sizes() == before


def test_a_kernel_that_was_compiled_for_its_machine_code_keeps_none_of_the_compilers_objects() -> (
    None
):
    function = printing(4)
    function.__name__ = "shown_later"
    kernel = numpipe.kernel(function)

    def units() -> int:
        gc.collect()
        return sum(type(one) is Unit and one.kernel == "shown_later" for one in gc.get_objects())

    assert kernel.inspect("resources", *TYPES).registers
    assert units() == 0
    assert kernel.inspect("ptx", *TYPES)
    assert units() == 1


def test_a_refused_kernel_leaves_nothing() -> None:
    def refused(a: Any, c: Any, scale: Any) -> None:
        numpipe.debug_print("{}", len(scale))

    def unit_of_refused() -> weakref.ref[Any]:
        variant = numpipe.kernel(refused).variant(TYPES, {})
        unit = variant.unit()
        with pytest.raises(numpipe.CompileError, match="len"):
            front_end(unit, variant.lifted, SCALARS)
        return weakref.ref(unit)

    sizes = []
    for _ in range(2):
        assert left([unit_of_refused()]) == []
        sizes.append(table_sizes())
    assert sizes[0] == sizes[1]


def test_code_shared_by_other_kernels_is_kept() -> None:
    typed(multiplying(6))
    (template,) = mbarrier.init._numba_type_.templates
    assert template._impl_cache and template._overload_cache
    entries = dict(template._impl_cache)
    typed(multiplying(7))
    assert template._impl_cache == entries


def test_a_users_own_functions_are_found_again_although_kernels_were_forgotten_between() -> None:
    @cuda.jit(device=True)
    def twice(x: Any) -> Any:
        return x + x

    @cuda.jit(device=True)
    def four_times(x: Any) -> Any:
        return twice(twice(x))

    with kernel_compiler.compiling_for(HOPPER):
        once = twice.compile_device((types.int32,))
    typed(printing(8))
    with kernel_compiler.compiling_for(HOPPER):
        again = twice.compile_device((types.int32,))
        caller = four_times.compile_device((types.int32,))
    assert again is once and once.library in caller.library._linking_libraries


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_500_kernels_that_were_compiled_and_dropped_leave_little_memory() -> None:
    """Each is compiled from a source of its own to machine code; measured from the fifth on."""
    script = Path(__file__).parents[1] / "kernels" / "dropped_kernels.py"
    ran = subprocess.run(
        [sys.executable, str(script), "505", "5"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    early, late = json.loads(ran.stdout)
    assert late - early < 500 * MIB
