"""Test numpipe.ops.matmul with random memory layouts of its operands, against the product in
float64.

    cd examples/benchmarks
    # arrays of PyTorch and CuPy, on the GPU
    python random_layouts.py --count 1000
    # one of them again
    python random_layouts.py --seed 7 --only 412
    # simulated; no GPU is needed
    python random_layouts.py --library numpy --count 20 --most 40

Each number of a seed is a product: of vectors, matrices or batches that broadcast, in one of the
16-bit types, sometimes with alpha, c, bias and an output array. Each array is a view of memory that
is filled with NaN: its dimensions may be in any order, start at any element, run forwards or (not
in PyTorch) backwards, in steps of 1 to 3, or not at all (broadcast). A result is right if no
element is off by more than one rounding of its type plus the error of float32 sums, and nothing
outside it was written. The exit status is 1 if any is wrong or refused.
"""

from __future__ import annotations

import importlib
import math
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# limits the threads of each of the many processes that compute exact results with NumPy
os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")

import harness
import numpy as np

from numpipe import ops

LIBRARIES = ("torch", "cupy", "numpy")
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""largest relative error of one rounding"""
PATIENCE, TOLD = 180, 30


@dataclass(frozen=True)
class Layout:
    """An array as a view of memory.

    shape   its sizes, as the caller of the op sees them
    order   its dimensions in memory order, the innermost last
    steps   distance of neighbors in a dimension, in elements; 0: broadcast; negative: reversed
    around  (before, after): elements in each dimension that belong to the memory but not to the
            array
    offset  elements of the memory before the array
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    steps: tuple[int, ...]
    around: tuple[tuple[int, int], ...]
    offset: int

    @property
    def sizes(self) -> list[int]:
        """Sizes of the memory's dimensions, in the array's order."""
        return [
            before + (1 if step == 0 else (size - 1) * abs(step) + 1 if size else 0) + behind
            for size, step, (before, behind) in zip(
                self.shape, self.steps, self.around, strict=True
            )
        ]

    def window(self, flat: Any, sized: bool = True) -> Any:
        """Return the array as a view of one-dimensional memory. If not `sized`, broadcast
        dimensions have size 1."""
        sizes = self.sizes
        stored = flat[self.offset : self.offset + math.prod(sizes)].reshape(
            [sizes[dim] for dim in self.order]
        )
        inverse = [self.order.index(dim) for dim in range(len(sizes))]
        turned = (
            stored.permute(inverse) if hasattr(stored, "permute") else stored.transpose(inverse)
        )
        cut = turned[tuple(self._slice(dim, size) for dim, size in enumerate(sizes))]
        if not sized or 0 not in self.steps:
            return cut
        return (
            cut.expand(self.shape)
            if hasattr(cut, "expand")
            else _module(cut).broadcast_to(cut, self.shape)
        )

    def _slice(self, dim: int, size: int) -> slice:
        step, (before, behind) = self.steps[dim] or 1, self.around[dim]
        if step > 0:
            return slice(before, size - behind, step)
        return (
            slice(size - behind - 1, before - 1 if before else None, step)
            if self.shape[dim]
            else slice(0, 0)
        )

    @property
    def memory(self) -> int:
        """Number of elements of the memory."""
        return self.offset + math.prod(self.sizes) + 8


@dataclass(frozen=True)
class Product:
    """One random product: the layouts of its arrays by name, and its epilogue."""

    dtype: str
    library: str
    layouts: dict[str, Layout]
    alpha: float = 1.0
    beta: float = 1.0


