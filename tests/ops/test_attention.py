"""numpipe.ops.attention, simulated: every kind against float64, in any schedule, with any strides
and depths; and its machine code."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flash_attention
import numpipe
from numpipe.launch.array_info import ArrayInfo
from numpipe.ops import attention, operands
from numpipe.ops.attention import CONFIGS, FITTING, SMALLER, WIDTHS, Config, Form, choose, kernel
from tests.kernels.attention_cases import CASES, Case
from tests.kernels.compilers import compiles

# the package's attribute of this name is the function
OP = importlib.import_module("numpipe.ops.attention")
SMALL, ALONE = Config(64), Config(64, 1, alone=True)


def test_the_example_prints_the_error_of_every_config_that_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["flash_attention.py", "--target", "sim", "--shape", "1,2/1,72,64", "--causal"]
    )
    monkeypatch.setitem(FITTING, (64, True), FITTING[64, True][1:])
    flash_attention.main()
    rows = re.findall(r"^ *1,2/1,72,64  (.*\S) +(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == list(FITTING[64, True]) and all(
        1e-3 < float(error) < 4e-3 for _, error in rows
    )


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", CASES)
def test_attention_matches_float64(name: str) -> None:
    case = CASES[name]
    assert case.wrong(*case.run("sim", SMALL)) == ""


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "change, names",
    [
        ({"lazy": True}, ["peaked", "rows that see nothing"]),
        ({"wgs": 3, "keys": 80, "turns": False, "dynamic": False}, ["causal"]),
        ({"early": 32, "mixed": True}, ["causal"]),
    ],
    ids=str,
)
def test_the_options_of_a_config_give_the_same(change: dict[str, Any], names: list[str]) -> None:
    for case in map(CASES.__getitem__, names):
        assert case.wrong(*case.run("sim", replace(SMALL, **change)), more=1.3) == ""


def test_sums_are_rescaled_rarely_where_that_is_asked_for() -> None:
    exact, lazy = (
        CASES["ragged"].run("sim", replace(SMALL, lazy=not exact))[0] for exact in (True, False)
    )
    assert (exact != lazy).any()  # P is rounded at another power of two


def test_the_mask_is_what_makes_it_causal() -> None:
    case = CASES["causal"]
    assert replace(case, causal=False).wrong(*case.run("sim", SMALL)).startswith("relative error")
    assert replace(case, diagonal=1).wrong(*case.run("sim", SMALL)).startswith("relative error")


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "cfg, case, schedules",
    [
        (SMALL, Case(1, 2, 1, 72, 72, causal=True), 10),
        (replace(SMALL, wgs=1, slots=1, lazy=True, turns=False), Case(keys=136), 6),
    ],
)
def test_no_schedule_finds_a_race(cfg: Config, case: Case, schedules: int) -> None:
    found = verified(cfg, case, schedules)
    assert found.ok and found.schedules == schedules, str(found)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "cfg",
    [
        SMALL,
        replace(SMALL, lazy=True),
        replace(SMALL, wgs=3, slots=1, keys=80, dynamic=False, turns=False),
    ],
    ids=str,
)
def test_forty_schedules_find_no_race(cfg: Config, name: str) -> None:
    found = verified(cfg, CASES[name], 40)
    assert found.ok and found.schedules == 40, str(found)


def verified(cfg: Config, case: Case, schedules: int) -> numpipe.Verification:
    form = Form(case.depth, case.causal, case.layout)
    arrays = [case.laid(x) for x in case.arrays()]
    return numpipe.verify(
        kernel(cfg, form),
        *arrays,
        np.zeros_like(arrays[0]),
        scale=0.2,
        diagonal=case.diagonal,
        group=1,
        schedules=schedules,
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (
            dict.fromkeys("qkv", (1, 2, 64, 264)),
            r"depth of a head must be 1…256, 'q' \(1, 2, 64, 264\) has 264; fix: use more heads of "
            r"fewer",
        ),
        (
            {"q": (1, 2, 64)},
            r"'q' must have the dimensions batch i j depth, got shape \(1, 2, 64\)",
        ),
        ({"v": (1, 2, 72, 64)}, r"l = 64 in 'k' .*, 72 in 'v' \(1, 2, 72, 64\)"),
        (
            {"k": (1, 2, 64, 128), "v": (1, 2, 64, 128)},
            "depth = 64 in 'q' .*, 128 in 'k' ",
        ),
        ({"q": (1, 3, 64, 64)}, "the 3 heads of 'q' must be a multiple of the 2 heads of 'k'"),
        ({"layout": "sbhd"}, "layout must be 'bhsd' or 'bshd', got 'sbhd'"),
        ({"scale": -1.0}, "scale must be a finite number > 0 or None, got -1.0"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    shapes = {name: change.get(name, (1, 2, 64, 64)) for name in "qkv"}
    named = {name: value for name, value in change.items() if name not in shapes}
    with pytest.raises(numpipe.SpecError, match=words):
        attention(
            *(np.zeros(shape, np.float16) for shape in shapes.values()), target="sim", **named
        )


def test_heads_take_turns_in_groups_that_stay_in_l2_and_leave_no_rest() -> None:
    assert OP._turns(64, 1, 4 * 4096 * 128) == 16  # 2 MB each
    assert OP._turns(96, 4, 4 * 4001 * 128) == 48  # of 64 that would fit
    assert OP._turns(7, 1, 1 << 40) == 1


def test_a_config_is_chosen_by_depth_mask_and_accuracy() -> None:
    for (depth, causal), names in FITTING.items():
        exact, lazy = (choose(depth, causal, exact) for exact in (True, False))
        assert (exact.lazy, lazy.lazy) == (False, True) and {exact, lazy} <= {
            CONFIGS[name] for name in names
        }
    smaller = {name for pairs in SMALLER.values() for pair in pairs for name in pair}
    assert {name for names in FITTING.values() for name in names} | smaller == set(CONFIGS)


@pytest.mark.parametrize(
    "rows, queries, heads",
    [(64, 64, 8), (64, 500, 4), (128, 128, 256), (128, 200, 256), (192, 4096, 64)],
)
def test_short_lengths_take_tiles_of_fewer_rows(rows: int, queries: int, heads: int) -> None:
    """With 192 rows, a head of 200 queries has two tiles, the second nearly empty.

    Four heads of 500 queries have 12 tiles for 132 SMs.
    """
    for exact in (True, False):
        assert choose(64, False, exact, queries, queries, heads).rows == rows
    assert (
        choose(64, queries=500, keys=500, heads=16, sms=16).rows
        > choose(64, queries=500, keys=500, heads=16, sms=1000).rows
    )


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", CASES)
def test_a_warpgroup_alone_gives_the_same(name: str) -> None:
    case = CASES[name]
    assert case.wrong(*case.run("sim", ALONE)) == ""


def test_no_schedule_finds_a_race_in_warpgroups_alone() -> None:
    found = verified(ALONE, Case(1, 2, 1, 72, 136, causal=True), 4)
    assert found.ok and found.schedules == 4, str(found)


@pytest.mark.variants(3)
@pytest.mark.parametrize("depth", [7, 40, 96, 1, 136, 192, 200])
def test_any_depth_is_computed_with_zeros_and_stored_exactly(depth: int) -> None:
    case = Case(1, 2, 1, 40, 72, depth, layout="bshd" if depth == 96 else "bhsd")
    assert case.wrong(*case.run("sim", replace(SMALL, wgs=1, turns=False))) == ""


# ---- arrays of any strides
def on_gpu(shape: tuple[int, ...], strides: tuple[int, ...], at: int = 1 << 20) -> ArrayInfo:
    """Return the description of a float16 array on a GPU; strides in elements."""
    return ArrayInfo(
        "cuda", at, shape, tuple(2 * n for n in strides), np.dtype(np.float16), 0, True, object()
    )


@pytest.mark.parametrize(
    "info, reason",
    [
        (on_gpu((2, 4, 100, 64), (4 * 6400, 6400, 64, 1)), ""),
        # one of three, and heads, of a packed projection
        (on_gpu((2, 4, 100, 64), (100 * 768, 64, 768, 1)), ""),
        (on_gpu((2, 4, 100, 60), (4 * 6400, 6400, 64, 1)), ""),
        (on_gpu((2, 4, 100, 60), (4 * 6000, 6000, 60, 1)), "its rows are 120 bytes apart"),
        (on_gpu((2, 4, 100, 64), (4 * 6400, 6400, 1, 100)), "its last dimension is not contiguous"),
        # TMA supports it, the kernel does not
        (on_gpu((2, 4, 100, 64), (1, 2, 8, 800)), "its last dimension is not contiguous"),
        (
            on_gpu((2, 4, 100, 64), (4 * 6400, 6400, 64, 1), at=1 << 20 | 2),
            "its data starts at an address that is 2 bytes past",
        ),
        (on_gpu((2, 4, 100, 64), (0, 6400, 64, 1)), "its rows are 0 bytes apart"),
        (on_gpu((2, 4, 100, 64), (4 * 6400, 6400, -64, 1)), "its rows are -128 bytes apart"),
        (on_gpu((2, 4, 0, 64), (0, 0, 64, 1)), ""),
    ],
)
def test_an_operand_that_the_kernel_cannot_load_is_copied_once_and_reported(
    info: ArrayInfo,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = on_gpu((8, 100, 64), (6400, 64, 1))
    monkeypatch.setattr(operands, "copied", lambda *_: copy)
    monkeypatch.setenv("NUMPIPE_LOG", "launch")
    found = operands._loaded("k", info, {})
    told = capsys.readouterr().err
    assert (found is info, told == "") == (not reason, not reason) and reason in told
    if reason:
        assert (
            told.startswith(f"numpipe launch: attention: 'k', float16 {info.shape}, strides ")
            and "is copied: " in told
        )
        assert (found.shape, found.strides) == (info.shape, (2 * 4 * 6400, 2 * 6400, 128, 2))


def test_heads_that_are_repeated_are_one_head_that_all_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch's ``expand`` makes such heads with strides of 0, which TMA cannot address."""
    case = Case(1, 4, 1, 40, 72)
    q, k, v = case.arrays()
    shown: list[ArrayInfo] = []
    monkeypatch.setattr(operands, "_loaded", lambda _name, info, *_: shown.append(info) or info)
    repeated = [np.broadcast_to(x, (1, 4, 72, 64)) for x in (k, v)]
    np.testing.assert_array_equal(
        attention(q, *repeated, target="sim"), attention(q, k, v, target="sim")
    )
    assert [info.shape[1] for info in shown] == [4, 1, 1] * 2


