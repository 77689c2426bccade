"""Bank conflicts in traces: how many ways, by access and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, BlockSpec, CompilerParams, LoweringSemantics, Trace, ds
from numpipe.sim.banks import ways

LANE = np.arange(32)


@pytest.mark.parametrize(
    "addresses, nbytes, expected",
    [
        # a row and a column of 32 x 32 float32, and of a padded square
        (4 * LANE, 4, 1),
        (128 * LANE, 4, 32),
        (132 * LANE, 4, 1),
        (0 * LANE, 4, 1),
        (4 * (LANE // 2), 4, 1),
        (2 * LANE, 2, 1),
        (64 * LANE, 2, 16),
        (8 * LANE, 4, 2),
        (8 * LANE, 8, 1),
        (256 * LANE, 8, 16),
        (16 * LANE, 16, 1),
        (128 * LANE, 16, 8),
        (128 * LANE + 16 * (LANE % 8), 16, 1),
        (128 * LANE[:4], 4, 4),
    ],
    ids=[
        "row",
        "column",
        "padded",
        "one word",
        "words of two",
        "halves",
        "a column of 16 bits",
        "every other word",
        "8 bytes",
        "a column of 8 bytes",
        "16 bytes",
        "a column of 16 bytes",
        "swizzled",
        "four lanes",
    ],
)
def test_the_ways_of_an_access(addresses: np.ndarray, nbytes: int, expected: int) -> None:
    assert ways(addresses, nbytes) == expected


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_the_ways_are_the_words_that_the_fullest_bank_gives(nbytes: int) -> None:
    """Computed independently, bank by bank."""
    rng = np.random.default_rng(nbytes)
    for _ in range(50):
        lanes = rng.integers(0, 256, 32) * nbytes
        together, worst = (32 if nbytes < 8 else 128 // nbytes), 0
        for first in range(0, 32, together):
            banks: dict[int, set[int]] = {}
            for address in map(int, lanes[first : first + together]):
                for byte in range(address, address + nbytes):
                    banks.setdefault(byte // 4 % 32, set()).add(byte // 4)
            worst = max(worst, *map(len, banks.values()))
        assert ways(lanes, nbytes) == worst


def test_atomics_of_one_word_take_turns() -> None:
    assert ways(0 * LANE, 4, atomic=True) == 32 and ways(4 * LANE, 4, atomic=True) == 1


@numpipe.kernel(compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane))
def columns(x, y, *, pitch: numpipe.Static):
    """Write the columns of a square of 32 x `pitch` float32 per warp."""
    squares = numpipe.scratch(SMEM((4 * 32 * 64,), np.float32))

    def body(indices, tile):
        lane = numpipe.lane_index()
        for n in range(8):
            value = tile[lane % 32, 0] * 1.0
            squares[lane // 32 * 2048 + lane % 32 * pitch + n] = value  # <- lanes

    numpipe.emit_pipeline_warp_specialized(
        body, grid=(1,), in_specs=(BlockSpec((64, 32), lambda k: (0, 0)),)
    )(x)


def traced(kernel: Any, *args: Any, **options: Any) -> Trace:
    trace = Trace()
    kernel.simulate(*args, trace=trace, **options)
    return trace


@pytest.fixture(autouse=True)
def _no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.kernel
def shifted(x, y):
    tile, landed = numpipe.scratch((SMEM((128, 64), np.float32), numpipe.Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 128), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    y[ds(0, 64), ds(0, 32)] = tile[ds(3, 64), ds(1, 32)]  # <-


def test_a_part_that_moves_element_by_element_is_counted_with_its_line(tmp_path: Path) -> None:
    x, y = np.ones((128, 64), np.float32), np.zeros((64, 64), np.float32)
    trace = traced(shifted, x, y)
    number = 1 + next(
        i
        for i, line in enumerate(Path(__file__).read_text(encoding="utf8").splitlines())
        if line.endswith("ds(1, 32)]  # <-")
    )
    assert {line for line, access, _ in trace.banks if access == "read tile[…]"} == {
        f"test_banks.py:{number} in shifted"
    }
    assert (
        sum(count for (_, access, _), count in trace.banks.items() if access == "read tile[…]")
        == 4 * 64 * 32 // 128
    )
    trace.save(tmp_path / "run.json")
    again = Trace.load(tmp_path / "run.json")
    assert again.banks == trace.banks and str(again.summary()) == str(trace.summary())


@pytest.mark.parametrize("pitch, expected", [(32, 32), (33, 1), (34, 2)])
def test_a_column_that_lanes_write_is_advice_where_it_conflicts(pitch: int, expected: int) -> None:
    number = 1 + next(
        i
        for i, line in enumerate(Path(__file__).read_text(encoding="utf8").splitlines())
        if "# <- lanes" in line
    )
    x = np.ones((64, 32), np.float32)
    trace = traced(columns, x, x.copy(), pitch=pitch)
    writes = {
        ways: count
        for (line, access, ways), count in trace.banks.items()
        if access.startswith("write")
    }
    assert writes == {expected: 4 * 8}
    reads = {
        ways: count
        for (line, access, ways), count in trace.banks.items()
        if access.startswith("read")
    }
    assert reads == {4: 4 * 8}, (
        "a column of 32 rows of 128 bytes, swizzled: eight rows lie in banks of their own"
    )
    said = [
        line for line in str(trace.summary()).splitlines() if line.startswith("bank conflicts: ")
    ]
    assert any(
        f"test_banks.py:{number} in body: write" in line and f": {expected} ways, 32 times" in line
        for line in said
    ) == (expected > 1)
    assert columns.simulate(x, x.copy(), pitch=pitch) is None, (
        "without a trace nothing is counted, and nothing fails"
    )