def layout(
    draw: random.Random, shape: tuple[int, ...], *, written: bool = False, backwards: bool = True
) -> Layout:
    """Return a random layout; in an array that is written, no two elements overlap."""
    order = list(range(len(shape)))
    if draw.random() < 0.5:
        draw.shuffle(order)
    steps, around = [], []
    for _ in shape:
        step = 1 if draw.random() < 0.7 else draw.choice([1, 2, 3])
        step *= -1 if backwards and draw.random() < 0.15 else 1
        steps.append(0 if not written and draw.random() < 0.06 else step)
        around.append((draw.choice([0, 0, 1, 3, 8]), draw.choice([0, 0, 1, 5, 8])))
    if draw.random() < 0.25:  # contiguous
        order, steps, around = sorted(order), [1] * len(shape), [(0, 0)] * len(shape)
    return Layout(
        shape, tuple(order), tuple(steps), tuple(around), draw.choice([0, 0, 0, 1, 2, 3, 7, 8, 16])
    )


def product(seed: int, number: int, library: str, most: int) -> Product:
    """Return the product of this number, with sides of at most `most` elements."""
    draw = random.Random(f"{seed} {number}")
    if library == "both":
        library = "cupy" if draw.random() < 0.4 else "torch"
    side = lambda: min(
        most, round(math.exp(draw.uniform(0, math.log(draw.choice([24, 200, most]) + 1))))
    )
    m, n, k = side(), side(), side()
    batch = draw.choice([(), (), (), (3,), (2, 3)])
    part = lambda: tuple(draw.choice([size, size, 1]) for size in batch)[
        draw.choice([0, 0, len(batch)]) :
    ]
    first, second = part(), part()
    a, b = (*first, m, k), (*second, k, n)
    if draw.random() < 0.05:
        a = (k,)
    elif draw.random() < 0.05:
        b = (k,)
    result = (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *b[-1:] * (len(b) > 1))
    backwards = library != "torch"
    layouts = {"a": layout(draw, a, backwards=backwards), "b": layout(draw, b, backwards=backwards)}
    alpha = beta = 1.0
    if draw.random() < 0.3:
        alpha, beta = draw.choice([1.0, 0.5]), draw.choice([1.0, -2.0])
        layouts["c"] = layout(draw, result, backwards=backwards)
    if draw.random() < 0.3 and len(a) > 1 and len(b) > 1:
        layouts["bias"] = layout(draw, draw.choice([(n,), (m, 1)]), backwards=backwards)
    if draw.random() < 0.4 and result:
        layouts["out"] = layout(draw, result, written=True, backwards=backwards)
    # CuPy has no bfloat16
    dtype = "float16" if library == "cupy" else draw.choice(["float16", "bfloat16"])
    return Product(dtype, library, layouts, alpha, beta)


# ---- arrays of a library
def _module(array: Any) -> Any:
    return importlib.import_module(type(array).__module__.partition(".")[0])


def filled(one: Product, name: str, seed: int) -> tuple[Any, Any]:
    """Return (memory, array), filled with NaN except for the array's elements, which are random
    normal numbers unless it is the output."""
    rng, spec = np.random.default_rng(seed), one.layouts[name]
    dtype = (
        np.dtype(np.float16)
        if one.dtype == "float16"
        else np.dtype(__import__("ml_dtypes").bfloat16)
    )
    host = np.full(spec.memory, math.nan, dtype)
    if name != "out":
        window = spec.window(host, sized=False)
        window[...] = rng.standard_normal(window.shape)
    if one.library == "numpy":
        flat: Any = host
    elif one.library == "cupy":
        import cupy

        flat = cupy.asarray(host)
    else:
        import torch

        flat = torch.from_numpy(host.view(np.int16)).cuda().view(getattr(torch, one.dtype))
    return flat, spec.window(flat)


def doubled(array: Any) -> np.ndarray:
    """Return an array on the host, in float64."""
    if hasattr(array, "double"):
        return np.asarray(array.double().cpu().numpy())
    return np.asarray(array.get() if hasattr(array, "get") else array).astype(np.float64)


