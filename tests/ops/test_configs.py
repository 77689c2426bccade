"""Configs of products: which are possible, what they compute, and how good the choice among those
that were measured is."""

from __future__ import annotations

import functools
import gzip
import importlib
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpipe
from numpipe import ops
from numpipe.compile.build import toolchain
from numpipe.compile.check import gate
from numpipe.ops import configs, costs, learned
from numpipe.ops.configs import Config, choose, space, ways_of
from tests.kernels.compilers import compiles
from tests.kernels.covering import examples
from tests.kernels.kernels_for_tests import operands, product
from tests.kernels.product_configs import KINDS

# the package's attribute of this name is the function
OP = importlib.import_module("numpipe.ops.matmul")
MEASURED = Path(__file__).parents[2] / "docs" / "results" / "product_configs_h200.jsonl.gz"
Products = dict[tuple[str, int, int, int], list[tuple[Config, float]]]
"""configs and seconds of each product, by run, M, N and K"""


# ---- which there are
def test_large_tiles_have_several_numbers_of_staging_panels() -> None:
    """Each with as many slots as fit beside them: a panel less at the same number of slots would
    win nothing."""

    def of(tm: int, tn: int, turns: bool) -> set[tuple[float, float]]:
        each = costs.ways()
        at = (
            (each.tm == tm)
            & (each.tn == tn)
            & (each.turns == turns)
            & (each.stream == 0)
            & (each.along * each.parts == 1)
        )
        return set(zip(each.panels[at], each.slots[at], strict=True))

    assert of(128, 256, False) == {(2, 4), (4, 3)}
    assert of(128, 192, True) == {(1, 5), (2, 4), (3, 4)}
    assert of(128, 128, False) == {(2, 6)}


def test_every_way_is_a_config_that_fits_an_sm() -> None:
    for way in zip(*costs.ways(), strict=True):
        config = configs._config(costs.Ways(*way), False, 64, 64)
        assert config.slots is not None and 3 <= config.slots <= replace(config, slots=None).depth
        assert config.cluster * config.across <= 8 and config.tn % (8 * config.cluster) == 0


@given(
    st.integers(1, 11000),
    st.integers(1, 2048),
    st.integers(1, 2048),
    st.sampled_from((16, 32, 64, 128)),
)
@settings(max_examples=examples(30))
def test_the_space_begins_with_the_choice_and_holds_different_configs(
    m: int, n: int, k: int, aligned: int
) -> None:
    found = space(m, 8 * n, 8 * k, aligned=aligned)
    assert len(set(found)) == len(found) == 16 and found[0] == choose(
        m, 8 * n, 8 * k, aligned=aligned
    )
    assert not any(
        config.turned for config in space(m, 8 * n, 8 * k, aligned=aligned, turned=False)
    )
    several = [
        (each.tm, each.tk, each.schedule, each.turned, each.split, each.cluster, each.across)
        for each in space(m, 8 * n, 8 * k, aligned=aligned, most=64, widths=3)
    ]
    assert max(map(several.count, several)) <= 3 < 64 == len(several)


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from((78, 114, 132)),
    st.integers(1, 9),
)
@settings(max_examples=examples(30))
def test_the_choice_is_one_that_the_product_may_have(
    m: int, n: int, k: int, sms: int, batches: int
) -> None:
    # a transpose's batches would be stored by the lanes
    assert choose(m, n, k, sms, batches).turned <= (batches == 1)
    fused = choose(m, n, k, sms, fused=True)
    assert fused.fuses and fused.strip >= 32 // fused.cluster
    assert choose(m, n, k, sms, fixed=True).split is None
    for crosswise in ((False, True), (True, False), (True, True)):
        config = choose(m, n, k, sms, crosswise=crosswise)
        assert config.tn % 32 == 0 or not crosswise[not config.turned]


def test_a_product_of_nothing_has_a_config_too() -> None:
    assert choose(0, 8, 8) == choose(8, 8, 0) == Config()


# ---- what they compute
@pytest.mark.variants(1, thorough=5)
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_every_kind_multiplies(config: Config) -> None:
    for m, n, k in ((130, 200, 328), (1, 136, 1000)):
        a, b = operands(m, n, k)
        for right in (np.ascontiguousarray(b.T), b.T):
            c = ops.matmul(a, right, config=config, target="sim")
            np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize(
    "shape",
    [(70, 200, 1200), (1, 96, 3000), (300, 520, 136), (33, 1472, 760), (400, 136, 640)],
    ids=str,
)
def test_configs_of_the_space_multiply(shape: tuple[int, int, int]) -> None:
    a, b = operands(*shape)
    for config in space(*shape)[::6]:
        c = ops.matmul(a, b.T, config=config, target="sim")
        np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


@pytest.mark.variants(0)
@pytest.mark.parametrize("config", [KINDS[7], KINDS[10]], ids=str)
def test_the_ctas_of_a_cluster_hand_over_each_for_itself_in_any_schedule(config: Config) -> None:
    a, b = operands(130, 200, 328)
    assert (result := numpipe.verify(OP.kernel(config), a, b, schedules=6)), str(result)


