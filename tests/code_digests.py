"""Digests of the PTX and SASS of the examples and of the covering arrays of pipelines, which show
that a change does not affect generated code.

    python tests/code_digests.py compare                    prints the cases that differ from
                                                            tests/code_digests.json; exits with 1
    python tests/code_digests.py compare --only gemm_tuned  only cases whose names contain this; may
                                                            be repeated
    python tests/code_digests.py record                     writes the file; with --only these cases
                                                            of it
    python tests/code_digests.py record other.json --texts FOLDER

With ``--texts FOLDER``, `record` also keeps the texts of all cases as files, and `compare` the
texts of the cases that differ. To see the effect of a change, record the previous commit with
``--texts``, compare the new one with ``--texts``, and diff the two folders.

No GPU is needed. Digests leave out what varies between compiles: see `plain`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import batched_gemm
import copy_pipeline
import gemm_single
import ml_dtypes
import numpy as np

import gemm
import gemm_tuned
from numpipe import ArrayType
from numpipe.ops.attention import CONFIGS, FITTING, Config, Form
from numpipe.ops.attention import kernel as attention_of
from tests.kernels.pipeline_arrays import Plan, array, inputs, load
from tests.kernels.product_configs import fuses
from tests.kernels.tuned_cases import FORMS, LAYOUTS, laid

RECORDED = Path(__file__).with_name("code_digests.json")
KINDS = ("ptx", "sass")
HEX = 16
"""digits of a SHA-256 that are kept"""

PIPELINES = 2
"""covering arrays of pipelines, the same ones that are always simulated; each covers all allowed
pairs of choices"""

Texts = dict[str, str]
"""PTX and SASS, by kind"""
Case = Callable[[], Callable[[str], str]]
"""makes its kernel, and returns what `inspect` says of it"""


# ---- the cases -----------------------------------------------------------------------------------
def case(kernel: Callable[[], Any], arguments: Callable[[], Sequence[Any]], **named: Any) -> Case:
    def made() -> Callable[[str], str]:
        made_of, passed = kernel(), arguments()
        return lambda kind: str(made_of.inspect(kind, *passed, **named))

    return made


def of_arrays(kernel: Any, *shapes: tuple[int, ...], dtype: Any, **named: Any) -> Case:
    return case(lambda: kernel, lambda: [ArrayType(shape, dtype) for shape in shapes], **named)


def tuned(cfg: gemm_tuned.Config, form: gemm_tuned.Form, dtype: np.dtype, orders: str = "") -> Case:
    """Return a product of examples/gemm_tuned.py.

    `orders` has the memory order of its arrays, "C" or "F", the output last.
    """
    sizes = {"b": 4, "m": 512, "n": 512, "k": 512}

    def arguments() -> list[Any]:
        dims = [
            form.a,
            form.b,
            *[form.c] * form.source,
            *[form.bias] * bool(form.bias),
            *[form.c] * bool(orders),
        ]
        arrays = [np.zeros([sizes.get(dim, 1) for dim in each], dtype) for each in dims]
        return [
            laid(x, order) for x, order in zip(arrays, orders or "C" * len(arrays), strict=True)
        ]

    return case(
        lambda: gemm_tuned.kernel(cfg, form),
        arguments,
        **{name: 0.5 for name in ("alpha", "beta") if name not in form.without},
    )


def attention(cfg: Config, form: Form, dtype: np.dtype) -> Case:
    q = ArrayType((1, 2, 256, form.depth), dtype)
    return case(
        lambda: attention_of(cfg, form),
        lambda: (q, q, q, *form.results(q)),
        scale=1.0,
        diagonal=0,
        group=1,
    )


def pipeline(plan: Plan) -> Case:
    return case(lambda: load(plan), lambda: inputs(plan, plan.grids()[-1]))


def cases() -> Iterator[tuple[str, Case]]:
    """Yield every case with its name.

    The cases are gemm_tuned in all layouts and forms, attention in all configs that fit, and
    pipelines.
    """
    square, halves = (1024, 1024), (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
    for dtype, run in itertools.product((*halves, np.dtype(np.float32)), (8, 2)):
        yield (
            f"copy_pipeline, run {run}, {dtype}",
            of_arrays(copy_pipeline.copy, square, dtype=dtype, cfg=copy_pipeline.Config(run=run)),
        )
    for dtype in halves:
        for name, module in (("gemm", gemm), ("gemm_single", gemm_single)):
            yield f"{name}, {dtype}", of_arrays(module.matmul, square, square, dtype=dtype)
        for cut in (batched_gemm.Config(), batched_gemm.Config(128, 256, 64, 3)):
            yield (
                f"batched_gemm, {cut.tm}x{cut.tn}, {dtype}",
                of_arrays(batched_gemm.batched_matmul, (2, 8, 8), (2, 8, 8), dtype=dtype, cfg=cut),
            )
        for name, cfg in gemm_tuned.CONFIGS.items():
            for kind, form in FORMS.items():
                if fuses(cfg) or form.activation is None:
                    yield f"gemm_tuned, {name}, {kind}, {dtype}", tuned(cfg, form, dtype)
            if dtype != np.float16:  # only products and conversions differ
                for orders in LAYOUTS[1:]:
                    yield (
                        f"gemm_tuned, {name}, layouts {orders}, {dtype}",
                        tuned(cfg, FORMS["plain"], dtype, orders),
                    )
        for layout in ("bhsd", "bshd"):
            # all pairs of layout, type and sums
            sums = (layout == "bhsd") != (dtype == np.float16)
            for (depth, causal), names in FITTING.items():
                asked = Form(depth, causal, layout, sums)
                what = f"depth {depth}{', causal' * causal}, {layout}{', sums' * sums}, {dtype}"
                for name in names:
                    yield f"flash_attention, {name}, {what}", attention(CONFIGS[name], asked, dtype)
    for number in range(PIPELINES):
        for n, plan in enumerate(array(number)):
            yield f"covering array {number}, plan {n}", pipeline(plan)


# ---- digests --------------------------------------------------------------------------------
def plain(text: str) -> str:
    """Return PTX or SASS without what varies between compiles: comments, and mangled names.

    Mangled names contain serial numbers and modules. They are replaced by F0, F1 and so on, in
    order of appearance, and so is the kernel's own name.
    """
    if entry := re.search(r"\.(?:entry|text\.)\s*(\w+)", text):
        text = re.sub(rf"\b{entry[1]}(?=(?:_param_\d+)?\b)", "_ZNentry", text)
    names: dict[str, str] = {}
    return re.sub(
        r"_ZN\w+?(?=(?:_param_\d+)?\b)",
        lambda found: names.setdefault(found[0], f"F{len(names)}"),
        re.sub(r"[ \t]*//.*", "", text),
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HEX]


def compiled(name: str) -> tuple[str, Texts]:
    """Return a case's name and its texts as they are compared; no texts if there is no such
    case."""
    for known, made in cases():
        if known == name:
            inspect = made()
            return name, {kind: plain(inspect(kind)) for kind in KINDS}
    return name, {}


def compiled_all(names: Collection[str], processes: int) -> Iterator[tuple[str, Texts]]:
    """Yield the texts of these cases as they are compiled."""
    if processes < 2 or len(names) < 2:
        yield from map(compiled, names)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(compiled, names, chunksize=1)


def toolchain() -> dict[str, str | None]:
    """Return the versions of the code generator and disassembler; None for parts of a CUDA
    toolkit."""
    found: dict[str, str | None] = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in (
        "numba-cuda",
        "numba",
        "llvmlite",
        "nvidia-nvvm",
        "nvidia-nvjitlink",
        "nvidia-cuda-nvdisasm",
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def keep(folder: Path, name: str, texts: Texts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, text in texts.items():
        (folder / f"{name}.{kind}").write_text(text, encoding="utf8")


# ---- the command ---------------------------------------------------------------------------------
def record(
    file: Path, names: Collection[str], processes: int = 1, folder: Path | None = None
) -> None:
    """Write the digests of the PTX and the SASS of these cases, one line per case.

    Other cases in the file are kept if their toolchain is the same.
    """
    known = json.loads(file.read_text(encoding="utf8")) if file.exists() else {}
    found: dict[str, str] = known["cases"] if known.get("toolchain") == toolchain() else {}
    for name, texts in compiled_all(names, processes):
        found[name] = " ".join(digest(texts[kind]) for kind in KINDS)
        if folder is not None:
            keep(folder, name, texts)
    known = {
        "toolchain": toolchain(),
        "cases": {name: found[name] for name, _ in cases() if name in found},
    }
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf8")
    print(f"{len(names)} cases recorded")


def compare(
    file: Path, names: Collection[str], processes: int = 1, folder: Path | None = None
) -> list[str]:
    """Print and return the names of the cases that differ from the file."""
    known, differ = json.loads(file.read_text(encoding="utf8")), []
    if known["toolchain"] != (here := toolchain()):
        print(f"recorded with {known['toolchain']}\nhere are      {here}")
    for name, texts in compiled_all(names, processes):
        was = dict(zip(KINDS, known["cases"].get(name, "").split(), strict=False))
        other = [
            kind.upper() for kind in KINDS if was and texts and was[kind] != digest(texts[kind])
        ]
        what = (
            "recorded, and no case any more"
            if not texts
            else "not recorded"
            if not was
            else " and ".join(other)
        )
        if not what:
            continue
        differ.append(name)
        print(f"{name}: {what}{' differ' + 's' * (len(other) == 1) if other else ''}", flush=True)
        if folder is not None:
            keep(folder, name, texts)
    print(f"{len(differ)} of {len(names)} cases differ")
    return differ


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path, nargs="?", default=RECORDED, help="default: %(default)s")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="of a case's name; may be repeated",
    )
    parser.add_argument(
        "--processes", type=int, default=2, help="that compile at once (default: %(default)s)"
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FOLDER",
        help="where to keep texts: all, or those that differ",
    )
    options = parser.parse_args(arguments)
    recorded = (
        json.loads(options.file.read_text(encoding="utf8"))["cases"]
        if options.what == "compare"
        else {}
    )
    names = [
        name
        for name in dict.fromkeys([*(name for name, _ in cases()), *recorded])
        if not options.only or any(part in name for part in options.only)
    ]
    if not names:
        parser.error(f"no case's name holds any of {options.only}")
    command = record if options.what == "record" else compare
    return 1 if command(options.file, names, options.processes, options.texts) else 0


if __name__ == "__main__":
    sys.exit(main())
