"""Speed of the simulated SM: ``python tests/sim_speed.py`` prints the milliseconds of a 512 x 512 x
512 GEMM."""

from __future__ import annotations

import time

import numpy as np

from numpipe.sim.schedule import kind
from tests.kernels.sim_pipelines import BF16, F16, Gemm


def main(runs: int = 7) -> None:
    for dtype in (F16, BF16):
        for seed in (None, 0, 1, 2):
            times = []
            for _ in range(runs):
                gemm = Gemm(m=512, n=512, k=512, slots=4, dtype=dtype)
                start = time.perf_counter()
                gemm.run(seed)
                times.append(time.perf_counter() - start)
                assert np.array_equal(gemm.c, gemm.expected())
            print(
                f"512^3 {dtype} {kind(seed)}: best {1e3 * min(times):.1f} ms, "
                f"median {1e3 * float(np.median(times)):.1f} ms"
            )


if __name__ == "__main__":
    main()
