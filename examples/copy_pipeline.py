"""A copy of a matrix through shared memory and registers: a pipeline with inputs and outputs, bound
by the GPU's memory.

    python examples/copy_pipeline.py                          on the GPU if there is one, else
                                                              simulated
    python examples/copy_pipeline.py --target sim --shape 200,136

On a GPU: bytes read and written a second, on device arrays. benchmarks/bandwidth.py compares it
with the runtime's own copy.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import numpipe
from numpipe import BlockSpec, bench, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """Blocks of `rows` x `row_bytes`; so many are on their way from memory (slots) and to it
    (outs).

    A CTA copies `run` neighbours, then goes on behind the runs of all CTAs. On an H200 no runs, or
    twice the slots, lose about 1 %. Nobody reads the copy soon, so the L2 cache writes it to memory
    before it makes room by dropping blocks that were just read: that is what the eviction policies
    say, and worth 2 %.
    """

    rows: int = 64
    row_bytes: int = 256
    slots: int = 3
    outs: int = 2
    run: int = 8


@numpipe.kernel(
    out_type=lambda a, cfg: numpipe.ArrayType(a.shape, a.dtype),
    grid=numpipe.persistent(),
    grid_names="cta",
    num_compute_wgs=2,
)
def copy(a, o, *, cfg: numpipe.Static = Config()):
    """o = a, for a matrix of float16, bfloat16 or float32; what happens to a tile in between is a
    line of its own."""
    wg, cta, ctas = numpipe.axis_index("wg"), numpipe.axis_index("cta"), numpipe.axis_size("cta")
    columns = cfg.row_bytes // np.dtype(a.dtype).itemsize
    own = columns // numpipe.axis_size("wg")
    wide = cdiv(a.shape[1], columns)
    blocks = cdiv(a.shape[0], cfg.rows) * wide
    # steps in runs; what is left is dealt block by block, so that no CTA works alone
    whole = blocks // (cfg.run * ctas) * cfg.run

    def place(k):
        block = k * ctas + cta
        if k < whole:
            block = (k // cfg.run * ctas + cta) * cfg.run + k % cfg.run
        return block // wide, block % wide

    pipe = numpipe.pipeline(
        grid=(cdiv(blocks - cta, ctas),),
        max_concurrent_steps=cfg.slots,
        in_specs=(BlockSpec((cfg.rows, columns), place, eviction_policy="evict_last"),),
        out_specs=(
            BlockSpec(
                (cfg.rows, columns), place, buffer_count=cfg.outs, eviction_policy="evict_first"
            ),
        ),
    )
    for _, (a_tile, o_tile) in pipe(a, o):
        tile = a_tile[:, ds(wg * own, own)]
        o_tile[:, ds(wg * own, own)] = tile


def bandwidth(shape: tuple[int, int]) -> float:
    """Bytes that a copy of float16 on the GPU reads and writes a second."""
    a = launch.DeviceArray.from_host(np.ones(shape, np.float16))
    out = launch.DeviceArray(shape, np.float16)
    [sample] = bench.compare(
        {"copy": lambda _: copy(a, out=out)},
        reference="copy",
        protocols=("interleaved",),
        plan=bench.Plan(load=0.3, rounds=20),
    )
    return 4.0 * shape[0] * shape[1] / sample.seconds("copy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", metavar="ROWS,COLUMNS")
    options = parser.parse_args()
    target = launch.choose_target(options.target).target
    rows, columns = (
        int(n)
        for n in (options.shape or ("16384,16384" if target == "gpu" else "200,1000")).split(",")
    )
    a = np.random.default_rng(0).standard_normal((rows, columns), np.float32).astype(np.float16)
    equal = bool((copy(a, target=target) == a).all())
    print(f"target: {target}, {rows} x {columns}: {'equal' if equal else 'WRONG'}", end="")
    print(f", {1e-12 * bandwidth((rows, columns)):.2f} TB/s" if target == "gpu" else "")


if __name__ == "__main__":
    main()