@pytest.mark.parametrize(
    "arrays, words",
    [
        (
            [np.zeros((1, 1, 8, 64), np.float16)] * 2 + [np.zeros((1, 1, 8, 64), np.float32)],
            r"attention: 'v' is float32, expected float16 or bfloat16; fix: convert it",
        ),
        (
            [np.zeros((1, 1, 8, 64), np.float16)] * 3 + [np.zeros((1, 1, 8, 32), np.float16)],
            r"attention: 'out' must be float16 \(1, 1, 8, 64\), got float16 \(1, 1, 8, 32\)",
        ),
        (
            [np.zeros((1, 1, 8, 64), np.int32)] * 3,
            "attention: 'q' is int32, expected float16 or bfloat16",
        ),
        ([np.zeros((1, 1, 8, 64), np.complex64)] * 3, "complex64.* is not supported"),
    ],
)
def test_other_types_and_outputs_are_refused_in_the_words_of_the_op(
    arrays: list[np.ndarray], words: str
) -> None:
    with pytest.raises(numpipe.SpecError, match=words):
        attention(*arrays[:3], out=arrays[3] if arrays[3:] else None, target="sim")


def test_an_array_on_the_host_and_one_on_a_gpu_are_refused() -> None:
    host = np.zeros((1, 1, 8, 64), np.float16)
    with pytest.raises(
        numpipe.SpecError,
        match="argument 'k' of kernel 'attention': .* on GPU 0, but argument 'q' is on the host",
    ):
        attention(host, on_gpu((1, 1, 8, 64), (512, 512, 64, 1)), host)


