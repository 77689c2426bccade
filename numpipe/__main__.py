"""``python -m numpipe info``: what this machine offers numpipe, for bug reports and first steps; ``timeline``: traces, drawn."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from .diagnostics.errors import NumpipeError
from .launch import device
from .traces import Trace
from .traces.drawing import ROWS, timeline

_PACKAGES = ("numpipe", "numpy", "ml_dtypes", "greenlet", "numba", "llvmlite", "numba-cuda", "cuda-core",
             "cuda-bindings")
_TOOLKIT = ("nvidia-nvvm", "nvidia-nvjitlink")


def version(package: str) -> str:
    """Version of an installed distribution, CUDA 12's suffixed names included."""
    for name in (package, f"{package}-cu12"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "not installed"


def report() -> Iterator[tuple[str, str]]:
    """(what, value) lines of ``info``."""
    state = device.gpu_state()
    found = state.device
    if found is not None:
        yield "GPU", f"{found.name} (device {found.ordinal})"
        yield "compute capability", "{}.{}".format(*found.cc)
        yield "SMs", str(found.sm_count)
        yield "shared memory of a CTA", f"{found.max_dynamic_smem} bytes"
        yield "driver", f"CUDA {device.spell(found.driver_version)}"
    else:
        yield "GPU", f"none usable: {state.reason}"
        yield "to use one", state.mend
    for package in _TOOLKIT:
        yield package, version(package)
    yield "python", f"{platform.python_version()} ({platform.platform()})"
    for package in _PACKAGES:
        yield package, version(package)
    try:
        choice = device.choose_target()
    except NumpipeError as error:
        yield "target", f"none: {error}"
    else:
        yield "target", f"{choice.target} ({choice.why})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m numpipe",
                                     description="Software-pipelined kernels for NVIDIA Hopper.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("info", help="print the GPU, the driver, the versions, and the target kernels would run on")
    drawn = commands.add_parser("timeline", help="draw traces that Trace.save, or a profile, wrote to .json files")
    drawn.add_argument("traces", nargs="+", metavar="file.json", help="drawn under each other, each with a scale of its own")
    drawn.add_argument("--out", metavar="picture.svg", help="an .svg or .png file; without it text is printed")
    drawn.add_argument("--cta", type=int, nargs="+", metavar="N", help="its x, or x y z; the first one of the trace by default")
    drawn.add_argument("--start", type=float, nargs="+", metavar="T", help="cycles, or ns on a GPU; one, or one a trace")
    drawn.add_argument("--end", type=float, nargs="+", metavar="T")
    drawn.add_argument("--rows", nargs="+", metavar="ROW", help=f"some of: wg0, wg1 …, {', '.join(ROWS)}")
    drawn.add_argument("--titles", nargs="+", metavar="TITLE", help="one a trace")
    drawn.add_argument("--summary", action="store_true", help="print where the time went, too")
    chosen = parser.parse_args(arguments)
    if chosen.command == "timeline":
        return draw(chosen)
    lines = list(report())
    width = max(len(what) for what, _ in lines)
    for what, value in lines:
        print(f"{what:<{width}}  {value}")
    return 0


def draw(chosen: argparse.Namespace) -> int:
    """``timeline``; returns the exit status."""
    def one(values: list[float] | None) -> Any:
        return values[0] if values and len(values) == 1 else values

    cta = chosen.cta and (chosen.cta[0] if len(chosen.cta) == 1 else tuple(chosen.cta))
    try:
        traces = [Trace.load(file) for file in chosen.traces]
        print(timeline(*traces, path=chosen.out, cta=cta, start=one(chosen.start), end=one(chosen.end), rows=chosen.rows,
                       titles=chosen.titles))
        for file, trace in zip(chosen.traces, traces, strict=True):
            if chosen.summary:
                print(f"\n{file}: {trace.summary(cta)}")
    except ValueError as error:  # SpecErrors are ValueErrors
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
