"""The pipelines of test_covering_array.py on the GPU: all plans, with 0 to 6 steps, ten times
each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.kernels.gpu_shards import LIMIT, SHARDS, started
from tests.kernels.pipeline_arrays import ARRAYS, Plan, array, check_on_gpu, told

ALONE = True  # its shards use all cores

REPEATS = 10


def plans(shard: int) -> list[Plan]:
    """Return a shard's plans; every plan is in one shard."""
    assert SHARDS % ARRAYS == 0
    number, part = shard % ARRAYS, shard // ARRAYS
    return array(number)[part :: SHARDS // ARRAYS]


@pytest.fixture(scope="module")
def shards() -> Iterator[list[Future[str]]]:
    with started(__file__) as running:
        yield running


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_plans_compute_what_numpy_does(shard: int, shards: list[Future[str]]) -> None:
    assert (
        f"{sum(len(plan.grids()) for plan in plans(shard))} cases, 0 wrong"
        in shards[shard].result()
    )


def main(shard: int) -> int:
    cases, wrong = 0, []
    for n, plan in enumerate(plans(shard)):
        for grid in plan.grids():
            cases += 1
            try:
                check_on_gpu(plan, grid, REPEATS)
            except Exception as error:
                wrong.append(
                    f"plan {n} of shard {shard}, grid {grid}: {told(plan)}{type(error).__name__}: "
                    f"{error}"
                )
                break
    print(*wrong, f"{cases} cases, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
