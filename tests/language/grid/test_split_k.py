"""Tiles split along K: the work of each CTA, reproducible bits of the sums, and broken hand-overs,
which are detected."""

from __future__ import annotations

import contextvars
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import (
    ArrayType,
    BlockSpec,
    CompileError,
    PipelineDeadlock,
    PipelineRace,
    SimulationError,
    SpecError,
    Workspace,
    cdiv,
    ds,
)
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import gate
from numpipe.language.grid import partials, split_k
from tests.kernels.compilers import compiles
from tests.kernels.split_cases import BF16, integers
from tests.kernels.split_kernels import Config, split_product

SPLIT = {None: Config(split=None), 1: Config(split=1), 3: Config(split=3), "stream": Config()}
PING_PONG = {split: replace(SPLIT[split], schedule="pingpong", wgs=2) for split in (3, "stream")}
T16 = ArrayType((512, 512), np.float16)


# ---- assignment of parts
def parts(
    tiles: int, steps: int, ctas: int, split: int | str
) -> Iterator[tuple[int, int, split_k.Part]]:
    """Return (CTA, tile, part) of all CTAs, each CTA's in order."""
    begin, place = (
        (split_k.begin_stream, split_k.place_stream)
        if split == "stream"
        else (split_k.begin_split, split_k.place_split)
    )
    for cta in range(ctas):
        own = np.int32(cta), np.int32(ctas)
        begun = begin(
            np.int32(tiles), np.int32(steps), np.int32(0 if split == "stream" else split), *own
        )
        for u in range(int(begun[0])):
            tile, part = place(np.int32(u), begun, *own)
            yield cta, int(tile), split_k.Part(*map(int, part))


@pytest.mark.parametrize("split", ["stream", 1, 2, 3, 8])
def test_every_step_of_every_tile_is_computed_once_and_owners_wait_for_smaller_ctas(
    split: int | str,
) -> None:
    def check() -> None:
        for tiles, steps, ctas in itertools.product(
            (1, 2, 5, 7, 12, 13), (0, 1, 2, 7, 64), (1, 2, 5, 6, 13)
        ):
            done: dict[int, list[tuple[int, split_k.Part]]] = {}
            by_slot: dict[int, tuple[int, int]] = {}
            for cta, tile, part in parts(tiles, steps, ctas, split):
                done.setdefault(tile, []).append((cta, part))
                if part.begin > 0:
                    assert part.slot not in by_slot
                    by_slot[part.slot] = cta, tile
            assert sorted(done) == list(range(tiles))
            for tile, own in done.items():
                covered = Counter(
                    step for _, part in own for step in range(part.begin, part.begin + part.steps)
                )
                assert covered == Counter(range(steps))
                [(owner, first)] = [(cta, part) for cta, part in own if part.begin == 0]
                others = (
                    [by_slot[first.slot - 1 - i] for i in range(first.others)]
                    if len(own) > 1
                    else []
                )
                assert len(others) == len(own) - 1 and all(
                    cta < owner and of == tile for cta, of in others
                )
                begins = {cta: part.begin for cta, part in own}
                # added in their order
                assert [begins[cta] for cta, _ in others] == sorted(
                    begins[cta] for cta, _ in others
                )

    contextvars.copy_context().run(check)


def test_stream_k_shares_the_steps_out_evenly_and_leaves_whole_waves_whole() -> None:
    def check() -> None:
        for tiles, ctas, whole in ((3, 8, 0), (12, 8, 0), (19, 8, 8), (16, 8, 16)):
            found = list(parts(tiles, 64, ctas, "stream"))
            shares = Counter({cta: 0 for cta in range(ctas)})
            for cta, _, part in found:
                shares[cta] += part.steps
            assert max(shares.values()) - min(shares.values()) <= 1
            assert (
                sum(
                    part.steps == 64 and part.begin == 0 and tile >= tiles - whole
                    for _, tile, part in found
                )
                == whole
            )

    contextvars.copy_context().run(check)


# ---- right and reproducible
@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "cfg", [*SPLIT.values(), *PING_PONG.values(), Config(tm=128, wgs=2, split=2)], ids=str
)
def test_split_products_are_products(cfg: Config) -> None:
    for ctas, (m, n, k), dtype in (
        (1, (128, 192, 320), np.float16),
        (2, (200, 136, 72), BF16),
        (5, (64, 64, 512), np.float16),
        (6, (320, 192, 200), np.float16),
        (3, (64, 8, 0), BF16),
    ):
        a, b, exact = integers(m, n, k, dtype)
        c = split_product(cfg, ctas).simulate(a, b)
        np.testing.assert_array_equal(c.astype(np.float64), exact.astype(np.float64))


