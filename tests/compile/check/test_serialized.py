"""Products that ptxas serializes are errors that name the product and the user's line, and
registers of tiles are added up before."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, SerializedWgmma, SpecError, ds
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import advisories, register_budget
from numpipe.compile.check.register_budget import LiveTile, Products
from tests.kernels.compilers import compiles

F16, F32 = ArrayType((64, 512), np.float16), ArrayType((256, 160), np.float32)
LOSS = (
    "ptxas info    : ({}) Potential Performance Loss: wgmma.mma_async instructions are serialized "
    "due to {}"
)
STAGE = "between start and end of the pipeline stage in the function 'k' in line 0"
LINES = {  # as ptxas of CUDA 13 writes them
    "C7509": "the presence of Extern calls in the function 'k' in line 14",
    "C7510": (
        "wgmma pipeline crossing function boundary at a function call in the function 'k' in line "
        "14"
    ),
    "C7511": (
        "insufficient register resources for the wgmma pipeline in the function 'k' in line 503"
    ),
    "C7512": "insufficient register resources for the function 'k'",
    "C7513": f"non wgmma instructions defining input registers of a wgmma {STAGE}",
    "C7514": f"non wgmma instructions reading accumulator registers of  a wgmma {STAGE}",
    "C7515": f"non wgmma instructions defining accumulator registers of a wgmma {STAGE}",
    "C7516": "ill formed pipeline stage in the function 'k'",
    "C7518": (
        "program dependence on compiler-inserted WG.DP in divergent path in the function 'k' in "
        "line 16"
    ),
    "C7519": (
        "program dependence on compiler-inserted WG.AR in divergent path in the function 'k' in "
        "line 12"
    ),
}
REMARKS = (
    "\nptxas info    : (C7517) wgmma.wait_group is injected in around line 12 by compiler to allow "
    "use of registers in function 'k'\n"
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine "
    "register count at entry.\n"
    "ptxas info    : Used 168 registers, used 16 barriers"
)


@pytest.mark.parametrize("code", LINES)
def test_a_note_has_our_name(code: str) -> None:
    (found,) = advisories.advisories_of(
        f"{REMARKS}\n{LOSS.format(code, LINES[code])}\n{LOSS.format(code, LINES[code])}\n", HOPPER
    )
    assert found is advisories.ADVISORIES[code]


def test_only_notes_of_serialized_products_are_errors_and_an_unknown_note_is_quoted() -> None:
    assert (
        advisories.advisories_of(REMARKS, HOPPER) == []
        and LINES.keys() == advisories.ADVISORIES.keys()
    )
    (found,) = advisories.advisories_of(
        LOSS.format("C7599", "the weather in the function 'k' in line 3"), HOPPER
    )
    assert (found.code, found.name, found.means) == ("C7599", "serialized", "the weather")


# ---- detected in ptxas's log, not in the source ----------------------------------------------
@numpipe.function
def times(acc, a, b):
    return numpipe.wgmma(acc, a, b)


def products_of_a_function(a, c):
    """Use 80 of 104 registers for accumulators of products in two functions, neither of which knows
    the other's."""
    left, right = numpipe.zeros((64, 80), np.float32), numpipe.zeros((64, 80), np.float32)
    for (_,), (x, y) in numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((80, 64), lambda k: (0, k))),
    )(a, a):
        left = times(left, x, y.T)
        right = times(right, x, y.T)
    c[ds(0, 64), ds(0, 80)] = left
    c[ds(0, 64), ds(80, 80)] = right


def an_operand_of_a_body(a, c):
    """Pass P as an argument to the body, which returns it for the next step.

    It is one variable, half of which is in the body.
    """

    def body(indices, x, carry):
        acc, p = carry
        s = numpipe.wgmma(None, x, x.T)
        acc = numpipe.wgmma(acc, p, x)
        s = numpipe.wgmma_wait(s)
        p = np.exp(s).astype(a.dtype)
        return numpipe.wgmma_wait(acc), p

    def compute(pipeline):
        acc, _ = pipeline(
            (
                numpipe.zeros((64, 64), np.float32),
                numpipe.full((64, 64), 0.0, np.float32).astype(a.dtype),
            )
        )
        c[ds(0, 64), ds(0, 64)] = acc

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(a.shape[1] // 64,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
        num_compute_wgs=1,
        wg_axis="wg",
        compute_context=compute,
    )(a)