def check(case: harness.Case) -> None:
    """Compute one product. Raises AssertionError if it is wrong."""
    one = product(case["seed"], case["number"], case["library"], case["most"])
    arrays = {
        name: filled(one, name, 1000 * case["number"] + place)
        for place, name in enumerate(one.layouts)
    }
    given = {name: array for name, (_, array) in arrays.items()}
    target = {"target": "sim"} if one.library == "numpy" else {}
    found = ops.matmul(
        given["a"],
        given["b"],
        given.get("c"),
        alpha=one.alpha,
        beta=one.beta,
        bias=given.get("bias"),
        out=given.get("out"),
        **target,
    )
    exact = one.alpha * (doubled(given["a"]) @ doubled(given["b"]))
    exact = (
        exact
        + (one.beta * doubled(given["c"]) if "c" in given else 0)
        + (doubled(given["bias"]) if "bias" in given else 0)
    )
    wrong = difference(
        doubled(found), np.asarray(exact), ROUNDING[one.dtype], one.layouts["a"].shape[-1]
    )
    if "out" in arrays:
        memory = doubled(arrays["out"][0])
        inside = np.zeros(memory.shape, bool)
        one.layouts["out"].window(inside)[...] = True
        if found is not given["out"]:
            wrong = wrong or "the result is not the output that was given"
        if not np.isnan(memory[~inside]).all():
            wrong = wrong or (
                f"{int((~np.isnan(memory[~inside])).sum())} elements outside the output were "
                "written"
            )
    if wrong:
        raise AssertionError(f"{wrong}: {asdict(one)}")


def difference(found: np.ndarray, exact: np.ndarray, rounding: float, depth: int) -> str:
    """Return what is wrong with a result, or "" if it is right."""
    if found.shape != exact.shape:
        return f"the shape {found.shape}, not {exact.shape}"
    if not exact.size:
        return ""
    off = np.abs(found - exact)
    scale = max(float(np.sqrt(np.mean(exact**2))), math.sqrt(depth) * 1e-3)
    sums = 2.0**-22 * math.sqrt(max(depth, 1)) * scale * 8  # error of float32 sums
    far = ~(off <= rounding * np.abs(exact) * 1.05 + sums + rounding * 1e-2 * scale)
    if far.any():
        at = tuple(int(i) for i in np.argwhere(far)[0])
        return (
            f"{int(far.sum())} of {far.size} elements are off, first {at}: {found[at]!r}, not "
            f"{exact[at]!r}"
        )
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = harness.script(__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="default: drawn from the system")
    parser.add_argument("--only", type=int, help="only the product of this number, in this process")
    parser.add_argument(
        "--library",
        choices=(*LIBRARIES, "both"),
        default="both",
        help="both: torch and CuPy, on the GPU",
    )
    parser.add_argument(
        "--most", type=int, default=1100, help="elements of a side (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, help="processes (default: one for each CPU)")
    parser.add_argument("--out", type=Path, help="a file for the wrong results")
    options = parser.parse_args(arguments)
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    case = {"seed": seed, "library": options.library, "most": options.most}
    if options.only is not None:
        print(asdict(product(seed, options.only, options.library, options.most)))
        check(case | {"number": options.only})
        print("right")
        return 0
    begun = time.monotonic()
    cases = [case | {"number": number} for number in range(options.count)]
    wrong = harness.spread(check, cases, workers=options.workers, patience=PATIENCE)
    for one, why in wrong[:TOLD]:
        print(f"number {one['number']}: {why[:400]}")
    if len(wrong) > TOLD:
        print(f"and {len(wrong) - TOLD} more")
    refused = sum(not why.startswith("AssertionError") for _, why in wrong)
    print(
        f"{options.count} layouts: {len(wrong) - refused} wrong, {refused} refused, "
        f"{time.monotonic() - begun:.0f} s"
    )
    found = [{"number": one["number"], "why": why} for one, why in wrong]
    record = {"benchmark": "random_layouts", **case, "count": options.count, "wrong": found}
    harness.write(options.out, record)
    return int(bool(wrong))


if __name__ == "__main__":
    harness.run(main)
