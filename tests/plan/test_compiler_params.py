"""CompilerParams: the values that each option accepts, and its effect."""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, LoweringSemantics, SpecError
from tests.kernels.division_kernels import exact, fast, quotients

A, C = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"approx_math": 1}, "approx_math must be True or False, got 1"),
        (
            {"unsafe_no_auto_barriers": None},
            "unsafe_no_auto_barriers must be True or False, got None",
        ),
        ({"drain": 1}, "drain must be True or False, got 1"),
        ({"asserts": "yes"}, "asserts must be True or False, got 'yes'"),
        (
            {"dimension_semantics": ("parallel", "arbitrary")},
            "dimension_semantics must be None or a tuple of 'parallel' and 'sequential', got "
            "('parallel', 'arbitrary')",
        ),
        (
            {"dimension_semantics": ["parallel"]},
            "dimension_semantics must be None or a tuple of 'parallel' and 'sequential', got "
            "['parallel']",
        ),
        (
            {"dimension_semantics": "parallel"},
            "dimension_semantics must be None or a tuple of 'parallel' and 'sequential', got "
            "'parallel'",
        ),
        ({"max_concurrent_steps": 0}, "max_concurrent_steps must be None or an int >= 1, got 0"),
        (
            {"max_concurrent_steps": 2.0},
            "max_concurrent_steps must be None or an int >= 1, got 2.0",
        ),
        ({"delay_release": -1}, "delay_release must be None or an int >= 0, got -1"),
        ({"profile_space": -1, "profile_dir": "x"}, "profile_space must be an int >= 0, got -1"),
        ({"profile_space": 1, "profile_dir": 1}, "profile_dir must be a string, got 1"),
        (
            {"profile_space": 64},
            "profile_space=64 needs profile_dir: the profiler must know how many events to keep "
            "and where to write them; fix: give both, or neither",
        ),
        (
            {"profile_dir": "traces"},
            "profile_dir='traces' needs profile_space: the profiler must know how many events to "
            "keep and where to write them; fix: give both, or neither",
        ),
        (
            {"lowering_semantics": "Lane"},
            "lowering_semantics must be numpipe.LoweringSemantics.Warpgroup or .Lane, got 'Lane'",
        ),
        ({"store_slots": 9}, "store_slots must be 1…8 (0: chosen), got 9"),
        (
            {"store_eviction_policy": "first"},
            "store_eviction_policy must be None, 'evict_first' or 'evict_last', got 'first'",
        ),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        CompilerParams(**options)
    assert str(caught.value) == f"CompilerParams: {message}"


def test_replace_gives_a_checked_copy() -> None:
    params = CompilerParams(delay_release=1)
    changed = params.replace(
        lowering_semantics=LoweringSemantics.Lane, profile_space=8, profile_dir="traces"
    )
    assert (changed.delay_release, changed.lowering_semantics, params.profile_space) == (
        1,
        LoweringSemantics.Lane,
        0,
    )
    with pytest.raises(SpecError, match="needs profile_dir"):
        params.replace(profile_space=8)
    with pytest.raises(
        SpecError, match="unknown option 'fast_math'; the options are approx_math, "
    ):
        params.replace(fast_math=True)


def test_the_page_lists_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compiler_params.md").read_text(encoding="utf8")
    rows = [
        (re.findall(r"`(\w+)`", names), re.findall(r"`([^`]+)`", defaults))
        for names, defaults in re.findall(r"^\| (`[^|]+) \| (`[^|]+) \| .*\|$", page, re.MULTILINE)
    ]
    listed = {
        name: default
        for names, defaults in rows
        for name, default in zip(names, defaults, strict=True)
    }
    assert listed == {
        field.name: repr(field.default).replace("'", '"')
        for field in dataclasses.fields(CompilerParams)
    }


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        CompilerParams(True)  # type: ignore[misc]


def test_they_say_which_compiler_they_are_for() -> None:
    assert CompilerParams.BACKEND == CompilerParams().BACKEND == "numpipe"


# ---- approx_math ---------------------------------------------------------------------------------
def divisions(kernel: Any) -> set[str]:
    """Return the float32 divisions in a kernel's PTX."""
    return set(
        re.findall(
            r"\bdiv\.[\w.]*f32|\brcp\.[\w.]*f32",
            kernel.inspect("ptx", A, C, np.float32(3), np.float32(7)),
        )
    )


def test_divisions_of_tiles_and_numbers_are_rounded_correctly_unless_asked_otherwise() -> None:
    assert divisions(exact) == {"div.rn.f32"}
    assert divisions(fast) == {"div.approx.f32"}


