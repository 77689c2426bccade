"""numpipe.model.product: a closed form of the counts of numpipe.explain."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gemm_tuned
import numpipe
from gemm_tuned import Config
from numpipe import ArrayType, SpecError
from numpipe.model import H200, product
from numpipe.orders import Column, Grouped
from numpipe.tools.model import explaining, product_time
from tests.kernels import split_kernels

BF16 = np.dtype(ml_dtypes.bfloat16)

FEW = dataclasses.replace(H200, sms=5)
CASES = {
    "cooperative": Config(128, 64, slots=3, panels=1, group=2),
    "ping-pong": Config(64, 64, slots=3, schedule="pingpong", panels=1, group=2),
    "one slot in turns": Config(64, 128, slots=1, schedule="pingpong", panels=2, group=1),
    "wide": Config(256, 192, slots=2, panels=1, group=4),
}


def options(cfg: Config) -> dict[str, Any]:
    return {
        "tile": (cfg.tm, cfg.tn),
        "depth": cfg.tk,
        "slots": cfg.depth,
        "schedule": cfg.schedule,
        "order": Grouped(cfg.group),
        "store_slots": cfg.panels or 1,
    }


@pytest.mark.variants(7, thorough=6)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "shape",
    [(512, 640, 128), (300, 200, 136), (64, 64, 64), (1300, 72, 40), (256, 192, 128, 3)],
    ids=str,
)
def test_it_agrees_with_explain(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg, works = CASES[name], []
    for module in (explaining, product_time):

        def seen(work: Any, *args: Any, predict: Any = module.predict) -> Any:
            works.append(work)
            return predict(work, *args)

        monkeypatch.setattr(module, "predict", seen)
    m, n, k, *batches = shape
    form = gemm_tuned.Form("bmk", "bnk") if batches else gemm_tuned.Form()
    a, b = ArrayType((*batches, m, k), np.float16), ArrayType((*batches, n, k), np.float16)
    told = numpipe.explain(gemm_tuned.kernel(cfg, form), a, b, compiled=False, device=FEW)
    mine = product((m, n, k), **options(cfg), device=FEW, batches=(*batches, 1)[0])
    counted, closed = works

    def total(work: Any) -> dict[Any, int]:
        """Sum by key, without the name of a ring."""
        found: collections.Counter[Any] = collections.Counter()
        for key, amount in work.total.items():
            found[key[:1] if key[0] == "fills" else key] += amount
        return dict(+found)

    # at the edges explain distinguishes some tiles from others
    whole = m % cfg.tm == n % cfg.tn == 0
    assert total(closed) == (total(counted) if whole else pytest.approx(total(counted), rel=0.03))
    assert closed.total["store", "c"] == 2 * m * n * (*batches, 1)[0]
    assert (closed.ctas, closed.footprint) == (counted.ctas, counted.footprint)
    if whole:
        assert closed.again == pytest.approx(counted.again)
        assert closed.beside == pytest.approx(counted.beside)
    assert (
        mine.seconds == pytest.approx(told.predicted_seconds, rel=1e-9 if whole else 0.03)
        and mine.limiter == told.limiter
    )


def test_more_work_takes_longer() -> None:
    shape, best = (4096, 4096, 4096), options(gemm_tuned.CONFIGS["cooperative 128x256"])
    seconds = product(shape, **best).seconds
    assert product(shape, **{**best, "slots": 1}).seconds > 1.3 * seconds  # tiles arrive late
    assert product(shape, **{**best, "tile": (128, 64)}).seconds > 1.2 * seconds  # L2
    assert product((4096, 4096, 8192), **best).seconds > 1.9 * seconds
    # waves
    assert (
        product((17 * 128, 8 * 256, 4096), **best).seconds
        > 1.7 * product((16 * 128, 8 * 256, 4096), **best).seconds
    )
    large = 8192, 8192, 16384
    assert (
        product(large, **{**best, "order": Column()}).hbm_bytes
        > 1.5 * product(large, **best).hbm_bytes
    )


def test_a_warpgroup_whose_tile_is_the_only_one_stores_it_with_half_of_the_lanes() -> None:
    def storing(tiles: int) -> float:
        """Return the cycles of the longest SM that are spent on stores."""
        found = [
            product(
                (64 * tiles, 256, 640),
                tile=(64, 256),
                depth=64,
                slots=5,
                schedule="pingpong",
                clock=1000.0,
                device=dataclasses.replace(H200, sms=1, work_rate=rate, latency=0, hbm_latency=0),
            ).limits["longest SM"]
            for rate in (64, 64_000_000)
        ]
        return 1e9 * (found[0] - found[1])

    # twice what a warpgroup takes next to another one
    assert storing(1) == pytest.approx(2 * 64 * 256 * 2 / 64, rel=1e-3)
    assert storing(2) < storing(1)


def test_batches_are_as_many_products_in_one_launch() -> None:
    best = options(gemm_tuned.CONFIGS["cooperative 128x256"])
    one, many = product((1024, 1024, 1024), **best), product((1024, 1024, 1024), batches=64, **best)
    assert many.hbm_bytes == pytest.approx(64 * one.hbm_bytes, rel=0.05)
    assert many.limits["tensor cores"] > 60 * one.limits["tensor cores"]
    # 32 tiles leave most SMs idle, 2048 leave few
    assert many.seconds < 64 * one.seconds * 32 / 132 * 1.1
    with pytest.raises(SpecError, match="batches must be an int >= 1, got 0"):
        product((64, 64, 64), batches=0, **best)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"slots": 5},
            "shared memory: 263168 B, but a CTA has 232448 B: 5 slots x 49152 B, 16384 B of "
            "staging, 1024 B of barriers",
        ),
        (
            {"tile": (64, 256)},
            r"tile \(64, 256\) with depth=64 and schedule='cooperative': rows must be a multiple "
            r"of 128",
        ),
        ({"tile": (128, 264)}, "columns of 8, up to 256"),
        ({"depth": 24}, "depth of 16"),
        ({"schedule": "turns"}, "got 'turns'"),
        ({"slots": 0}, "slots must be an int >= 1, got 0"),
        ({"store_slots": -1}, "store_slots must be an int >= 0, got -1"),
        ({"shape": (0, 8, 8)}, "each an int >= 1"),
        ({"clock": "fast"}, "clock must be 'burst', 'settled'"),
    ],
)
def test_what_no_kernel_has_is_refused(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "shape": (256, 256, 256),
        **options(gemm_tuned.CONFIGS["cooperative 128x256"]),
        **change,
    }
    with pytest.raises(SpecError, match=words):
        product(given.pop("shape"), **given)


# ---- tiles split along K
@pytest.mark.parametrize("split", ["stream", 2, 3])
@pytest.mark.parametrize("shape", [(128, 192, 640), (200, 192, 320)])
def test_split_products_are_predicted_as_explained(
    shape: tuple[int, int, int], split: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed form takes all parts of a CTA as alike, so some numbers only approximate the
    counts."""
    m, n, k = shape
    kernel, works = split_kernels.split_product(split_kernels.Config(split=split), 5), []

    def seen(work: Any, *args: Any, predict: Any = explaining.predict) -> Any:
        works.append(work)
        return predict(work, *args)

    for module in (explaining, product_time):
        monkeypatch.setattr(module, "predict", seen)
    explained = numpipe.explain(
        kernel,
        ArrayType((m, k), np.float16),
        ArrayType((n, k), np.float16),
        device=FEW,
        compiled=False,
    )
    told = product(
        shape,
        tile=(64, 64),
        depth=64,
        slots=3,
        num_compute_wgs=1,
        order=Grouped(2),
        split=split,
        device=FEW,
    )
    counted, closed = works
    assert counted.total["flop",] <= closed.total["flop",] <= 1.2 * counted.total["flop",]
    assert set(explained.stored) == {"c"} and set(explained.loaded) == {"a", "b"}
    assert told.seconds == pytest.approx(explained.predicted_seconds, rel=0.25)
    assert (
        counted.total["handed",] > 0
        and max(share["handed",] for share in closed.counted.values()) > 0
    )


