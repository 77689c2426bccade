"""The generator of whole kernels: what it draws does what NumPy does; 45 kernels always, 5,000 others with ``-m soak``."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from numpipe.compile.build import toolchain
from numpipe.tools.fuzz.case import Case, copied, wrong
from numpipe.tools.fuzz.checks import Found, compiled, replay, simulated, verified
from numpipe.tools.fuzz.drawing import draw, kernels, pipeline, product, program
from numpipe.tools.fuzz.pipeline_plans import Plan
from numpipe.tools.fuzz.pipeline_sources import case
from tests.kernels.covering import examples

AUTHORS = pipeline, product, program


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


common: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@given(case=kernels(), seed=st.integers(0, 2**16))
@settings(max_examples=examples(150), derandomize=True, phases=[Phase.generate], **common)
def test_any_kernel_computes_what_numpy_does(case: Case, seed: int) -> None:
    note(case.source(seed))
    simulated(case, seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@given(case=kernels(), seed=st.integers(0, 2**16))
@settings(max_examples=5000, print_blob=True, **common)
def test_any_of_many_kernels_computes_what_numpy_does_and_is_silent(case: Case, seed: int) -> None:
    note(case.source(seed))
    simulated(case, seed)
    verified(case, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("author", AUTHORS)
def test_kernels_are_verified_without_a_false_alarm(author: Any) -> None:
    assert [verified(author(random.Random(seed)), seed) for seed in range(10)] == [3] * 10


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason="no compiler")
@pytest.mark.parametrize("author", AUTHORS)
def test_kernels_compile_and_pass_the_build_gate(author: Any) -> None:
    assert [compiled(author(random.Random(seed)), seed) for seed in range(2)] == [1] * 2


# ---- what is drawn
WANTED = {
    "loop form", "body form", "ring by hand", "memory role", "no memory role", "each warpgroup loads", "out_specs",
    "manual barriers", "steps_of", "shared allocations", "nested", "two pipelines", "elements", "squeezed", "beyond the edges",
    "carry", "coroutine", "pingpong", "turns", "cluster", "split-K", "stream-K", "split in a cluster", "dynamic", "host table",
    "data that steers", "operand in registers", "K x N operand", "delay_release", "skipped tiles", "drain", "GMEM", "1 slots",
    "4 slots",
    *(f"{dtype} operands" for dtype in ("float16", "float32", "int8", "uint8", "ml_dtypes.bfloat16",
                                        "ml_dtypes.float8_e5m2")),
    *(f"statement {name}" for name in ("load", "compute", "reduce", "convert", "store", "cut", "cast", "scan", "shared", "branch",
                                       "loop", "pipe"))}


def test_every_feature_is_drawn_soon() -> None:
    drawn = {name for seed in range(250) for name in draw(random.Random(seed)).features}
    assert drawn >= WANTED


def test_nearly_all_kernels_differ() -> None:
    assert len({draw(random.Random(seed)).digest for seed in range(100)}) >= 98


def test_a_draw_is_the_same_each_time() -> None:
    assert draw(random.Random(7)) == draw(random.Random(7))


# ---- what is told
@pytest.mark.parametrize("author", AUTHORS)
def test_results_of_other_numbers_are_found_wrong(author: Any) -> None:
    """Nearly every kernel's result depends on what it reads: NumPy's of other numbers is not the simulated SM's."""
    found = []
    for seed in range(6):
        case = author(random.Random(seed))
        given, others = case.given(0), case.given(1)
        steers = {name: given[name] for name in ("table", "counts", "places", "trips", "order", "p") if name in given}
        after = copied(given)
        case.kernel.simulate(*after)
        found.append(wrong(case.right({**others, **steers}), dict(zip(given, after, strict=True))))
    assert sum("elements are wrong" in text for text in found) >= 4


BROKEN = '''import numpy as np
import numpipe
from numpipe import ds


@numpipe.kernel(num_compute_wgs=1)
def kernel(x, y):
    y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds({start}, 64)]
'''
ARGUMENTS = ("x", "rng.integers(0, 9, (64, 80)).astype(np.float32)"), ("y", "np.zeros((64, 64), np.float32)")


def test_a_kernel_that_is_not_what_numpy_executes_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(BROKEN.format(start=8), ARGUMENTS)
    other = Case(BROKEN.format(start=9), ARGUMENTS)
    assert simulated(case, 0) == 1
    monkeypatch.setattr(Case, "right", lambda self, given: {**given, "y": np.asarray(given["x"])[:, 9:73]})
    assert simulated(other, 0) == 1
    with pytest.raises(Found, match="wrong: y: .* elements are wrong, the first at"):
        simulated(case, 0)


def test_a_refused_kernel_is_told_so() -> None:
    with pytest.raises(Found, match="refused: ") as found:
        simulated(Case(BROKEN.format(start=8).replace("64)]", "60)]"), ARGUMENTS), 0)
    assert found.value.kind == "refused"


def test_a_race_is_a_false_alarm_or_a_bug_of_the_generator() -> None:
    """Two warpgroups that store to the same place."""
    case = Case(BROKEN.format(start=8).replace("num_compute_wgs=1", "num_compute_wgs=2"), ARGUMENTS, wgs=2)
    with pytest.raises(Found, match="false alarm: "):
        verified(case, 0)


def test_a_source_is_a_program_that_shows_the_failure_again(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    case = product(random.Random(3))
    file = tmp_path / "case.py"
    file.write_text(case.source(5))
    text = file.read_text()
    arguments = eval(text.partition("ARGUMENTS = ")[2].partition("\n)\n")[0] + "\n)")
    replay(str(file), "product", arguments, ["sim"], seed=5, ctas=case.ctas, wgs=case.wgs, cluster=case.cluster)
    assert capsys.readouterr().out == "simulated: 1 times, as it should be\nverified: 3 times, as it should be\n"


@pytest.mark.skipif(toolchain() is not None, reason="no compiler")
def test_products_that_ptxas_serialises_though_they_are_plain_are_no_find() -> None:
    """Links in a loop, of as many steps as the compile knows: C7515, and right all the same."""
    plan = Plan(delay=1, carry="tile", static=True, chain=2, extent=(2, 1, 1))
    assert compiled(case(plan, plan.grids()[0]), 0) == 1
