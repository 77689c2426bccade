"""A matrix product with everything that makes it fast said in a Config: tile, slots, staging, schedule, order of tiles.

    python examples/gemm_tuned.py                                    every config, on the GPU if there is one, else simulated
    python examples/gemm_tuned.py --shape 8192,8192,512 --config "ping-pong 128x192"
    python examples/gemm_tuned.py --shape 4096,14336,4096 --tune     measure all, remember the fastest on disk
    python examples/gemm_tuned.py --target sim --shape 300,200,136 --dtype bf16

One kernel source for both schedules. Cooperative: the two compute warpgroups of a CTA have half the rows of its tile each.
Ping-pong: they take turns on whole tiles, and one stores its tile while the other multiplies.

On a GPU: speed of each config and of cuBLAS, in turn under load, and the error against float64. Simulated: the error.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import numpipe
from epilogues import ACTIVATIONS
from gemm import DTYPES, Shape, inputs, measure, relative_error, shape_of, spell
from numpipe import BlockSpec, CompilerParams, SpecError, Workspace, bench, cdiv, ds, launch, model, orders

GPU_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (8192, 8192, 512), (1024, 4096, 4096))
SIM_SHAPES = ((256, 256, 256), (200, 392, 72))


@dataclass(frozen=True)
class Config:
    """How the product is cut and scheduled. Sizes are in elements.

    tm, tn    tile of the output: a CTA's (cooperative), or a compute warpgroup's (ping-pong)
    tk        depth of a step
    slots     steps in shared memory at once; None: as many as fit beside the staging panels
    schedule  "cooperative" or "pingpong"
    panels    staging panels (64 x 64 elements, 8 KB) of a compute warpgroup for tiles on their way out, 1…8; None: up to a tile's
    group     rows of tiles that share blocks of b in L2: 1000 to 2000 rows of the output
    policy    what L2 does with the output's lines; "evict_first" leaves room for inputs
    cluster   CTAs of a cluster, along M: each loads a share of the blocks of b for all of them; with split="cluster" along K
    wgs       compute warpgroups
    skinny    the tile's rows lie along the longer side of the output: where that is wider than tall, its transpose is computed
    split     parts of the steps of a tile; "stream": those of all tiles are shared out evenly; "cluster": a part for each CTA of it
    dynamic   CTAs take tiles from a counter, so that quicker ones compute more
    """

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int | None = 3
    schedule: str = "cooperative"
    panels: int | None = None
    group: int = 16
    policy: str | None = None
    cluster: int = 1
    wgs: int = 2
    skinny: bool = False
    split: int | str | None = None
    dynamic: bool = False

    @property
    def share(self) -> int:
        """Columns of a tile that a CTA stores."""
        return self.tn // (self.cluster if self.split == "cluster" else 1)

    @property
    def strip(self) -> int:
        """Columns of a tile that an epilogue computes at a time."""
        return min(self.share, 64)

    @property
    def fuses(self) -> bool:
        """Whether accumulators leave registers for an epilogue's arrays and functions; with more than 128 a lane it is slow."""
        return self.tm // (self.wgs if self.schedule == "cooperative" else 1) * self.tn <= 128 * 128

    @property
    def depth(self) -> int:
        """The slots of the ring, for 16-bit types."""
        sums = 4 * self.tm * (self.tn - self.share) * (self.wgs if self.schedule == "pingpong" else 1)
        return self.slots or numpipe.fit_slots(((self.tm, self.tk), np.float16), ((self.tn, self.tk), np.float16), other_bytes=sums,
                                               store_slots=self.panels or 1, num_compute_wgs=self.wgs)