def line_of(function: Any, text: str) -> str:
    """Return ``file:line`` of the line of a function that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    number = next(n for n, line in enumerate(lines, first) if text in line)
    return f"{function.__code__.co_filename}:{number}"


@pytest.mark.variants(1)
@compiles
@pytest.mark.parametrize(
    "function, wgs, place, said",
    [
        (products_of_a_function, 4, "return numpipe.wgmma(", r"register-pressure \(C7512\)"),
        (an_operand_of_a_body, 1, "p = np.exp(s)", r"operand-redefined \(C7513\)"),
    ],
)
def test_a_note_is_an_error_at_a_line_of_the_kernel(
    function: Any, wgs: int, place: str, said: str
) -> None:
    kernel = numpipe.kernel(num_compute_wgs=wgs, wg_axis="wg", memory_registers=40)(function)
    with pytest.raises(
        SerializedWgmma, match=rf"kernel {function.__name__}: ptxas serializes wgmma, {said}: "
    ) as caught:
        kernel.compiled(F16, F32)
    assert str(caught.value).startswith(
        f"{line_of(times.function if 'return' in place else function, place)}: "
    )


def steps_that_end_with_products(a, c):
    """Wait at the beginning of a step for the products of the step before."""
    part = numpipe.zeros((64, 64), np.float32)
    left = numpipe.zeros((64, 64), np.float32)
    for (_,), (x,) in numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        max_concurrent_steps=3,
        delay_release=1,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)),),
    )(a):
        part = numpipe.wgmma_wait(part)
        numpipe.atomic_add(c.at[ds(0, 64), ds(0, 64)], part)
        left = numpipe.wgmma(left, x, x.T)
        part = numpipe.wgmma(None, x, x)
    left, part = numpipe.wgmma_wait((left, part))
    c[ds(0, 64), ds(64, 64)] = left + part


@compiles
def test_accumulators_that_may_be_read_in_flight_are_named_with_the_statement_that_reads_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The note is ours: the releases of ptxas differ in when they write it."""
    kernel = numpipe.kernel(num_compute_wgs=1)(steps_that_end_with_products)
    notes = [advisories.ADVISORIES["C7514"]]
    monkeypatch.setattr(advisories, "advisories_of", lambda *_: notes)
    with pytest.raises(SerializedWgmma, match=r"accumulator-read \(C7514\)") as caught:
        kernel.compiled(F16, F32)
    text, early, late = str(caught.value), "part = numpipe.wgmma_wait(part)", "left, part = "
    assert text.startswith(f"{line_of(steps_that_end_with_products, early)}: ")
    assert "this wait ends, left, part = numpipe.wgmma_wait((left, part))" in text
    for name, reads in (("left", late), ("part", early)):
        place = re.escape(f"{line_of(steps_that_end_with_products, reads)}: `{reads}")
        assert re.search(rf"  32  {name}: accumulator, .*, line \d+, read at {place}", text)

    # the wait of the fix names both
    fix = re.search(r"this wait ends, (.*?);", text)
    assert fix is not None
    source = inspect.getsource(steps_that_end_with_products).replace(early, fix[1])
    path = tmp_path / "fixed_steps.py"
    path.write_text(
        f"import numpy as np\nimport numpipe\nfrom numpipe import BlockSpec, ds\n{source}"
    )
    fixed = runpy.run_path(str(path))[steps_that_end_with_products.__name__]
    with pytest.raises(SerializedWgmma, match="accumulator-read") as caught:
        numpipe.kernel(num_compute_wgs=1)(fixed).compiled(F16, F32)
    assert "this wait" not in str(caught.value)


def tiles_of_steps(delay: int, known: bool) -> Any:
    """Compute a plain product for two tiles in turn.

    The number of steps is known at compile time, or follows from an array's shape.
    """

    def two_tiles(a, b, c):
        steps = 2 if known else numpipe.cdiv(a.shape[1], 16)
        for t in range(2):
            acc = numpipe.zeros((64, 16), np.float32)
            specs = BlockSpec((64, 16), lambda i: (t, i)), BlockSpec((16, 16), lambda i: (t, i))
            for (i,), (x, y) in numpipe.pipeline(
                grid=(steps,), max_concurrent_steps=2, delay_release=delay, in_specs=specs
            )(a, b):
                acc = numpipe.wgmma(acc, x, y.T)
            c[ds(t * 64, 64), ds(0, 16)] = acc

    return numpipe.kernel(two_tiles)