@pytest.mark.variants(0, thorough=3)
@compiles
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_every_kind_passes_the_build_gate(config: Config) -> None:
    array = numpipe.ArrayType((512, 512), ml_dtypes.bfloat16)
    assert gate.findings(OP.kernel(config).compiled(array, array)) == ()


@pytest.mark.variants(0, thorough=1)
@compiles
@pytest.mark.parametrize(
    "shape", [(1, 96, 11344), (377, 13712, 8152), (158, 928, 8776), (2756, 400, 6368)], ids=str
)
def test_configs_of_the_space_pass_the_build_gate(shape: tuple[int, int, int]) -> None:
    array = numpipe.ArrayType((512, 512), np.float16)
    for config in space(*shape, aligned=math.gcd(2 * shape[2], 128))[::8]:
        assert gate.findings(OP.kernel(config).compiled(array, array)) == (), config


# ---- how good the choice is
def current(config: Config) -> bool:
    """Whether one warpgroup leaves as many products in flight as now."""
    return config.wgs > 1 or config.delay == configs.delay_of(
        config.schedule == "pingpong", config.tk, config.wgs, config.depth
    )


SOME, ALL = 8, pytest.param(1, marks=pytest.mark.thorough)
"""every eighth product that was measured, and each"""


@functools.cache
def parsed(config: str) -> Config:
    """Return the config of a text."""
    return eval(config, {"Config": Config})  # type: ignore[no-any-return]


@functools.cache
def products(every: int) -> Products:
    """Return the measured configs, and seconds, of every so many of the products of each run."""
    numbers: dict[tuple[str, int, int, int], int] = {}
    found = defaultdict(list)
    with gzip.open(MEASURED, "rt", encoding="utf8") as lines:
        for row in map(json.loads, lines):
            product = row["run"], *row["shape"]
            if numbers.setdefault(product, len(numbers)) % every:
                continue
            if row["config"].startswith("Config(") and current(config := parsed(row["config"])):
                found[product].append((config, row["seconds"]))
    return found


def regret(every: int, corrects: bool = True) -> list[float]:
    """How much longer the config that is predicted to be the fastest of those that were measured
    takes than the fastest."""
    found = []
    for (_, m, n, k), rows in products(every).items():
        ways = ways_of(c for c, _ in rows)
        turned = np.array([c.turned for c, _ in rows])
        of = costs.Product(
            np.where(turned, n, m), np.where(turned, m, n), k, turned, math.gcd(2 * k, 128)
        )
        predicted = learned.corrected(ways, of) if corrects else costs.cycles(ways, of)
        found.append(rows[int(predicted.argmin())][1] / min(seconds for _, seconds in rows))
    return found


@pytest.mark.parametrize("every", [SOME, ALL])
def test_the_choice_among_measured_configs_is_near_the_fastest(every: int) -> None:
    lost, by_count = regret(every), regret(every, corrects=False)
    assert math.exp(np.log(lost).mean()) < 1.02 < 1.03 < math.exp(np.log(by_count).mean()) < 1.10
    assert max(lost) < 1.2 and sum(each > 1.1 for each in lost) < 0.01 * len(lost)


def test_rows_off_a_sector_of_the_l2_cost_more_than_rows_off_a_line() -> None:
    way = ways_of([Config(128, 192, slots=5, panels=1, schedule="pingpong")])
    of = [costs.Product(1622, 14944, 1512, False, aligned) for aligned in (16, 32, 128)]
    off, sector, line = (float(costs.cycles(way, each)[0]) for each in of)
    assert off > 1.2 * sector == 1.2 * line
    told = [learned.features(way, each, np.ones(1))[0] for each in of]
    assert len({tuple(each) for each in told}) == 3