CONFIGS = {
    "cooperative 128x256": Config(group=12, policy="evict_first"),
    "ping-pong 64x256": Config(64, 256, slots=5, schedule="pingpong", panels=1, group=32, policy="evict_first"),
    "ping-pong 128x192": Config(128, 192, slots=4, schedule="pingpong", panels=2, policy="evict_first"),
    "ping-pong 128x128": Config(128, 128, slots=5, schedule="pingpong", panels=4, policy="evict_first"),
    "cooperative 128x256 cluster 2": Config(slots=4, panels=2, policy="evict_first", cluster=2),
    "cooperative 128x128": Config(128, 128, slots=6, panels=2, group=4, policy="evict_first"),
    "cooperative 128x128 split 2 in a cluster": Config(128, 128, slots=5, panels=1, group=4, split="cluster", cluster=2),
    "cooperative 128x64": Config(128, 64, 128, slots=4, panels=1, group=1, policy="evict_first"),
    "skinny 64x16": Config(64, 16, 128, slots=10, panels=1, wgs=1, skinny=True),
    "skinny 64x32": Config(64, 32, 128, slots=9, panels=1, wgs=1, skinny=True),
    "skinny 64x64": Config(64, 64, slots=13, panels=1, wgs=1, skinny=True),
    "skinny 128x64 split 2 in a cluster": Config(128, 64, slots=8, panels=1, split="cluster", cluster=2, skinny=True),
}
"""What each is good for: many steps, and the least power; few steps; large products; equal sides; rows that L2 serves badly; one
tile an SM; 128 rows (two); up to 16, 32 and 64 rows or columns (two), where reading the other operand takes all the time."""


@dataclass(frozen=True)
class Form:
    """What a product is made of, beside its config.

    a, b        dimensions of the operands as they lie in memory: "bkm" is a batch of column-major a
    alpha       whether it is scaled
    source      whether beta times an array of its shape is added
    bias        dimensions of what is added to each row, "n", or to each column, "m1"; "" for nothing
    activation  function of the sum, a `numpipe.function` of a float32 tile
    """

    a: str = "mk"
    b: str = "nk"
    alpha: bool = False
    source: bool = False
    bias: str = ""
    activation: Callable[..., Any] | None = None

    @property
    def c(self) -> str:
        return "bmn" if "b" in self.a + self.b else "mn"

    @property
    def without(self) -> tuple[str, ...]:
        """The kernel's parameters that this product has not."""
        has = {"source": self.source, "bias": self.bias, "alpha": self.alpha, "beta": self.source}
        return tuple(name for name, there in has.items() if not there)

    @property
    def signature(self) -> str:
        inputs = [self.a, self.b, *[self.c] * self.source, *[self.bias] * bool(self.bias)]
        return "->".join(",".join(f"({','.join(dims)})" for dims in group) for group in (inputs, [self.c]))

    def output(self, a: Any, b: Any) -> numpipe.ArrayType:
        sizes = dict(zip(self.b + self.a, (*b.shape, *a.shape), strict=True))
        return numpipe.ArrayType(tuple(sizes[dim] for dim in self.c), a.dtype)

    @property
    def turned(self) -> Form:
        """Of the transpose of c, which is b @ a.T."""
        other = str.maketrans("mn", "nm")
        return replace(self, a=self.b.translate(other), b=self.a.translate(other), bias=self.bias.translate(other))


