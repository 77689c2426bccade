"""Packed 4-bit elements: their sizes, and `numpipe.unpack` in both executions."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from numpipe.arch.dtypes import BY_DTYPE, ELEMENTS, PACKED
from numpipe.arch.register_layouts import LANES
from numpipe.language.tiles.layouts import ACCUMULATOR, places, record
from numpipe.language.tiles.unpack import CHUNK, accesses, lane_start
from numpipe.plan.layout import block_layout, swizzled
from tests.kernels.compilers import compiles
from tests.kernels.packed_kernels import DTYPES, SHAPES, elements, every_byte, kernel

TYPES = [(element, dtype) for element in ("int4", "uint4") for dtype in DTYPES]
ADDRESS = 3072


@pytest.mark.parametrize("name", [*ELEMENTS, *PACKED])
def test_a_record_knows_the_bits_of_its_elements(name: str) -> None:
    record = (ELEMENTS | PACKED)[name]
    assert record.bits == int("".join(re.findall(r"\d+", name)[:1]) or 8)
    assert record.nbytes(32) == 4 * record.bits
    assert record.count(record.nbytes(96)) == 96


def test_arrays_have_no_packed_type() -> None:
    assert not set(PACKED) & set(ELEMENTS)
    assert not {record.dtype for record in PACKED.values()} & set(BY_DTYPE)


@pytest.mark.parametrize("element, dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_simulation_unpacks_what_numpy_does(
    shape: tuple[int, int], element: str, dtype: str
) -> None:
    w = every_byte(2 * shape[0], 2 * shape[1])
    out = kernel(*shape, element, dtype).simulate(w)
    assert out.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(out, elements(w, element, dtype))


# ---- the instructions, without a GPU
def evaluate(text: str, word: np.ndarray, select: np.ndarray) -> np.ndarray:
    """Return what PTX makes of $1 and $2, 32-bit words, in $0."""
    found = {"$1": word.astype(np.uint64), "$2": select.astype(np.uint64)}

    def value(name: str) -> np.ndarray:
        return found[name] if name in found else np.full_like(found["$1"], int(name, 0))

    def floats(name: str, dtype: str) -> np.ndarray:
        return value(name).astype(np.uint32)[..., None].view(DTYPES[dtype])

    for statement in text.strip("{ }").split(";"):
        name, *operands = re.split(r",?\s+", statement.strip())
        if name in ("", ".reg"):
            continue
        to, *of = operands
        if name == "shr.b32":
            found[to] = value(of[0]) >> value(of[1])
        elif name == "add.u32":
            found[to] = value(of[0]) + value(of[1])
        elif name == "mov.b32":
            found[to] = value(of[0])
        elif name == "prmt.b32":
            both = value(of[0]) | value(of[1]) << np.uint64(32)
            found[to] = sum(
                (both >> 8 * (value(of[2]) >> np.uint64(4 * n) & 7) & 255) << np.uint64(8 * n)
                for n in range(4)
            )
        elif name == "lop3.b32":
            assert of[3] == "0x6a"  # (a & b) ^ c
            found[to] = value(of[0]) & value(of[1]) ^ value(of[2])
        elif name.startswith("add.rn"):
            dtype = "bfloat16" if "bf16" in name else "float16"
            sums = floats(of[0], dtype) + floats(of[1], dtype)
            found[to] = sums.view(np.uint32)[..., 0].astype(np.uint64)
        else:
            raise AssertionError(f"no meaning of {name}")
    return found["$0"].astype(np.uint32)


@pytest.mark.parametrize("element, dtype", TYPES)
def test_the_ptx_converts_every_byte_in_every_place(element: str, dtype: str) -> None:
    w = np.random.default_rng(0).permutation(np.repeat(np.arange(256, dtype=np.uint8), 4))
    words = w.view(np.uint32)
    text, want = PACKED[element].unpack[dtype], elements(w.reshape(-1, 4), element, dtype)
    for t in range(4):
        pairs = evaluate(text, words, np.full_like(words, 0x1111 * t))
        np.testing.assert_array_equal(
            pairs[:, None].view(DTYPES[dtype]), want[:, 2 * t : 2 * t + 2]
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_each_lane_loads_the_words_of_its_elements(shape: tuple[int, int]) -> None:
    """Loads are of shared memory as TMA fills it; byte n of the block is in place n of `memory`."""
    rows, nbytes = shape
    layout = block_layout(shape, 1, np.dtype(np.uint8), "block")
    memory = {
        ADDRESS // 1024 * 1024 + swizzled(layout.offset(row, column), layout.width): (row, column)
        for row, column in itertools.product(range(rows), range(nbytes))
    }
    base, where = ADDRESS // 1024 * 1024, places((rows, 2 * nbytes), ACCUMULATOR)
    for lane in range(LANES):
        row, column = record((rows, 2 * nbytes), ACCUMULATOR).own(lane)
        seen = set()
        for access in accesses(layout):
            at = (base + lane_start(layout, lane) ^ access.xor) + access.add
            assert at % CHUNK == 0
            for word in range(access.count):
                register = access.first + 2 * word
                down, right = where[2 * register]
                found = memory[at + 4 * word + lane % 4]
                assert found == (row + down, (column + right) // 2)
                seen.add(register)
        assert seen == set(range(rows * nbytes // 128))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_rows_of_a_load_are_in_different_banks(shape: tuple[int, int]) -> None:
    """Eight lanes of different rows read 16 bytes each; rows of 16 bytes lie side by side."""
    layout = block_layout(shape, 1, np.dtype(np.uint8), "block")
    for access in accesses(layout):
        chunks = {
            ((lane_start(layout, 4 * row) ^ access.xor) + access.add) // 16 % 8 for row in range(8)
        }
        assert len(chunks) == 8


@compiles
@pytest.mark.variants(2)
@pytest.mark.parametrize("element, dtype", TYPES)
def test_a_pair_of_elements_takes_three_instructions_to_float16_and_four_to_bfloat16(
    element: str, dtype: str
) -> None:
    """64 x 256 elements are 64 pairs a lane; and as many loads as 32 elements of a row ask for."""
    w = np.zeros((64, 128), np.uint8)
    sass = kernel(64, 128, element, dtype).inspect("sass", w)
    opcodes = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z0-9_]+)[^;]*;", sass, re.M)
    assert opcodes.count("PRMT") in range(64, 72)
    assert opcodes.count("HADD2") + opcodes.count("HFMA2") in range(64, 68)
    converting = re.findall(r"LOP3\.LUT [^;]*0x6a, !PT", sass)
    assert len(converting) == 64
    assert len(re.findall(r"LDS\.128", sass)) == 16
    shifts = re.findall(r"SHF\.R\.U32\.HI \w+, RZ, 0x4,", sass)
    assert len(shifts) == (64 if dtype == "bfloat16" else 0)
