"""Command-line interface, ``python -m numpipe COMMAND``.

``info``      prints the GPU, driver and package versions, for bug reports
``timeline``  draws saved traces
``cache``     reports the size of the cache of compiled kernels, or clears it
``export``    compiles a kernel and writes it to a file
``inspect``   prints the contents of such a file
``mutate``    reports which synchronization operations can be removed without being noticed
``puzzles``   checks kernels to complete, and gives hints
"""

from __future__ import annotations

import argparse
import importlib
import io
import math
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .compile import cache
from .diagnostics.errors import NumpipeError, SpecError
from .diagnostics.versions import installed
from .kernels.archive import Archive
from .kernels.exporting import signature
from .kernels.kernel import Kernel
from .kernels.run_target import MAX_SIMULATED_ELEMENTS
from .launch import current_gpu
from .plan.specs import ArrayType
from .tools.verify.mutation import mutate
from .traces.timeline_pictures import ROWS, timeline
from .traces.trace import Trace

_TOOLKIT = ("nvidia-nvvm", "nvidia-nvjitlink")
_PACKAGES = (
    "numpipe",
    "numpy",
    "ml_dtypes",
    "greenlet",
    "numba",
    "llvmlite",
    "numba-cuda",
    "cuda-core",
    "cuda-bindings",
)


def version(package: str) -> str:
    """Return the version of an installed distribution, also under its CUDA 12 name, ``*-cu12``."""
    return next(iter(installed(package, f"{package}-cu12").values()), "not installed")