@pytest.mark.thorough
@compiles
def test_the_fixes_of_an_accumulator_that_ptxas_takes_for_redefined() -> None:
    """Two tiles with a number of steps known at compile time: a kernel found by the fuzzer, and the
    fixes in its error."""
    with pytest.raises(
        SerializedWgmma,
        match=r"accumulator-redefined \(C7515\).*use delay_release=0 or take the number",
    ):
        tiles_of_steps(1, known=True).compiled(F16, F16, F32)
    for delay, known in ((0, True), (1, False)):
        assert tiles_of_steps(delay, known).inspect("gate", F16, F16, F32) == ()


# ---- operands redefined in flight, detected in the source ------------------------------------
def operands(a, c):
    """Redefine operands in flight: names that end in `_wrong` are packed while a product reads
    them."""
    acc, e = numpipe.zeros((64, 8), np.float32), c[ds(0, 64), ds(0, 16)]
    once_wrong = copied_wrong = either_wrong = at_the_end_wrong = e.astype(a.dtype)
    waited = older = swapped = front = back = top = once_wrong
    for (k,), (x,) in numpipe.pipeline(
        grid=(a.shape[1] // 8,), in_specs=(BlockSpec((16, 8), lambda k: (0, k)),)
    )(a):
        if k > 1:
            top = (e * 1.0).astype(a.dtype)  # the step's end has waited
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, front, x), 1)
        front, back = back, (e * 1.5).astype(a.dtype)  # for the step after the next one
        acc = numpipe.wgmma_wait(acc)

        acc = numpipe.wgmma(acc, once_wrong, x)
        once_wrong = (e * 2.0).astype(a.dtype)
        acc = numpipe.wgmma_wait(acc)

        acc = numpipe.wgmma(acc, copied_wrong, x)
        new = (e * 3.0).astype(a.dtype)
        acc = numpipe.wgmma_wait(acc)
        copied_wrong = new

        acc = numpipe.wgmma(acc, waited, x)
        acc = numpipe.wgmma_wait(acc)
        waited = (e * 4.0).astype(a.dtype)

        acc = numpipe.wgmma(acc, older, x)
        other = numpipe.wgmma(None, waited, x)
        acc = numpipe.wgmma_wait(acc)  # the newer product stays in flight
        older = (e * 5.0).astype(a.dtype)
        other = numpipe.wgmma_wait(other)

        acc = numpipe.wgmma(acc, swapped, x)
        swapped, kept = waited, (e * 6.0).astype(a.dtype)
        acc = numpipe.wgmma_wait(acc)
        acc = numpipe.wgmma(acc, kept, x)
        acc = numpipe.wgmma(acc, (e * 7.0).astype(a.dtype), x)  # not loop-carried: other registers
        acc = numpipe.wgmma_wait(acc) + other

        acc = numpipe.wgmma(acc, either_wrong, x)
        if k > 2:
            other = numpipe.wgmma(other, waited, x)
        acc = numpipe.wgmma_wait(acc, 1)  # covers the older product only if there is a newer one
        either_wrong = (e * 7.5).astype(a.dtype)
        acc, other = numpipe.wgmma_wait(acc), numpipe.wgmma_wait(other)

        sometimes_wrong = (e * 8.0).astype(a.dtype)
        for i in range(k):
            acc = numpipe.wgmma(acc, sometimes_wrong, x)
            if i > 2:
                acc = numpipe.wgmma_wait(acc)
            sometimes_wrong = (e * float(i)).astype(a.dtype)
            acc = numpipe.wgmma_wait(acc)

        acc = numpipe.wgmma(acc, top, x)
        acc = numpipe.wgmma(acc, at_the_end_wrong, x)
        at_the_end_wrong = np.exp(e).astype(a.dtype)  # the step's end waits, later
    c[ds(0, 64), ds(0, 8)] = acc


