"""Random programs of tiles by rows, parts, limits, shared atomics, vectors and data that steers, on the hardware: 504 of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.kernels.gpu_shards import LIMIT, SHARDS, started
from tests.kernels.tile_programs import program, wrong

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
ALONE = True  # its shards take all cores

EACH = 36
"""programs a shard"""
REPEATS = 3


@pytest.fixture(scope="module")
def shards() -> Iterator[list[Future[str]]]:
    with started(__file__) as running:
        yield running


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_program_computes_what_numpy_does(shard: int, shards: list[Future[str]]) -> None:
    assert f"{EACH} programs, 0 wrong" in shards[shard].result()


def main(shard: int) -> int:
    bad = []
    for seed in range(EACH * shard, EACH * (shard + 1)):
        made = program(random.Random(seed))
        try:
            if found := wrong(made, "gpu", seed, REPEATS):
                bad.append(f"seed {seed}: {found}\n{made.source()}")
        except Exception as error:
            bad.append(f"seed {seed}: {type(error).__name__}: {error}\n{made.source()}")
    print(*bad, f"{EACH} programs, {len(bad)} wrong", sep="\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