def test_a_helper_divides_as_the_kernel_that_calls_it_does() -> None:
    """`quotient` of division_kernels was compiled for the first kernel that used it, and divides
    for both."""
    for kernel, division in ((exact, "div.rn.f32"), (fast, "div.approx.f32")):
        count = kernel.inspect("ptx", A, C, np.float32(3), np.float32(7)).count(division)
        assert count == 34, (
            "32 registers of the tile, and two numbers: one in the kernel, one in the helper"
        )


@pytest.mark.thorough
def test_the_simulator_divides_exactly_in_both() -> None:
    for kernel in (exact, fast):
        c = np.zeros((64, 64), np.float32)
        kernel.simulate(A, c, np.float32(3), np.float32(7))
        np.testing.assert_array_equal(c, quotients(A, np.float32(3), np.float32(7)))


# ---- max_concurrent_steps, delay_release ---------------------------------------------------------
def asking(
    form: str, kernel: dict[str, int], pipeline: dict[str, int], block: dict[str, int]
) -> Any:
    """Return a kernel that sets its ring's options, as the pipeline and its BlockSpec do."""
    spec = (
        "BlockSpec((64, 64), lambda k: (k, "
        f"0){''.join(f', {name}={value}' for name, value in block.items())})"
    )
    options = (
        "grid=(cdiv(a.shape[0], 64),), "
        f"in_specs=({spec},){''.join(f', {name}={value}' for name, value in pipeline.items())}"
    )
    source = {
        "loop": (
            f"    for (k,), (t,) in numpipe.pipeline({options})(a):\n        c[ds(64 * k, 64), "
            "ds(0, 64)] = t[...]\n"
        ),
        "single": f"    numpipe.emit_pipeline(lambda i, t: None, {options})(a)\n",
        "body": f"    numpipe.emit_pipeline_warp_specialized(lambda i, t: None, {options})(a)\n",
    }[form]
    text = f"def k(a, c):\n{source}"
    filename = f"<{form} {kernel} {pipeline} {block}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {
        "numpipe": numpipe,
        "BlockSpec": numpipe.BlockSpec,
        "ds": numpipe.ds,
        "cdiv": numpipe.cdiv,
    }
    exec(compile(text, filename, "exec"), scope)
    return numpipe.kernel(scope["k"], compiler_params=CompilerParams(**kernel))


def rings(
    form: str, kernel: dict[str, int], pipeline: dict[str, int], block: dict[str, int]
) -> tuple[int, int]:
    """Return (slots, delay) of the compiled ring."""
    (plan,) = asking(form, kernel, pipeline, block).compiled(A, A.copy()).unit.rings.values()
    return plan.slots, plan.delay


def simulated(
    form: str, kernel: dict[str, int], pipeline: dict[str, int], block: dict[str, int]
) -> list[tuple[Any, ...]]:
    """Return the timed events of a simulated run."""
    trace, a = numpipe.Trace(), np.ones((64 * 7, 64), np.float16)
    asking(form, kernel, pipeline, block).simulate(a, np.zeros_like(a), trace=trace)
    return [(event.warpgroup, event.kind, event.start, event.end) for event in trace.events]


@pytest.mark.thorough
@pytest.mark.parametrize("form, own", [("loop", 2), ("single", 1), ("body", 2)])
def test_what_a_block_says_comes_before_its_pipeline_and_that_before_the_kernel(
    form: str, own: int
) -> None:
    assert rings(form, {}, {}, {}) == (own, 0)
    kernel = {"max_concurrent_steps": 4, "delay_release": 1}
    pipeline = {"max_concurrent_steps": 3, "delay_release": 2}
    assert rings(form, kernel, {}, {}) == (4, 1)
    assert rings(form, kernel, pipeline, {}) == (3, 2)
    said = {"buffer_count": 5, "delay_release": 3}
    assert rings(form, kernel, pipeline, said) == (5, 3)


@pytest.mark.parametrize("form", ["loop", "single", "body"])
def test_the_simulator_heeds_the_same_order(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    less = {"max_concurrent_steps": 4, "delay_release": 1}
    more = {"max_concurrent_steps": 3, "delay_release": 2}
    said = {"buffer_count": 5, "delay_release": 3}
    blocks = [
        simulated(form, {}, {}, {"buffer_count": slots, "delay_release": delay})
        for slots, delay in ((4, 1), (3, 2), (5, 3))
    ]
    assert all(a != b for a, b in itertools.combinations(blocks, 2))
    assert [
        simulated(form, less, {}, {}),
        simulated(form, less, more, {}),
        simulated(form, less, more, said),
    ] == blocks