@pytest.mark.parametrize(
    ("k", "padded", "aligned"), [(72, 72, 16), (72, 80, 32), (72, 128, 128), (96, 96, 64)]
)
def test_the_choice_is_told_where_the_operands_rows_begin(
    k: int, padded: int, aligned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr(OP, "choose", lambda *sizes: found.append(sizes[6]) or choose(*sizes))
    a, b = (np.zeros((128, padded), np.float16)[:, :k] for _ in range(2))
    ops.matmul(a, b.T, target="sim")
    assert found == [aligned]
    assert choose(128, 128, k) == choose(128, 128, k, aligned=math.gcd(2 * k, 128))


@pytest.mark.parametrize("every", [SOME, ALL])
def test_no_config_would_do_for_all(every: int) -> None:
    best: dict[Config, int] = defaultdict(int)
    for rows in products(every).values():
        best[min(rows, key=lambda row: row[1])[0]] += 1
    assert max(best.values()) < 0.1 * sum(best.values())


def test_far_from_what_was_measured_the_correction_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a number everywhere, also of a network that says anything at all."""
    far = [
        costs.Product(m, n, k, False, 128)
        for m, n, k in ((1, 8, 8), (1, 16384, 16384), (11000, 16384, 8), (10**5, 10**5, 64))
    ]
    assert all(np.isfinite(learned.corrected(costs.ways(), of)).all() for of in far)
    wild = [(1e3 * weights, bias) for weights, bias in learned._network()]
    monkeypatch.setattr(learned, "_network", lambda: wild)
    for of in far:
        with np.errstate(over="ignore"):
            factor = learned.corrected(costs.ways(), of) / costs.cycles(costs.ways(), of)
        corrections = np.log(factor)
        assert np.abs(corrections).max() == pytest.approx(learned.MOST)


@pytest.mark.parametrize("every", [SOME, ALL])
def test_the_measured_corrections_are_below_the_bound(every: int) -> None:
    for (_, m, n, k), rows in products(every).items():
        turned = np.array([c.turned for c, _ in rows])
        counted = costs.cycles(
            ways_of(c for c, _ in rows),
            costs.Product(
                np.where(turned, n, m), np.where(turned, m, n), k, turned, math.gcd(2 * k, 128)
            ),
        )
        corrections = np.log(np.array([seconds for _, seconds in rows]) * 1.7e9 / counted)
        assert np.abs(corrections).max() < learned.MOST, (m, n, k)


def test_operands_that_are_read_once_are_told_apart() -> None:
    assert (
        choose(4, 8192, 8192).once
        and choose(8192, 8, 8192).once
        and not choose(4096, 4096, 4096).once
    )


@pytest.mark.thorough
@pytest.mark.skipif(toolchain() is not None, reason="the CUDA compiler is not installed")
def test_operands_that_are_read_once_leave_the_cache_first() -> None:
    a, b = np.ones((4, 64), np.float16), np.ones((8, 64), np.float16)
    for once in (True, False):  # both operands' copies have the policy as an operand, or none has
        ptx = OP.kernel(Config(64, 8, 64, None, panels=1, wgs=1, once=once)).inspect("ptx", a, b)
        loads = [
            line
            for line in ptx.splitlines()
            if "cp.async.bulk.tensor" in line and "shared::cluster.global" in line
        ]
        assert loads and all(("cache_hint" in line) == once for line in loads)


@pytest.mark.parametrize(
    ("cluster", "ctas"), [(1, 132), (2, 132), (3, 117), (5, 110), (7, 105), (8, 120)]
)
def test_clusters_of_some_sizes_leave_sms_idle(cluster: int, ctas: int) -> None:
    of = ways_of(
        [
            Config(
                64,
                8 * cluster,
                64,
                4,
                panels=1,
                wgs=1,
                cluster=cluster,
                split="cluster" if cluster > 1 else None,
            )
        ]
    )
    assert costs.work(of, costs.Product(8192, 8192, 8192, False, 128)).slots == ctas


def test_a_config_is_the_way_that_it_was_made_of() -> None:
    every = [costs.Ways(*way) for way in zip(*costs.ways(), strict=True)][::7]
    for field, again in zip(
        zip(*every, strict=True),
        ways_of(configs._config(way, False, 64, 64) for way in every),
        strict=True,
    ):
        np.testing.assert_array_equal(field, again)


def test_products_stay_in_flight_where_a_slot_can_be_spared() -> None:
    for config in [
        each
        for sizes in ((1, 8192, 8192), (1000, 512, 3584), (2000, 3000, 4000))
        for each in space(*sizes, most=24)
    ]:
        spare = (
            config.schedule == "cooperative"
            and config.tk < 256
            and (config.wgs == 1 or config.depth >= configs.DEEP)
        )
        assert config.delay == (1 if spare else None), config


def test_the_transpose_is_computed_only_where_it_is_expected_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        configs.learned, "corrected", lambda ways, product: np.where(product.turned, 1 - gain, 1.0)
    )
    for gain, turned in ((0.005, False), (0.02, True)):
        assert space(512, 512, 512, most=1)[0].turned == turned


def test_tiles_that_run_at_once_lie_in_squares_for_the_sms_of_a_gpc() -> None:
    """Sixteen CTAs one after another have 4 x 4 tiles; of clusters every eighth is in the same
    GPC."""
    group = configs._strip
    assert group(64, 64, 1, 1, 1024, 512) == group(128, 128, 1, 1, 1024, 1024) == 4
    assert group(64, 128, 2, 1, 1024, 512) == 4 and group(64, 128, 2, 1, 512, 1024) == 2
    assert group(64, 128, 2, 2, 1024, 512) == 8  # of rows of tiles, which a cluster has two of
    assert group(128, 256, 1, 1, 8192, 8192) == 12  # many rounds: what is shared is in the L2
    assert group(128, 256, 2, 2, 8192, 8192) == 16 and group(192, 128, 2, 2, 8192, 8192) == 10
    assert group(256, 8, 1, 1, 8192, 8) == 1 and group(64, 64, 2, 1, 8192, 64) == 8