def test_few_tiles_are_quicker_when_they_are_cut() -> None:
    seconds = {
        split: product((128, 2048, 16384), tile=(128, 256), depth=64, slots=3, split=split).seconds
        for split in (None, 1, 4, "stream")
    }
    assert seconds["stream"] < 0.5 * seconds[None] and seconds[4] < 0.5 * seconds[None]
    assert seconds[1] == seconds[None]
    whole = {
        split: product(
            (11 * 128, 12 * 256, 4096), tile=(128, 256), depth=64, slots=3, split=split
        ).seconds
        for split in (None, "stream")
    }
    assert whole["stream"] == whole[None]  # 132 tiles: nothing to split


def test_a_split_that_is_none_is_refused() -> None:
    for split in (0, "k", 1.5):
        with pytest.raises(SpecError, match="product: split="):
            product((128, 128, 128), tile=(128, 128), depth=64, slots=3, split=split)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape, microseconds",
    [((2, 96, 96), 1.55), ((5, 192, 240), 1.97), ((97, 64, 928), 2.75), ((3024, 1008, 72), 4.95)],
)
def test_a_product_of_microseconds_takes_as_long_as_measured(
    shape: tuple[int, int, int], microseconds: float
) -> None:
    """docs/results/products_h200_2026-11-27.json.gz and products_random_bf16_h200_2026-11-28*,
    back to back: launches overlap on SMs without work."""
    m, n, k = shape
    b = np.zeros((n, k), BF16).T
    told = numpipe.explain(numpipe.ops.matmul, ArrayType((m, k), BF16), b, compiled=False)
    assert 1e6 * told.predicted_seconds == pytest.approx(microseconds, rel=0.3)