@functools.cache
def kernel(cfg: Config, form: Form = Form()) -> numpipe.Kernel:
    """The kernel for a config and a form."""
    axis, shared = ("cluster", None) if cfg.split == "cluster" else (None, "cluster")  # of what CTAs sum up, and load, together
    ctas, deep = 1 if axis else cfg.cluster, form.a.index("k")  # of a cluster, along M; the dimension of a along which is summed

    @numpipe.kernel(
        out_type=lambda a, b: form.output(a, b), signature=form.signature, without=form.without,
        grid=numpipe.persistent(), schedule=cfg.schedule, num_compute_wgs=cfg.wgs, wg_axis="wg", memory_registers=40,
        workspace=Workspace((cfg.tm, cfg.tn), cfg.split), cluster=cfg.cluster, cluster_names="cluster",
        compiler_params=CompilerParams(store_slots=cfg.panels or 0, store_eviction_policy=cfg.policy, approx_math=True))
    def matmul(a, b, source, bias, c, work, *, alpha, beta):
        """c = activation(alpha * a @ b.T + beta * source + bias), for a (M, K) and b (N, K) of a 16-bit type, summed in float32."""
        wg = numpipe.axis_index("wg")
        rows = cfg.tm // numpipe.axis_size("wg")  # those of this warpgroup: half the tile's, or all where it has the tile alone
        plane = 3 - c.ndim  # of a matrix there are no batches: the first of three indices is cut off
        m_tiles, n_tiles = cdiv(c.shape[1 - plane], cfg.tm * ctas), cdiv(c.shape[2 - plane], cfg.tn)  # of a cluster
        for i, above, n, part in numpipe.split_tiles(
                1 if plane else c.shape[0], m_tiles, n_tiles, steps=cdiv(a.shape[deep], cfg.tk), split=cfg.split, order="grouped",
                group=cdiv(cfg.group, ctas), dynamic=cfg.dynamic):
            m = above * ctas + (numpipe.axis_index("cluster") if axis is None else 0)
            acc = numpipe.zeros((rows, cfg.tn), np.float32)
            pipe = numpipe.pipeline(grid=(part.steps,), max_concurrent_steps=cfg.depth, in_specs=(
                BlockSpec((None, cfg.tk, cfg.tm), lambda k: (i, part.begin + k, m)) if form.a == "bkm" else
                BlockSpec((None, cfg.tm, cfg.tk)[3 - a.ndim:], lambda k: (i, m, part.begin + k)[3 - a.ndim:]),
                BlockSpec((None, cfg.tk, cfg.tn), lambda k: (i, part.begin + k, n), collective_axes=shared)
                if form.b == "bkn" else BlockSpec(
                    (None, cfg.tn, cfg.tk)[3 - b.ndim:], lambda k: (i, n, part.begin + k)[3 - b.ndim:], collective_axes=shared)))
            for _, (a_tile, b_tile) in pipe(a, b):
                a_rows = a_tile.T if form.a == "bkm" else a_tile
                acc = numpipe.wgmma(acc, a_rows.at[ds(wg * rows, rows), :], b_tile if form.b == "bkn" else b_tile.T)
            acc = numpipe.combine(acc, part, work, axis)
            if axis is None and part.begin > 0:
                continue  # the tile is stored by whoever has its first steps
            row, column = m * cfg.tm + wg * rows, n * cfg.tn + (0 if axis is None else numpipe.axis_index("cluster") * cfg.share)

            def finish(x, first):  # of some columns of the tile: all of them would not fit into registers beside a source
                if alpha is not None:
                    x = x * alpha
                if source is not None:
                    x = x + beta * source[(i, ds(row, rows), ds(column + first, cfg.strip))[plane:]].astype(np.float32)
                if form.bias in ("n", "n1"):
                    x = x + bias[(ds(column + first, cfg.strip), 0)[:bias.ndim]].astype(np.float32)
                if form.bias in ("m", "m1"):
                    x = x + bias[(ds(row, rows), 0)[:bias.ndim]].astype(np.float32)[:, None]
                if form.activation is not None:
                    x = form.activation(x)
                return x.astype(c.dtype)

            c[(i, ds(row, rows), ds(column, cfg.share))[plane:]] = numpipe.map_columns(finish, acc, cfg.strip)

    return matmul


@functools.lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, sms: int = model.H200.sms, batches: int = 1, fused: bool = False) -> Config:
    """The one of CONFIGS that the model (`numpipe.model.product`) predicts to be the fastest at these sizes, or within 1 % of that.

    fused  whether there is an epilogue beside alpha, for which not every config has the registers
    """
    if 0 in (m, n, k, batches):
        return next(iter(CONFIGS.values()))
    def predicted(cfg: Config) -> tuple[float, float, float]:
        """Seconds of all; those of the SMs, were memory quick; elements through shared memory, which costs power."""
        shape = (max(m, n), min(m, n), k) if cfg.skinny else (m, n, k)
        told = model.product(shape, batches=batches, tile=(cfg.tm, cfg.tn), depth=cfg.tk, slots=cfg.depth, schedule=cfg.schedule,
                             order=orders.Grouped(cfg.group), store_slots=cfg.panels or 1, num_compute_wgs=cfg.wgs, split=cfg.split,
                             cluster=cfg.cluster, aligned=2 * k % 128 == 0, device=replace(model.H200, sms=sms))
        return told.seconds, told.limits["longest SM"], cdiv(shape[0], cfg.tm) * cdiv(shape[1], cfg.tn) * (cfg.tm + cfg.tn)

    costs = {cfg: predicted(cfg) for cfg in CONFIGS.values() if cfg.fuses or not fused}
    for part in (0, 1):
        costs = {cfg: cost for cfg, cost in costs.items() if cost[part] <= 1.01 * min(each[part] for each in costs.values())}
    return min(costs, key=lambda cfg: costs[cfg][2])


