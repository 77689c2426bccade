"""Copy of a matrix through shared memory and registers: a memory-bound pipeline with inputs and
outputs.

    python examples/copy_pipeline.py                          on the GPU if there is one, else
                                                              simulated
    python examples/copy_pipeline.py --target sim --shape 200,136

On a GPU it prints the bytes read and written per second, on device arrays. benchmarks/bandwidth.py
compares this with the runtime's own copy.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import numpipe
from numpipe import BlockSpec, bench, cdiv, ds, launch


@dataclass(frozen=True)
class Config:
    """Blocks of `rows` x `row_bytes`, with up to `slots` being loaded and up to `outs` being
    stored.

    A CTA copies `run` neighboring blocks, then continues after the runs of all CTAs. On an H200, a
    run of 1 or twice the slots costs about 1 %. The eviction policies make the L2 cache write the
    copy to memory first, because it will not be read soon, rather than drop blocks of the source
    that were just read; this gains 2 %.
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
    """o = a, for a matrix of float16, bfloat16 or float32; one line of the loop can transform each
    tile."""
    wg, cta, ctas = numpipe.axis_index("wg"), numpipe.axis_index("cta"), numpipe.axis_size("cta")
    columns = cfg.row_bytes // np.dtype(a.dtype).itemsize
    own = columns // numpipe.axis_size("wg")
    wide = cdiv(a.shape[1], columns)
    blocks = cdiv(a.shape[0], cfg.rows) * wide
    # steps that are assigned in runs; the rest go one block at a time, to balance the CTAs
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
    """Return the bytes per second that a copy of float16 on the GPU reads and writes."""
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