# ---- the machine code
def check_code(cfg: Config, form: Form, dtype: str) -> None:
    """Check that the code is clean, and that the wait for the scores leaves the product with V in
    flight."""
    case = Case(1, 2, 2, 256, 256, form.depth, dtype)
    arrays = [*case.arrays(), case.arrays()[0], *[np.zeros((1, 2, 256), np.float32)] * form.sums]
    made, numbers = kernel(cfg, form), {"scale": 1.0, "diagonal": 0, "group": 1}
    assert made.inspect("gate", *arrays, **numbers) == ()
    sass = made.inspect("sass", *arrays, **numbers)
    products = (form.depth + cfg.keys) // 16 if cfg.alone else (2 * form.depth + 3 * cfg.keys) // 16
    assert len(re.findall(r"HGMMA\.64x", sass)) == products  # scores in two branches, P V in three
    # no wait beyond those of the source, which the build gate checks
    assert cfg.alone or "WARPGROUP.DEPBAR.LE gsb0, 0x1" in sass


@compiles
@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "depth, name", [(depth, pair[0]) for depth, pairs in SMALLER.items() for pair in pairs]
)
def test_a_config_of_fewer_rows_passes_the_build_gate(depth: int, name: str, causal: bool) -> None:
    check_code(CONFIGS[name], Form(depth, causal), "float16")


@compiles
@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("width", [width for width in WIDTHS if width not in SMALLER])
def test_widths_between_pass_the_build_gate(width: int, exact: bool, causal: bool) -> None:
    check_code(choose(width, causal, exact), Form(width, causal), "bfloat16")


@compiles
@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, names in FITTING.items() for name in names], ids=str
)
def test_every_config_passes_the_build_gate(
    kind: tuple[int, bool], name: str, sums: bool, layout: str, dtype: str
) -> None:
    check_code(CONFIGS[name], Form(*kind, layout, sums), dtype)