def matmul(a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, bias: Any = None, activation: Any = None,
           out: Any = None, cfg: Config | None = None, **options: Any) -> Any:
    """``activation(alpha * a @ b.T + beta * c + bias)`` for a and b of a 16-bit type; `options`: ``target=``, ``stream=``.

    a           (M, K), or a batch (B, M, K)
    b           (N, K), or a batch (B, N, K); what is no batch beside one that is belongs to each of its matrices
    c           of the result's shape; not read where beta is 0; out=c overwrites it
    bias        (N,), added to each row, or (M, 1), to each column
    activation  "relu", "silu", "gelu", or a `numpipe.function` of a float32 tile, of any shape
    out         (M, N), or (B, M, N): where the result goes; else it is allocated
    cfg         by default the one that the model chooses; `numpipe.autotune(kernel, CONFIGS, a, b)` measures

    Matrices may be row- or column-major: pass ``b.T`` for a b (K, N). Raises SpecError for shapes that do not fit.
    """
    if isinstance(activation, str) and activation not in ACTIVATIONS:
        raise SpecError(f"matmul: activation is {', '.join(map(repr, ACTIVATIONS))} or a numpipe.function, got {activation!r}")
    batches, m, n, k = _sizes(*[_shape(array) for array in (a, b, c, out, bias)])
    (a, a_dims), (b, b_dims) = _laid(a, "mk"), _laid(b, "nk")
    along = "" if bias is None else ("n", "m1")[len(_shape(bias)) - 1]
    form = _form(a_dims, b_dims, alpha != 1, c is not None and beta != 0, along, ACTIVATIONS.get(activation, activation))
    if cfg is None:
        device = launch.gpu_state().device
        fused = form.source or along != "" or activation is not None
        cfg = choose(m, n, k, device.sm_count if device else model.H200.sms, batches or 1, fused)
    options |= {"alpha": float(alpha)} if form.alpha else {}
    options |= {"beta": float(beta)} if form.source else {}
    turn = m < n if cfg.skinny else out is not None and _by_columns(out)
    if not turn or not all(hasattr(array, "T") for array in (c, out) if array is not None):
        return kernel(cfg, form)(a, b, *[c] * form.source, *[bias] * bool(along), out=out, **options)
    arrays = (b, a, *([_turned(c)] if form.source else []), *[bias] * bool(along))
    if out is None and launch.library(type(a)) == "jax":  # whose arrays have no views
        return _turned(kernel(cfg, form.turned)(*arrays, **options))
    if out is None:
        info, handle = launch.describe(a, "a"), None if options.get("stream") is None else launch.as_stream(options["stream"])
        out = launch.empty_like_kind(info, (*[batches] * bool(batches), m, n), info.dtype, handle)
    kernel(cfg, form.turned)(*arrays, out=_turned(out), **options)
    return out


_form = functools.cache(Form)  # a call takes the GPU's queue some microseconds: what it depends on is looked up


def _shape(array: Any) -> Any:
    return None if array is None else array.shape if hasattr(array, "shape") else launch.describe(array, "array", "matmul").shape