@pytest.mark.thorough
@compiles
def test_operands_that_are_packed_in_flight_are_found_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Products] = []

    def found(unit: Any, lifted: Any, one: Products) -> SpecError:
        seen.append(one)
        return SpecError("stop here")

    monkeypatch.setattr(advisories, "redefined", found)
    with pytest.raises(SpecError, match="stop here"):
        numpipe.kernel(operands).compiled(F16, F32)
    assert {name for name, *_ in seen[0].redefined} == {
        "once_wrong",
        "copied_wrong",
        "either_wrong",
        "sometimes_wrong",
        "at_the_end_wrong",
    }
    assert all(made.line > product.line for _, made, product in seen[0].redefined)


# ---- registers, before compiling -------------------------------------------------------------
@pytest.mark.parametrize(
    "limit, products, beside, fits",
    [
        (160, (40, 64, 20), 8, True),
        (160, (48, 64, 24), 8, False),
        (160, (64, 32, 32), 8, True),
        (160, (72, 32, 36), 6, False),
        (240, (88, 64, 44), 6, True),
        (240, (40, 128, 20), 6, True),
        (232, (100, 100), 0, True),
        (232, (104, 104), 0, False),
        (256, (112, 112), 0, True),
        (256, (116, 116), 0, False),
        (104, (36, 36), 0, True),
        (104, (40, 40), 0, False),
        (232, (128,), 96, True),
        (232, (128,), 104, False),
    ],
)
def test_accepted_kernels_fit_and_serialized_or_spilled_ones_do_not(
    limit: int, products: tuple[int, ...], beside: int, fits: bool
) -> None:
    """Each row was compiled: attention's scores, sums and P, accumulators of GEMMs, and a tile that
    is kept through a loop."""
    held = [
        LiveTile(f"t{n}", "float32 (64, 8)", "accumulator", count, None)
        for n, count in enumerate(products)
    ]
    assert (
        register_budget.excess(limit, [*held, LiveTile("v", "float32 (64,)", "", beside, None)])
        == ""
    ) is fits


def held_through_a_loop(a, c, *, cfg: numpipe.Static):
    """Keep `cfg` columns through a loop, in addition to accumulators of 96 registers."""
    beside, early = c[ds(0, 64), ds(0, cfg)], np.exp(c[ds(0, 64), ds(0, 32)])
    acc, vector = numpipe.zeros((64, 128), np.float32), c[0, ds(0, 64)]
    mask, ones = numpipe.iota((64, 128), 1) < 3, numpipe.full((64, 128), 1.0, np.float32)
    for (k,), (x, y) in numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((128, 64), lambda k: (0, k))),
    )(a, a):
        temporary = early * 2.0
        s = numpipe.wgmma(None, x, x.T)
        acc = numpipe.wgmma(acc, x, y.T)
        unused = numpipe.wgmma(None, x, x.T)  # noqa: F841
        s = np.exp(numpipe.wgmma_wait(s))
        if k == 1:
            early = temporary + s.sum()
        acc = numpipe.wgmma_wait(acc) * 2.0
    c[ds(0, 64), ds(0, cfg)] = beside
    c[ds(0, 64), ds(256, 32)] = early + vector[:, None]
    c[ds(0, 64), ds(320, 128)] = np.where(mask, acc, ones)


@compiles
def test_tiles_are_counted_where_they_are_live_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulators and loop-carried tiles count; tiles made from constants, and others of the
    loop's body, do not."""
    seen: list[Products] = []

    def found(unit: Any, lifted: Any, one: Products) -> None:
        seen.append(one)
        raise SpecError("stop here")

    monkeypatch.setattr(register_budget, "check", found)
    with pytest.raises(SpecError, match="stop here"):
        numpipe.kernel(held_through_a_loop).compiled(F16, F32, cfg=256)
    held, where = seen[0].widest
    assert {(part.name, part.role, part.registers) for part in held} == {
        ("acc", "accumulator", 64),
        ("s", "accumulator", 32),
        ("unused", "accumulator", 32),
        ("beside", "", 128),
        ("early", "", 16),
        ("vector", "", 2),
    }
    assert where is not None and f"{where.filename}:{where.line}" == line_of(
        held_through_a_loop, "unused = "
    )
    assert len(seen[0].products) == 3 and not seen[0].from_registers
    assert register_budget.excess(
        282, held
    ) == "" and "tiles hold 274 registers per lane" in register_budget.excess(281, held)
