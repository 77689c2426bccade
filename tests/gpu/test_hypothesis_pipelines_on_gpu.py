"""Pipelines drawn by Hypothesis from all choices of the API, on the hardware: 504 of them, each in up to 3 grids."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.kernels.gpu_shards import LIMIT, SHARDS, started
from tests.kernels.pipeline_plans import any_grid, any_plan
from tests.kernels.pipeline_sources import check_on_gpu, told

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
ALONE = True  # its shards take all cores

EACH = 36
"""plans a shard"""
REPEATS = 3


@pytest.fixture(scope="module")
def shards() -> Iterator[list[Future[str]]]:
    with started(__file__) as running:
        yield running


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_pipeline_computes_what_numpy_does(shard: int, shards: list[Future[str]]) -> None:
    assert f"{EACH} plans, 0 wrong" in shards[shard].result()


def main(shard: int) -> int:
    plans, wrong = 0, []

    @seed(shard)
    @given(data=st.data())
    @settings(max_examples=EACH, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    def draw(data: Any) -> None:
        nonlocal plans
        plan = data.draw(any_plan())
        grids = [data.draw(any_grid(plan)) for _ in range(1 if plan.static else 3)]
        plans += 1
        try:
            for grid in grids:
                check_on_gpu(plan, grid, REPEATS)
        except Exception as error:
            wrong.append(f"seed {shard}, grids {grids}: {told(plan)}{type(error).__name__}: {error}")

    draw()
    print(*wrong, f"{plans} plans, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