def test_the_parts_may_be_a_run_time_value() -> None:
    @numpipe.kernel(grid=numpipe.persistent(5), workspace=Workspace((64, 64), 5))
    def product_in_parts(a, b, c, work, *, parts):
        for m, n, part in numpipe.split_tiles(
            cdiv(a.shape[0], 64), cdiv(b.shape[0], 64), steps=cdiv(a.shape[1], 64), split=parts
        ):
            acc = numpipe.zeros((64, 64), np.float32)
            pipe = numpipe.pipeline(
                grid=(part.steps,),
                max_concurrent_steps=2,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (m, part.begin + k)),
                    BlockSpec((64, 64), lambda k: (n, part.begin + k)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                acc = numpipe.wgmma(acc, a_tile, b_tile.T)
            acc = numpipe.combine(acc, part, work)
            if part.begin == 0:
                c[ds(m * 64, 64), ds(n * 64, 64)] = acc

    a, b, exact = integers(128, 64, 320)
    for parts in (1, 2, 4, 100):
        c = np.zeros((128, 64), np.float32)
        product_in_parts.simulate(a, b, c, parts=parts)
        np.testing.assert_array_equal(c, exact)
    with pytest.raises(SpecError, match="split=0"):
        product_in_parts.simulate(a, b, np.zeros((128, 64), np.float32), parts=0)


@pytest.mark.parametrize("split", [2, "stream"])
def test_the_tuned_product_cut_along_k(split: int | str) -> None:
    """The CTA that owns a tile runs the epilogue: nothing is added twice."""
    cfg = gemm_tuned.Config(128, 64, slots=2, panels=1, split=split)
    a, b, exact = integers(200, 72, 328)
    c, bias = np.ones((200, 72), np.float16), np.arange(72).astype(np.float16)
    found = gemm_tuned.matmul(
        a, b, c, alpha=0.5, bias=bias, activation="relu", cfg=cfg, target="sim"
    )
    np.testing.assert_array_equal(
        found, np.maximum(0.5 * exact + 1 + np.arange(72), 0).astype(np.float16)
    )


@pytest.mark.parametrize("cfg", [SPLIT[3], SPLIT["stream"], PING_PONG["stream"]], ids=str)
def test_sums_are_the_same_bits_in_any_schedule(cfg: Config) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((128, 448), np.float32).astype(BF16)
    b = rng.standard_normal((64, 448), np.float32).astype(BF16)
    kernel = split_product(cfg, 5)
    first = kernel.simulate(a, b)
    for seed in range(4):
        np.testing.assert_array_equal(
            kernel.simulate(a, b, seed=seed).view(np.uint16), first.view(np.uint16)
        )


@pytest.mark.parametrize(
    "cfg",
    [
        SPLIT["stream"],
        pytest.param(SPLIT[3], marks=pytest.mark.soak),
        pytest.param(PING_PONG["stream"], marks=pytest.mark.soak),
        pytest.param(PING_PONG[3], marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_no_schedule_has_a_report(cfg: Config) -> None:
    a, b, _ = integers(128, 64, 320)
    assert (result := numpipe.verify(split_product(cfg, 3), a, b, schedules=12)), str(result)


# ---- broken hand-overs
def changed(monkeypatch: pytest.MonkeyPatch, line: str, number: int = 0, to: str = "pass") -> None:
    """Replace a line of `partials.combined`: the one that contains `line`, or the next one."""
    source = inspect.getsource(partials.combined.function).splitlines()[1:]
    where = [i for i, text in enumerate(source) if line in text][number]
    source[where] = source[where][: len(source[where]) - len(source[where].lstrip())] + to
    ns = dict(vars(partials))
    exec("\n".join(source), ns)
    monkeypatch.setattr(partials, "combined", ns["combined"])


BROKEN: dict[str, tuple[str, int, type[SimulationError], str]] = {
    "not written": ("write_partial(", 0, SimulationError, "uninitialised-read"),
    "signalled by a lane that knows of its own stores only": (
        "meet()",
        0,
        PipelineRace,
        "cta-conflict",
    ),
    "not signalled": ("signal, work, part.slot", 0, PipelineDeadlock, "deadlock"),
    "not awaited": ("await_signals", 0, PipelineRace, "cta-conflict"),
    "read by warps that have seen nothing": ("meet()", 1, PipelineRace, "cta-conflict"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("seed", [None, 0])
def test_a_hand_over_without_one_of_its_steps_is_reported(
    name: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, number, error, hazard = BROKEN[name]
    a, b, _ = integers(64, 64, 128)
    split_product(Config(split=2), 2).simulate(a, b, seed=seed)
    changed(monkeypatch, line, number)
    with pytest.raises(error) as caught:
        split_product(Config(split=2), 2).simulate(a, b, seed=seed)
    assert caught.value.report.hazard == hazard and "split_kernels.py" in str(caught.value)


def test_the_flag_of_another_part_orders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = integers(64, 64, 192)
    changed(monkeypatch, "await_signals", to="await_signals(work, last, sub(part.others, 1))")
    with pytest.raises(
        PipelineRace, match=r"load \(work\) reads work.*which CTA \(1, 0, 0\) writes"
    ) as caught:
        split_product(Config(split=3), 3).simulate(a, b)
    assert caught.value.report.hazard == "cta-conflict"


def test_a_sum_that_is_not_added_is_a_wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, exact = integers(64, 64, 128)
    changed(monkeypatch, "add_partials")
    assert (split_product(Config(split=2), 2).simulate(a, b).astype(np.float64) != exact).any()


def hand_written(
    body: Callable[..., Any],
    ctas: int = 2,
    slots: int | None = None,
    tile: tuple[int, int] = (64, 64),
) -> Any:
    """Return a kernel with a workspace over one tile of 4 steps."""
    return numpipe.kernel(
        body,
        out_type=lambda a: ArrayType((64, 64), np.float32),
        grid=numpipe.persistent(ctas),
        workspace=Workspace(tile, slots=slots),
    )


def ones() -> np.ndarray:
    return np.ones((64, 64), np.float32)


def test_flags_that_are_left_set_are_reported() -> None:
    def forgets(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split=2):
            acc = numpipe.zeros((64, 64), np.float32) + 1.0
            if part.begin > 0:
                acc = numpipe.combine(acc, part, work)
            else:
                c[ds(m * 64, 64), ds(n * 64, 64)] = acc

    with pytest.raises(
        SimulationError, match=r"the flag of work\[0\], which warpgroup 0 .* is still set"
    ) as caught:
        hand_written(forgets).simulate(ones())
    assert caught.value.report.hazard == "exit-in-flight"


def test_a_part_that_another_one_has_handed_over_already_is_reported() -> None:
    def twice(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split=2):
            acc = numpipe.combine(numpipe.zeros((64, 64), np.float32) + 1.0, part, work)
            if part.begin > 0:
                acc = numpipe.combine(acc, part, work)
            else:
                c[ds(m * 64, 64), ds(n * 64, 64)] = acc

    with pytest.raises(SimulationError, match="no CTA has received that part yet"):
        hand_written(twice).simulate(ones())


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"slots": 1},
            r"slot 1, but the workspace has 1 slots: for split_tiles\(split=n\) a workspace has "
            "n slots",
        ),
        (
            {"tile": (64, 32)},
            r"a tile of 4096 elements, but the workspace has room for 2048: Workspace\(\(64, "
            r"64\), …\)",
        ),
    ],
    ids=str,
)
def test_a_workspace_that_is_too_small_is_reported(options: dict[str, Any], message: str) -> None:
    def adds(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split=3):
            acc = numpipe.combine(numpipe.zeros((64, 64), np.float32) + 1.0, part, work)
            if part.begin == 0:
                c[ds(m * 64, 64), ds(n * 64, 64)] = acc

    np.testing.assert_array_equal(
        hand_written(adds, 3).simulate(ones()), np.full((64, 64), 3, np.float32)
    )
    with pytest.raises(SimulationError, match=message) as caught:
        hand_written(adds, 3, **options).simulate(ones())
    assert caught.value.report.hazard == "out-of-bounds"


# ---- what is rejected
def refused(body: Callable[..., Any], message: str, **options: Any) -> None:
    with pytest.raises((SpecError, CompileError), match=message):
        numpipe.kernel(
            body,
            out_type=lambda a: ArrayType((64, 64), np.float32),
            grid=(1,),
            num_compute_wgs=1,
            **options,
        ).simulate(ones())


def test_loops_that_are_not_split_loops_are_refused() -> None:
    def no_steps(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1):
            pass

    def no_part(a, c, work):
        for m, n in numpipe.split_tiles(1, 1, steps=4):
            pass

    def no_integer(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, split=0):
            pass

    def unknown(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, parts=2):
            pass

    def by_table(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4, order=a):
            pass

    for body, message in (
        (no_steps, "steps= is missing"),
        (no_part, "gives 2 indices and a part"),
        (no_integer, 'split=0: "stream", or the parts of a tile'),
        (unknown, "takes the tile counts, steps="),
        (by_table, "does not support a host table"),
    ):
        refused(body, message, workspace=Workspace((64, 64)))


def test_combine_needs_a_float32_tile_and_a_workspace() -> None:
    def halves(a, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4):
            c[ds(m * 64, 64), ds(n * 64, 64)] = numpipe.combine(
                numpipe.zeros((64, 64), np.float32).astype(np.float16), part, work
            )

    def elsewhere(a, c):
        for m, n, part in numpipe.split_tiles(1, 1, steps=4):
            c[ds(m * 64, 64), ds(n * 64, 64)] = numpipe.combine(
                numpipe.zeros((64, 64), np.float32), part, a
            )

    refused(
        halves, "acc must be a float32 register tile, got float16", workspace=Workspace((64, 64))
    )
    refused(elsewhere, "work must be the kernel's workspace, its last parameter")


def test_workspaces_are_reported_correctly() -> None:
    for tile, split, slots in (
        ((64,), 2, None),
        ((64, 0), 2, None),
        ((64, 64), 0, None),
        ((64, 64), "", None),
        ((64, 64), 2, 0),
    ):
        with pytest.raises(SpecError, match="Workspace: "):
            Workspace(tile, split, slots=slots)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"the last output, which has shape \(64,\): say .* slots="):
        Workspace((64, 64), 2).array(132, (64,))
    assert [
        Workspace((64, 64), split).array(5, (3, 200, 64)).shape[0] for split in ("stream", 1, 4)
    ] == [5, 12, 48]

    def one(work):
        pass

    def two(a, work):
        pass

    with pytest.raises(SpecError, match="the only parameter is 'work'"):
        numpipe.kernel(one, workspace=Workspace((64, 64)))
    with pytest.raises(SpecError, match="workspace must be a numpipe.Workspace"):
        numpipe.kernel(two, workspace=(64, 64))
    with pytest.raises(
        SpecError, match="workspace takes b, but is called with arrays and Statics .*: a"
    ):
        numpipe.kernel(two, workspace=lambda b: Workspace((64, 64))).simulate(ones())
    with pytest.raises(
        SpecError, match=r"workspace must be a numpipe.Workspace, .*, got \(64, 64\)"
    ):
        numpipe.kernel(two, workspace=lambda a: (64, 64)).simulate(ones())
    with pytest.raises(SpecError, match=r"takes 1 arguments \(a\), got 2"):
        numpipe.kernel(two, workspace=Workspace((64, 64))).simulate(ones(), ones())


# ---- the machine code
@pytest.mark.thorough
@compiles
@pytest.mark.parametrize(
    "cfg",
    [
        Config(wgs=1),
        *[
            pytest.param(cfg, marks=pytest.mark.soak)
            for cfg in (
                Config(128, 256, 64, 3, "stream", "cooperative", 2),
                Config(128, 256, 64, 3, 4, "cooperative", 2),
                Config(128, 128, 64, 4, "stream", "pingpong", 2),
                Config(64, 256, 64, 5, "stream", "pingpong", 2),
            )
        ],
    ],
    ids=str,
)
def test_the_machine_code_passes_the_gate_and_moves_16_bytes_a_lane(cfg: Config) -> None:
    built = split_product(cfg).compiled(T16, T16)
    assert gate.findings(built) == ()
    sass = built.sass
    pieces = cfg.tm * cfg.tn // 128 // 4 // (1 if cfg.schedule == "pingpong" else cfg.wgs)
    rows = cfg.tm // (1 if cfg.schedule == "pingpong" else cfg.wgs)
    assert (
        sass.count("STG.E.128")
        == sass.count("LDG.E.128") // partials.together(built.unit, (rows, cfg.tn))
        == pieces
    )
    assert sass.count("MEMBAR.ALL.GPU") == 1
    fenced = gate.Sass(
        sass.replace("HGMMA.", "MEMBAR.ALL.GPU ;\n        /*9990*/  HGMMA.", 1), HOPPER
    )
    assert any("in a loop of products" in line for line in gate.memory_barriers(built, fenced))
    unit = replace(
        built.unit, arrays=tuple(replace(array, workspace=False) for array in built.unit.arrays)
    )
    assert any(
        "beyond the CTA: " in line
        for line in gate.memory_barriers(replace(built, unit=unit), gate.Sass(sass, HOPPER))
    )
