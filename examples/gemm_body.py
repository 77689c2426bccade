"""The matrix product of gemm.py in body form: the pipeline calls a function for each step instead
of being a loop.

    python examples/gemm_body.py                     on the GPU if there is one, else simulated
    python examples/gemm_body.py --target sim --shape 300,200,136 --dtype bf16

On a GPU it prints the speeds of this form and of the loop form in gemm.py, measured in turn under
load. Simulated, it prints the errors of both. Both forms have the same ring and synchronize with
the same instructions in the same order (``--instructions`` prints these and needs no GPU).
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings

import numpy as np

import gemm
import numpipe
from gemm import DTYPES, GPU_SHAPES, SIM_SHAPES, Config, inputs, relative_error, shape_of, spell
from numpipe import BlockSpec, bench, cdiv, ds, launch


@numpipe.function
def block_of(m, n, cfg):
    """Return the first row and column of tile (m, n)."""
    return m * cfg.tm, n * cfg.tn


@numpipe.kernel(
    out_type=lambda a, b, cfg: numpipe.ArrayType((a.shape[0], b.shape[0]), a.dtype),
    signature="(m,k),(n,k)->(m,n)",
    grid=numpipe.persistent(),
)
def matmul(a, b, c, *, cfg: numpipe.Static = Config()):
    """c = a @ b.T, for a (M, K) and b (N, K) of float16 or bfloat16, summed in float32.

    The memory warpgroup runs the tile loop and fills the ring; it calls only the index maps. The
    compute warpgroups run `compute` once per tile and `body` once per step; the accumulator is
    carried from step to step.
    """
    wg = numpipe.axis_index("wg")
    rows = cfg.tm // numpipe.axis_size("wg")

    def body(indices, a_tile, b_tile, acc):
        return numpipe.wgmma(acc, a_tile.at[ds(wg * rows, rows), :], b_tile.T)

    for m, n in numpipe.tiles(
        cdiv(a.shape[0], cfg.tm), cdiv(b.shape[0], cfg.tn), order="grouped", group=cfg.group
    ):

        def compute(pipeline):
            acc = pipeline(numpipe.zeros((rows, cfg.tn), np.float32))
            top, left = block_of(m, n, cfg)
            c[ds(top + wg * rows, rows), ds(left, cfg.tn)] = acc.astype(c.dtype)

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(cdiv(a.shape[1], cfg.tk),),
            max_concurrent_steps=cfg.slots,
            compute_context=compute,
            in_specs=(
                BlockSpec((cfg.tm, cfg.tk), lambda k: (m, k)),
                BlockSpec((cfg.tn, cfg.tk), lambda k: (n, k)),
            ),
            num_compute_wgs=2,
            wg_axis="wg",
            memory_registers=40,
        )(a, b)


# ---- running it
FORMS = {"body form": matmul, "loop form": gemm.matmul}
SYNCHRONISES = re.compile(r"\b(?:SYNCS|UTMALDG|UTMASTG|HGMMA|WARPGROUP|BAR|USETMAXREG)[\w.]*")


def synchronisation(kernel: numpipe.Kernel, dtype: np.dtype, cfg: Config = Config()) -> list[str]:
    """Return the instructions that synchronize, copy or multiply, in the order of the machine
    code."""
    array = numpipe.ArrayType((8, 8), dtype)
    return SYNCHRONISES.findall(kernel.inspect("sass", array, array, cfg=cfg))


def compare(a: np.ndarray, b: np.ndarray, plan: bench.Plan | None = None) -> bench.Sample:
    """Return the seconds per call of both forms, on arrays that stay on the GPU, measured in turn
    under load."""
    x, y = launch.DeviceArray.from_host(a), launch.DeviceArray.from_host(b)
    outputs = {name: launch.DeviceArray((len(a), len(b)), a.dtype) for name in FORMS}
    competitors = {
        name: lambda _, kernel=kernel, out=outputs[name]: kernel(x, y, out=out)
        for name, kernel in FORMS.items()
    }
    [sample] = bench.compare(
        competitors,
        reference="loop form",
        protocols=("interleaved",),
        plan=plan or bench.Plan(load=0.3, rounds=20),
    )
    return sample


def on_gpu(shapes: list[gemm.Shape], dtype: np.dtype) -> None:
    """Print the speed of both forms and the error, one line per shape."""
    print(f"\n{'M,N,K':>16}  {'body form':>12}  {'loop form':>12}  {'ratio':>6}  {'error':>7}")
    for shape in shapes:
        a, b = inputs(shape, dtype)
        error = relative_error(a, b, matmul(a, b, target="gpu"))
        sample = compare(a, b)
        speeds = [f"{2e-12 * np.prod(shape) / sample.seconds(name):.0f} TFLOPS" for name in FORMS]
        print(
            f"{spell(shape):>16}  {speeds[0]:>12}  {speeds[1]:>12}  "
            f"{sample.ratio('body form'):>6.3f}  {error:>7.1e}",
            flush=True,
        )


def simulated(shapes: list[gemm.Shape], dtype: np.dtype, target: str | None) -> None:
    """Print the error of both forms, which is the same."""
    print(f"\n{'M,N,K':>16}  " + "  ".join(f"{name:>9}" for name in FORMS))
    for shape in shapes:
        a, b = inputs(shape, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has already been said that this is simulated
            errors = [
                relative_error(a, b, kernel(a, b, cfg=Config(tn=128), target=target))
                for kernel in FORMS.values()
            ]
        print(f"{spell(shape):>16}  " + "  ".join(f"{error:>9.1e}" for error in errors), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument(
        "--shape", type=shape_of, action="append", metavar="M,N,K", help="may be repeated"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="f16", help="of a, b and c (default: %(default)s)"
    )
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="print the instructions of both forms that synchronize",
    )
    options = parser.parse_args()
    dtype = DTYPES[options.dtype]

    if options.instructions:
        forms = {name: synchronisation(kernel, dtype) for name, kernel in FORMS.items()}
        print("\n".join(forms["body form"]))
        print(
            "the loop form has the same"
            if forms["body form"] == forms["loop form"]
            else "the loop form has others:"
        )
        if forms["body form"] != forms["loop form"]:
            print("\n".join(forms["loop form"]))
        return
    choice = launch.choose_target(options.target)
    print(f"target: {choice.target} ({choice.why})")
    if choice.target == "gpu":
        on_gpu(options.shape or list(GPU_SHAPES), dtype)
    else:
        simulated(options.shape or list(SIM_SHAPES), dtype, options.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