@functools.lru_cache(maxsize=1024)
def _sizes(a: tuple[int, ...], b: tuple[int, ...], c: Any, out: Any, bias: Any) -> tuple[int, int, int, int]:
    """(batches, or 0, M, N, K) of arrays of these shapes; SpecError where they do not fit."""
    for name, shape in (("a", a), ("b", b)):
        if len(shape) not in (2, 3):
            raise SpecError(f"matmul: '{name}' must have 2 dimensions, or 3 with batches, got shape {tuple(shape)}")
    if a[-1] != b[-1]:
        raise SpecError(f"matmul: K = {a[-1]} in 'a' {tuple(a)}, {b[-1]} in 'b' {tuple(b)}; pass b.T of a b (K, N)")
    if len(a) == len(b) == 3 and a[0] != b[0]:
        raise SpecError(f"matmul: 'a' {tuple(a)} has {a[0]} batches, 'b' {tuple(b)} has {b[0]}")
    batch, m, n = tuple(a[:-2] or b[:-2]), a[-2], b[-2]
    for name, shape, *legal in (("c", c, (*batch, m, n)), ("out", out, (*batch, m, n)), ("bias", bias, (n,), (m, 1))):
        if shape is not None and shape not in legal:
            raise SpecError(f"matmul: '{name}' must be {' or '.join(map(str, legal))}, got {tuple(shape)}")
    return batch[0] if batch else 0, m, n, a[-1]


def _by_columns(array: Any) -> bool:
    """Whether the columns of a matrix, or of a batch's, are contiguous and the rows are not."""
    info = launch.describe(array, "array")
    return info.strides[-2] == info.dtype.itemsize < info.strides[-1]


def _turned(array: Any) -> Any:
    """Each matrix transposed: views, but for JAX."""
    return array.T if len(array.shape) == 2 else array.swapaxes(-1, -2)


def _laid(array: Any, dims: str) -> tuple[Any, str]:
    """A matrix as it is; of a batch the view whose last dimension is contiguous, as TMA takes it. And the dimensions."""
    if len(_shape(array)) == 2:
        return array, dims
    turn = hasattr(array, "swapaxes") and _by_columns(array)
    return (_turned(array), f"b{dims[::-1]}") if turn else (array, f"b{dims}")


# ---- running it
def sweep(shapes: list[Shape], dtype: np.dtype, configs: dict[str, Config], target: str) -> None:
    """The error of each config at each shape, a line each; on a GPU its speed too."""
    on_gpu = target == "gpu"
    cublas = bench.cublas() if on_gpu else None
    products = {name: lambda a, b, out, cfg=cfg: matmul(a, b, out=out, cfg=cfg) for name, cfg in configs.items()}
    print(f"\n{'M,N,K':>16}  {'config':<22} {'error':>7}" + f"  {'speed':>12}  ratio" * on_gpu)
    for shape in shapes:
        a, b = inputs(shape, dtype)
        sample = measure(a, b, products, cublas) if on_gpu else None
        for name in sample.times if sample else configs:
            error = f"{relative_error(a, b, matmul(a, b, cfg=configs[name], target=target)):>7.1e}" if name in configs else ""
            speed = f"  {2e-12 * np.prod(shape) / sample.seconds(name):>5.0f} TFLOPS  {sample.ratio(name):>5.2f}" if sample else ""
            chosen = "  <- chosen" if configs.get(name) == choose(*shape) else ""
            print(f"{spell(shape):>16}  {name:<22} {error:>7}{speed}{chosen}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("sim", "gpu"), help="default: the GPU if there is one")
    parser.add_argument("--shape", type=shape_of, action="append", metavar="M,N,K", help="may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of a, b and c (default: %(default)s)")
    parser.add_argument("--config", choices=CONFIGS, action="append", help="may be repeated (default: all)")
    parser.add_argument("--tune", action="store_true", help="on a GPU: numpipe.autotune over the configs, at each shape")
    options = parser.parse_args()

    configs = {name: CONFIGS[name] for name in options.config or CONFIGS}
    choice = launch.choose_target(options.target)
    print(f"target: {choice.target} ({choice.why})")
    if options.tune:
        for shape in options.shape or GPU_SHAPES:
            print(f"{spell(shape)}: {numpipe.autotune(kernel, configs, *inputs(shape, DTYPES[options.dtype]))}", flush=True)
    else:
        shapes = options.shape or list(GPU_SHAPES if choice.target == "gpu" else SIM_SHAPES)
        sweep(shapes, DTYPES[options.dtype], configs, choice.target)


if __name__ == "__main__":
    try:
        main()
    except numpipe.NumpipeError as error:
        sys.exit(f"error: {error}")
