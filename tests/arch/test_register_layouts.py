"""Register layouts and products as records: every element is held by a lane, derived properties
agree with the assignment of elements, and code follows a changed record."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from numpipe.arch.products import WGMMA
from numpipe.arch.register_layouts import FRAGMENTS, LANES, Bits, RegisterLayout, Registers
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import gate
from numpipe.diagnostics.errors import SpecError
from numpipe.language.tiles import mma
from numpipe.language.tiles.layouts import record
from tests.kernels.element_kernels import S8, operands, product

TILES = {
    "accumulator": [(64, 8), (128, 24), (64, 256)],
    "coalesced 4": [(64, 16), (128, 64)],
    "coalesced 8": [(64, 16), (64, 192)],
    "rows 32": [(8, 128), (24, 64)],
    "rows 8": [(64, 16), (16, 48)],
    "rows 4": [(64, 8), (8, 24)],
    "row": [(24,), (1, 64)],
    "column": [(64,), (128, 1)],
    "row 32": [(128,)],
    "column 8": [(64,)],
}
CASES = [(layout, shape) for layout, shapes in TILES.items() for shape in shapes]


def differences(layout: RegisterLayout, shape: tuple[int, ...]) -> set[str]:
    """Return which properties a layout's record states wrongly: elements, copies, warps, distances,
    parts."""
    found, holders = set(), layout.holders(shape)
    sizes = [shape[-axis] if axis in layout.axes else None for axis in (0, 1)]
    every = itertools.product(*([None] if size is None else range(size) for size in sizes))
    if sorted(holders, key=str) != sorted(every, key=str):
        found.add("elements")
    lanes = [[lane for lane, _ in held] for held in holders.values()]
    if any({lane & ~layout.copies for lane in held} != {held[0]} for held in lanes) or any(
        len(held) != 1 << layout.copies.bit_count() for held in lanes
    ):
        found.add("copies")
    if len({held[0] >> 5 for held in lanes}) != layout.warps:
        found.add("warps")
    for axis in layout.axes:
        beside = {at[1 - axis]: set[int]() for at in holders}
        for at, held in holders.items():
            beside[at[1 - axis]] |= {lane & 31 for lane, _ in held if not lane & layout.copies}
        apart = {a ^ b for lanes_of in beside.values() for a in lanes_of for b in lanes_of}
        if (
            len(shape) == 2
            and 1 not in shape
            and {d for d in apart if d.bit_count() == 1} != set(layout.distances(axis))
        ):
            found.add("distances")
    if int(np.prod([part.count for part in layout.parts(shape)])) != len(holders):
        found.add("parts")
    return found


@pytest.mark.parametrize("layout, shape", CASES, ids=str)
def test_a_record_knows_who_holds_each_element(layout: str, shape: tuple[int, ...]) -> None:
    assert differences(record(shape, layout), shape) == set()


@pytest.mark.parametrize(
    "broken, told",
    [
        (replace(FRAGMENTS, lanes=((Bits(96, 8), Bits(28, 1)), (Bits(3, 2),))), "elements"),
        (replace(FRAGMENTS, registers=(*FRAGMENTS.registers[:3], Registers(1, 1, 1))), "elements"),
        (replace(FRAGMENTS, lanes=((Bits(96, 16), Bits(12, 1)), (Bits(3, 2),))), "elements"),
        (replace(FRAGMENTS, lanes=((Bits(96, 16), Bits(28, 1)), (Bits(7, 2),))), "copies"),
    ],
)
def test_a_record_that_holds_elements_twice_or_never_is_found(
    broken: RegisterLayout, told: str
) -> None:
    assert told in differences(broken, (64, 16))


def test_an_accumulator_has_the_layout_in_the_ptx_isa() -> None:
    """PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"."""
    for lane, i in itertools.product(range(LANES), range(32)):
        row = 16 * (lane // 32) + lane % 32 // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + 2 * (lane % 4) + i % 2
        assert FRAGMENTS.holders((64, 64))[row, column] == [(lane, i)] if lane < 2 else True
        own, place = FRAGMENTS.own(lane), FRAGMENTS.places((64, 64))[i]
        assert (own[0] + (place[0] or 0), own[1] + (place[1] or 0)) == (row, column)


SASS = "\n".join(
    f"        /*00{n}0*/                   {text} ;"
    for n, text in enumerate(("HGMMA.64x16x16.F32 R24, gdesc[UR4], R24", "EXIT"))
)
PTX = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {}, %rd1, %rd2, 1, 1, 1, 0, 0;"


def test_the_gate_looks_for_the_instructions_in_a_products_record() -> None:
    joined = replace(HOPPER, products=(replace(WGMMA, made="{}{}{}"),))
    renamed = replace(
        WGMMA, operands=tuple(replace(each, opcode="HMMA") for each in WGMMA.operands)
    )
    assert list(gate.tensor_cores(gate.Sass(SASS, HOPPER), PTX)) == []
    found = list(gate.tensor_cores(gate.Sass(SASS, joined), PTX))
    assert found[0].startswith("a product nobody asked for (the PTX has ['HGMMA 641616'])")
    other = replace(HOPPER, products=(renamed, WGMMA))
    assert other.opcodes == "HMMA|HGMMA|IGMMA|QGMMA" and len(gate.Sass(SASS, other).products()) == 1
    halves = SASS.replace("HGMMA.64x16x16", "HMMA.641616")
    only = replace(HOPPER, products=(replace(renamed, made="{}{}{}"),))
    assert list(gate.tensor_cores(gate.Sass(halves, only), PTX)) == []


@pytest.mark.parametrize(
    "changed, told",
    [({"rows": 192}, "M must be a multiple of 192"), ({"k_bytes": 256}, "K a multiple of 256")],
)
def test_a_product_is_refused_by_the_numbers_of_its_record(
    changed: dict[str, int], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = operands(f"{S8} x {S8}", (128, 64, 256), np.random.default_rng(1))
    given = a, b, np.zeros((128, 64), np.int32)
    product(*given, target="sim", depth=128)
    monkeypatch.setattr(mma, "WGMMA", replace(WGMMA, **changed))
    with pytest.raises(SpecError, match=told):
        product(*given, target="sim", depth=128)