def report() -> Iterator[tuple[str, str]]:
    """Yield the lines of ``info`` as (label, value)."""
    state = current_gpu.gpu_state()
    gpu = state.device
    if gpu is not None:
        yield "GPU", f"{gpu.name} (device {gpu.ordinal})"
        yield "compute capability", "{}.{}".format(*gpu.cc)
        yield "SMs", str(gpu.sm_count)
        yield "shared memory of a CTA", f"{gpu.max_dynamic_smem} bytes"
        yield "driver", f"CUDA {current_gpu.spell(gpu.driver_version)}"
    else:
        yield "GPU", f"none usable: {state.reason}"
        yield "to use one", state.fix
    for package in _TOOLKIT:
        yield package, version(package)
    yield "python", f"{platform.python_version()} ({platform.platform()})"
    for package in _PACKAGES:
        yield package, version(package)
    try:
        choice = current_gpu.choose_target()
    except NumpipeError as error:
        yield "target", f"none: {error}"
    else:
        yield "target", f"{choice.target} ({choice.why})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m numpipe", description="Software-pipelined kernels for NVIDIA Hopper."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser(
        "info", help="print the GPU, the driver, versions, and the target that kernels run on"
    ).set_defaults(run=show_machine)
    draws = commands.add_parser(
        "timeline", help="draw traces written to .json files by Trace.save or a profile"
    )
    draws.add_argument(
        "traces",
        nargs="+",
        metavar="file.json",
        help="drawn one below another, each on its own time scale",
    )
    draws.add_argument(
        "--out", metavar="picture.svg", help="an .svg or .png file (default: print text)"
    )
    draws.add_argument(
        "--cta",
        type=int,
        nargs="+",
        metavar="N",
        help="the CTA's x, or x y z (default: the first CTA of the trace)",
    )
    draws.add_argument(
        "--start",
        type=float,
        nargs="+",
        metavar="T",
        help="in cycles, or ns for a GPU profile; one value, or one per trace",
    )
    draws.add_argument("--end", type=float, nargs="+", metavar="T")
    draws.add_argument(
        "--rows", nargs="+", metavar="ROW", help=f"any of: wg0, wg1 …, {', '.join(ROWS)}"
    )
    draws.add_argument("--titles", nargs="+", metavar="TITLE", help="one per trace")
    draws.add_argument("--summary", action="store_true", help="also print where the time went")
    draws.set_defaults(run=draw)
    kept = commands.add_parser("cache", help="report or clear the compiled kernels kept on disk")
    kept.add_argument("action", choices=("info", "clear"), help="report the size; remove all")
    kept.set_defaults(run=look_after_cache)
    named_kernel: dict[str, Any] = {
        "metavar": "module:kernel",
        "help": "a module that Python can import, and the kernel's name in it",
    }
    writes = commands.add_parser(
        "export", help="compile a kernel and write it to a file for numpipe.load"
    )
    writes.add_argument("kernel", **named_kernel)
    writes.add_argument("file")
    writes.add_argument(
        "signatures",
        nargs="+",
        metavar="signature",
        help='a call\'s arguments, e.g. "float16[512, 512], float16[512, 512], cfg=Config(tn=128)"',
    )
    writes.set_defaults(run=write_kernel)
    shows = commands.add_parser("inspect", help="print the contents of an exported file")
    shows.add_argument("file")
    shows.set_defaults(run=show_kernel)
    changes = commands.add_parser(
        "mutate", help="simulate a kernel with each synchronization left out in turn"
    )
    changes.add_argument("kernel", **named_kernel)
    changes.add_argument(
        "signature",
        help="a call's arguments, as for export; arrays hold small random integers (seed 0)",
    )
    changes.add_argument(
        "--schedules", type=int, default=3, help="at most, per mutant (default: %(default)s)"
    )
    changes.set_defaults(run=mutate_kernel)
    plays = commands.add_parser("puzzles", help="check kernels to complete, and give hints")
    plays.add_argument(
        "number",
        nargs="?",
        type=_puzzle_number,
        metavar="N",
        help="show this puzzle (default: check all, and show the first that is not solved)",
    )
    plays.add_argument(
        "--folder",
        type=Path,
        help="the folder of your kernels, to which puzzles are copied that it does not have "
        "(default: examples/puzzles)",
    )
    plays.set_defaults(run=play_puzzles)
    options = parser.parse_args(arguments)
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # names and help may hold other than its characters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(options.run(options))
    except (NumpipeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def show_machine(options: argparse.Namespace) -> int:
    """Run ``info`` and return the exit status."""
    lines = list(report())
    width = max(len(what) for what, _ in lines)
    for what, value in lines:
        print(f"{what:<{width}}  {value}")
    return 0


def kernel_of(text: str) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel named by ``module:kernel`` and the module's globals. Raises SpecError if
    there is no such kernel.
    """
    module, _, name = text.partition(":")
    try:
        names = vars(importlib.import_module(module))
    # ValueError: an empty module name; TypeError: a relative one
    except (ImportError, ValueError, TypeError) as error:
        raise SpecError(
            f"{text}: {error}; fix: write MODULE:KERNEL, where Python can import MODULE from the "
            "current folder"
        ) from None
    kernel = names.get(name)
    if not isinstance(kernel, Kernel):
        kernels = [name for name, value in names.items() if isinstance(value, Kernel)]
        raise SpecError(f"{text}: the kernels of {module} are {', '.join(kernels) or 'none'}")
    return kernel, names


def write_kernel(options: argparse.Namespace) -> int:
    """Run ``export`` and return the exit status."""
    kernel, names = kernel_of(options.kernel)
    kernel.export(options.file, *(signature(text, names) for text in options.signatures))
    return show_kernel(options)


def mutate_kernel(options: argparse.Namespace) -> int:
    """Run ``mutate`` and return the exit status: 1 if mutants survived that no rule explains."""
    kernel, names = kernel_of(options.kernel)
    args, named = signature(options.signature, names)
    draw = np.random.default_rng(0)

    def value(given: Any) -> Any:
        if not isinstance(given, ArrayType):
            return given
        if math.prod(given.shape) > MAX_SIMULATED_ELEMENTS:
            raise SpecError(
                f"signature {options.signature!r}: shape {given.shape} is too large to simulate "
                f"for every mutant; fix: pass at most {MAX_SIMULATED_ELEMENTS} elements"
            )
        return draw.integers(0 if given.dtype.kind == "u" else -3, 4, given.shape).astype(
            given.dtype
        )

    found = mutate(
        kernel,
        *map(value, args),
        schedules=options.schedules,
        **{name: value(one) for name, one in named.items()},
    )
    print(found)
    return int(not found)


def show_kernel(options: argparse.Namespace) -> int:
    """Run ``inspect`` and return the exit status."""
    archive = Archive(Path(options.file))
    manifest = archive.manifest
    defaults = {
        one.name: "" if one.default is None else f"={one.default}" for one in manifest.parameters
    }
    print(
        f"{manifest.kernel}({', '.join(map(''.join, defaults.items()))}), for {manifest.target}, "
        f"made with {', '.join(' '.join(one) for one in manifest.made_with)}"
    )
    for entry in manifest.entries:
        used = archive.image(entry).resources
        shown = manifest.shown(entry.arrays, entry.scalars, entry.statics)
        print(
            f"    {shown}: {used.cubin_bytes} B of machine code, {used.smem_bytes} B of shared "
            f"memory, {used.threads} threads"
        )
    return 0


def look_after_cache(options: argparse.Namespace) -> int:
    """Run ``cache`` and return the exit status: 1 if no cache folder can be determined."""
    try:
        cache.folder()
    except RuntimeError as error:  # the user has no home directory
        print(f"there is no cache: {error}; set {cache.VARIABLE} to a folder")
        return 1
    if options.action == "clear":
        print(f"{cache.clear()} images removed from {cache.folder()}")
        return 0
    sizes = [status.st_size for path, status in cache.files() if path.suffix == cache.SUFFIX]
    print(
        f"{len(sizes)} images, {sum(sizes) / 1e6:.1f} MB of at most {cache.MOST_BYTES / 1e6:.0f}, "
        f"in {cache.folder()} ({'in use' if cache.enabled() else 'not used: NUMPIPE_CACHE=0'}; "
        f"{cache.VARIABLE} names another folder)"
    )
    return 0


def _puzzle_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected the number of a puzzle, got {text!r}; fix: for a folder, --folder {text}"
        ) from None


def play_puzzles(options: argparse.Namespace) -> int:
    """Run ``puzzles`` and return the exit status: 1 if one is not solved."""
    folder = Path(__file__).parents[1] / "examples" / "puzzles"
    if not folder.exists():
        raise SpecError(
            "puzzles are not installed with numpipe; fix: clone its repository, and run this there"
        )
    sys.path.insert(0, str(folder))
    return int(importlib.import_module("checker").play(options.folder or folder, options.number))


def draw(options: argparse.Namespace) -> int:
    """Run ``timeline`` and return the exit status."""

    def one(values: list[float] | None) -> Any:
        return values[0] if values and len(values) == 1 else values and tuple(values)

    cta = one(options.cta)
    traces = [Trace.load(file) for file in options.traces]
    print(
        timeline(
            *traces,
            path=options.out,
            cta=cta,
            start=one(options.start),
            end=one(options.end),
            rows=options.rows,
            titles=options.titles,
        )
    )
    for file, trace in zip(options.traces, traces, strict=True):
        if options.summary:
            print(f"\n{file}: {trace.summary(cta)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
