"""``matmul(a, b)``: NumPy's a @ b on the tensor cores, for any shapes and strides, with a fused
epilogue (scaling, bias, activation).

A CTA computes output tiles one after another. Its memory warpgroup loads blocks of `a` and `b` into
a ring of slots in shared memory; its compute warpgroups multiply them and accumulate in float32
registers. The kernel has two schedules:

=============  =====================================================================================
cooperative    the compute warpgroups of a CTA share a tile, each computing some of its rows; needs
               the fewest bytes per product
ping-pong      each warpgroup has its own tile, and they alternate: one stores its tile while the
               other multiplies
=============  =====================================================================================

If there are too few tiles to occupy the SMs, or K is too long, tiles are split along K
(`split_tiles`). If the output has few rows, tiles span its longer side. A frozen `Config`
(`choice`) describes the tiling, and `choose` selects one for the given sizes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import launch
from ..arch.dimensions import Ints, Names
from ..arch.target import LINE
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..diagnostics.argument_checks import FLAG, NONE, finite
from ..diagnostics.argument_checks import a as a_kind
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.grid.partials import combine
from ..language.grid.split_k import split_tiles
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.mma import wgmma
from ..language.tiles.refs import ds
from ..language.tiles.strips import map_columns
from ..language.tiles.tile import zeros
from ..launch.array_info import ArrayInfo
from ..launch.windows import broadcast, broadcast_shape, merged, strided, transposed
from ..plan.context import axis_index, axis_size
from ..plan.params import CompilerParams
from ..plan.specs import ArrayType, BlockSpec, Workspace, persistent
from .activations import ACTIVATION, ACTIVATIONS
from .choice.gpu import gpu_of
from .choice.ranking import choose
from .choice.ways import Config
from .declaration import Operand, op
from .op_outputs import Place, allocated
from .operands import as_matrices, copied, laid, move, stacked

NOMINAL = 512
"""number of rows for which the config of a batch-invariant product is chosen"""
TYPES = ("float16", "bfloat16")
ADDED = (*TYPES, "float32")
"""element types of `c` and `bias`"""


@dataclass(frozen=True)
class Form:
    """The parts of a product other than its config.

    a, b        dimension order of each operand in memory: "mk" or "km", "nk" or "kn", with a
                leading "b" for a batch
    alpha       whether the product is scaled
    source      whether beta times an array of the result's shape is added
    bias        dimensions of the bias: "n" is added to each row, "m1" to each column, "" means none
    activation  a `numpipe.function` applied to the float32 tile, or None
    """

    a: str = "mk"
    b: str = "nk"
    alpha: bool = False
    source: bool = False
    bias: str = ""
    activation: Callable | None = None

    @property
    def c(self) -> str:
        return "bmn" if "b" in self.a + self.b else "mn"

    @property
    def without(self) -> Names:
        """Kernel parameters that this form does not use."""
        has = {"source": self.source, "bias": self.bias, "alpha": self.alpha, "beta": self.source}
        return tuple(name for name, there in has.items() if not there)

    @property
    def signature(self) -> str:
        inputs = [self.a, self.b, *[self.c] * self.source, *[self.bias] * bool(self.bias)]
        return "->".join(
            ",".join(f"({','.join(dims)})" for dims in group) for group in (inputs, [self.c])
        )

    def output(self, a: Any, b: Any) -> ArrayType:
        sizes = dict(zip(self.b + self.a, (*b.shape, *a.shape), strict=True))
        return ArrayType(tuple(sizes[dim] for dim in self.c), a.dtype)

    @property
    def turned(self) -> Form:
        """The form that computes the transpose of c, b @ a.T."""
        other = str.maketrans("mn", "nm")
        return replace(
            self,
            a=self.b.translate(other),
            b=self.a.translate(other),
            bias=self.bias.translate(other),
        )


@function
def by_rows(i, row, k):  # type: ignore[no-untyped-def]
    return i, row, k


@function
def by_columns(i, row, k):  # type: ignore[no-untyped-def]
    return i, k, row


@functools.cache
def kernel(config: Config, form: Form = Form()) -> Kernel:
    """Return the kernel for a config and a form."""
    # the cluster axis along which CTAs sum partial products, and the one along which they share b
    axis, share = ("k", None) if config.split == "cluster" else (None, "m")
    # CTAs of a cluster along M and along N; those along N share a
    above, beside = 1 if axis else config.cluster, config.across
    loads = "evict_first" if config.once else None  # the eviction policy of both operands
    deep = form.a.index("k")  # the dimension of a that is summed over
    a_turned, b_turned = form.a.endswith("km"), form.b.endswith("kn")
    a_place, b_place = (by_columns if turned else by_rows for turned in (a_turned, b_turned))
    a_block, b_block = a_place(None, config.tm, config.tk), b_place(None, config.tn, config.tk)

    @numpipe_kernel(
        out_type=lambda a, b: form.output(a, b),
        signature=form.signature,
        without=form.without,
        grid=persistent(),
        schedule=config.schedule,
        num_compute_wgs=config.wgs,
        wg_axis="wg",
        memory_registers=40 if config.wgs < 3 else 32,
        workspace=Workspace((config.tm, config.tn), axis or config.split),
        cluster=(config.cluster, config.across),
        cluster_names=(axis or "m", "n"),
        compiler_params=CompilerParams(
            store_slots=config.panels or 0,
            store_eviction_policy=config.policy,
            approx_math=True,
            delay_release=config.delay,
        ),
    )
    def matmul(a, b, source, bias, c, work, *, alpha, beta):  # type: ignore[no-untyped-def]
        """Compute c = activation(alpha * a @ b.T + beta * source + bias) for a (M, K) and b (N, K)
        of a 16-bit type, summed in float32."""
        wg = axis_index("wg")
        # rows of this warpgroup: half of the tile's in the cooperative schedule, all in ping-pong
        rows = config.tm // axis_size("wg")
        # a matrix has no batch dimension: drop the first of the three indices
        plane = 3 - c.ndim
        # tiles of clusters
        m_tiles = cdiv(c.shape[1 - plane], config.tm * above)
        n_tiles = cdiv(c.shape[2 - plane], config.tn * beside)
        for i, y, x, part in split_tiles(  # type: ignore[call-arg, var-annotated]
            1 if plane else c.shape[0],
            m_tiles,
            n_tiles,
            steps=cdiv(a.shape[deep], config.tk),
            split=axis or config.split,
            order="grouped",
            group=cdiv(config.group, above),
            dynamic=config.dynamic,
        ):
            m = y * above + (axis_index("m") if axis is None else 0)
            n = x * beside + axis_index("n")
            acc = zeros((rows, config.tn), np.float32)
            pipe = pipeline(
                grid=(part.steps,),
                max_concurrent_steps=config.depth,
                in_specs=(
                    BlockSpec(
                        a_block[3 - a.ndim :],
                        lambda k: a_place(i, m, part.begin + k)[3 - a.ndim :],
                        collective_axes="n",
                        eviction_policy=loads,
                    ),
                    BlockSpec(
                        b_block[3 - b.ndim :],
                        lambda k: b_place(i, n, part.begin + k)[3 - b.ndim :],
                        collective_axes=share,
                        eviction_policy=loads,
                    ),
                ),
            )
            for _, (a_tile, b_tile) in pipe(a, b):
                a_rows = a_tile.T if a_turned else a_tile
                acc = wgmma(
                    acc, a_rows.at[ds(wg * rows, rows), :], b_tile if b_turned else b_tile.T
                )
            acc = combine(acc, part, work, axis)
            if axis is None and part.begin > 0:
                continue  # the CTA that has the tile's first steps stores it
            row = m * config.tm + wg * rows
            column = n * config.tn + (0 if axis is None else axis_index(axis) * config.share)

            # applied to a strip of columns: the whole tile and a source would not fit in registers
            def finish(x, first):
                if alpha is not None:
                    x = x * alpha
                if source is not None:
                    x = x + beta * source[
                        (i, ds(row, rows), ds(column + first, config.strip))[plane:]
                    ].astype(np.float32)
                if form.bias in ("n", "n1"):
                    x = x + bias[(ds(column + first, config.strip), 0)[: bias.ndim]].astype(
                        np.float32
                    )
                if form.bias in ("m", "m1"):
                    x = x + bias[(ds(row, rows), 0)[: bias.ndim]].astype(np.float32)[:, None]
                if form.activation is not None:
                    x = form.activation(x)
                return x.astype(c.dtype)

            c[(i, ds(row, rows), ds(column, config.share))[plane:]] = map_columns(
                finish, acc, config.strip
            )

    return matmul  # type: ignore[no-any-return]


def _result(a: Any, b: Any, c: Any, bias: Any, beta: float) -> ArrayType:
    """Return the shape and type of a product. Raises SpecError if the operands do not match."""
    c = c if beta else None
    shapes = [None if each is None else tuple(each.shape) for each in (a, b, c, bias)]
    try:
        found = product_sizes(*shapes)
    except TypeError:  # torch.compile's symbolic sizes are not hashable
        found = product_sizes.__wrapped__(*shapes)
    return ArrayType(found[-1], a.dtype)


def launch_product(
    a: ArrayInfo,
    b: ArrayInfo,
    out: ArrayInfo,
    place: Place,
    c: ArrayInfo | None = None,
    bias: ArrayInfo | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Any = None,
    batch_invariant: bool = False,
    config: Config | None = None,
) -> None:
    """Launch a product of operands with any layout."""
    batch, m, n, k, shape = product_sizes(a.shape, b.shape, None, None)
    vectors = [len(info.shape) == 1 for info in (a, b)]
    results = [
        as_matrices(broadcast(info, shape), vectors)
        for info in (out, c if beta else None)
        if info is not None
    ]
    left, right = as_matrices(a, (vectors[0], False)), as_matrices(b, (False, vectors[1]))
    along = "" if bias is None else ("n", "m1")[len(bias.shape) - 1]
    # one matrix b for all batches: fold the batches into the rows of a
    if batch and math.prod(right.shape[:-2]) == 1 and left.shape[:-2] == batch and along != "m1":
        folded = [merged(info, 1) for info in (left, *results)]
        if None not in folded:
            (left, *results), batch = folded, ()  # type: ignore[assignment]
            m, right = left.shape[0], strided(right, right.shape[-2:], right.strides[-2:])
    # operands that TMA can address
    matrices = laid("matmul", {"a": left, "b": right}, batch, place)
    (left, a_turned), (right, b_turned) = matrices
    views: list[Any] = [stacked(info, batch) for info in results]
    stored, *added = views
    size = results[0].dtype.itemsize
    made = None
    if stored is None or size not in stored.strides[-2:] or 0 in stored.strides:
        # TMA cannot store this layout: go through a contiguous matrix
        made = allocated(results[0], results[0].shape, place)
        stored = stacked(made, batch)
    sources = [copied(results[1], place) if info is None else info for info in added]
    activation = ACTIVATIONS.get(activation, activation)
    form = _form(
        "b" * (len(left.shape) == 3) + ("km" if a_turned else "mk"),
        "b" * (len(right.shape) == 3) + ("nk" if b_turned else "kn"),
        alpha != 1,
        bool(sources),
        along,
        activation,
    )
    arrays = [left, right, *sources, *([] if bias is None else [bias]), stored]
    across = [NOMINAL if batch_invariant else m, n]
    if stored.strides[-2] == size < stored.strides[-1]:  # store the transpose, by rows
        form, arrays = _transpose(form, arrays)
        across.reverse()
    if config is None:
        gpu = gpu_of(launch.gpu_state().device)
        fused = form.source or along != "" or activation is not None
        aligned = math.gcd(
            LINE, *(stride for operand in (left, right) for stride in operand.strides[:-1])
        )
        crosswise = form.a.endswith("km"), form.b.endswith("kn")
        config = choose(
            *across, k, gpu, math.prod(batch), fused, aligned, batch_invariant, crosswise
        )
    scalars: dict[str, Any] = {"alpha": float(alpha), "beta": float(beta)}
    options = {name: value for name, value in scalars.items() if name not in form.without}
    if config.turned:
        form, arrays = _transpose(form, arrays)
    kernel(config, form)(*arrays, **options, **place)
    if made is not None:
        move(made, results[0], place)


# ---- gradients and batches
def _gradient_of_a(
    xp: Any, a: Any, b: Any, grad_out: Any, alpha: float, batch_invariant: bool
) -> Any:
    rows, columns, whole = _matrices(a, b, grad_out)
    options = {"alpha": alpha, "batch_invariant": batch_invariant}
    if rows.ndim == 2 < columns.ndim:  # fold the batches into K to sum them in float32
        whole = xp.moveaxis(whole, -2, 0).reshape(rows.shape[-2], -1)
        columns = xp.swapaxes(columns, -1, -2).reshape(-1, a.shape[-1])
        grad = xp(matmul, whole, columns, **options)
    else:
        grad = xp(matmul, whole, xp.transposed(columns), **options)
    return grad if a.ndim > 1 else grad[..., 0, :]


def _gradient_of_b(
    xp: Any, a: Any, b: Any, grad_out: Any, alpha: float, batch_invariant: bool
) -> Any:
    rows, columns, whole = _matrices(a, b, grad_out)
    if columns.ndim == 2 < rows.ndim:  # fold the batches into K to sum them in float32
        rows, whole = rows.reshape(-1, rows.shape[-1]), whole.reshape(-1, whole.shape[-1])
    grad = xp(matmul, xp.transposed(rows), whole, alpha=alpha, batch_invariant=batch_invariant)
    return grad if b.ndim > 1 else grad[..., 0]


def _matrices(a: Any, b: Any, grad: Any) -> tuple[Any, Any, Any]:
    """Return a, b and the gradient, with vectors as matrices."""
    grad = grad if b.ndim > 1 else grad[..., None]
    return (
        a if a.ndim > 1 else a[None],
        b if b.ndim > 1 else b[:, None],
        grad if a.ndim > 1 else grad[..., None, :],
    )


def _unfused(
    xp: Any,
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    alpha: float,
    beta: float,
    activation: Any,
    batch_invariant: bool,
) -> Any:
    """Apply the activation to the stored product, because its derivative needs the value before the
    activation.

    This costs one more pass over memory and one more rounding, but saves recomputing the product in
    the backward pass.
    """
    if activation not in ACTIVATIONS:
        name = getattr(activation, "__qualname__", activation)
        raise SpecError(
            f"matmul: the activation {name} has no derivative here, but an argument requires a "
            f"gradient; fix: use {', '.join(map(repr, ACTIVATIONS))}, omit activation= and apply "
            "your library's operations to the result, or call it without gradients"
        )
    product = xp(
        matmul, a, b, c, bias=bias, alpha=alpha, beta=beta, batch_invariant=batch_invariant
    )
    return xp.activation(activation, product)


def _batched(
    xp: Any,
    batched: dict[str, bool],
    a: Any,
    b: Any,
    c: Any,
    bias: Any,
    alpha: float,
    beta: float,
    activation: Any,
    batch_invariant: bool,
) -> Any:
    """Return the product with an additional leading dimension. If c, bias or a vector has that
    dimension, c and bias are added after the product."""
    c = c if beta else None
    ranks = [x.ndim - batched[name] for name, x in (("a", a), ("b", b))]
    rank = max(2, *ranks)

    def front(name: str, x: Any, row: bool = False, column: bool = False) -> Any:
        """Return an array as matrices with as many dimensions as the product."""
        x = x[..., None] if column else x
        x = x[..., None, :] if row else x
        if not batched[name]:
            return x
        return x.reshape(x.shape[0], *[1] * (rank + 1 - x.ndim), *x.shape[1:])

    left, right = front("a", a, row=ranks[0] == 1), front("b", b, column=ranks[1] == 1)
    options = {"alpha": alpha, "batch_invariant": batch_invariant}
    if not (c is not None and batched["c"]) and not batched["bias"] and 1 not in ranks:
        added = {"c": c, "bias": bias, "beta": beta, "activation": activation}
        return xp(matmul, left, right, **added, **options)
    result = xp(matmul, left, right, **options)
    dtype = result.dtype
    if c is not None:
        result = result + beta * front("c", c, row=ranks[0] == 1, column=ranks[1] == 1)
    if bias is not None:
        result = result + front("bias", bias)
    if activation is not None:
        if activation not in ACTIVATIONS:
            name = getattr(activation, "__qualname__", activation)
            raise SpecError(
                f"matmul: under vmap the activation {name} cannot follow a mapped c or bias; "
                "fix: omit activation= and apply your library's operations to the result"
            )
        result = xp.activation(activation, result)
    result = xp.cast(result, dtype)
    result = result.squeeze(-1) if ranks[1] == 1 else result
    return result.squeeze(-1 if ranks[1] == 1 else -2) if ranks[0] == 1 else result


@op(
    operands={
        "a": "",
        "b": "",
        "c": Operand(types=ADDED),
        "bias": Operand(types=ADDED),
    },
    results={"out": _result},
    types=TYPES,
    launch=launch_product,
    checks={
        "alpha": finite(),
        "beta": finite(),
        "batch_invariant": FLAG,
        "activation": ACTIVATION,
        "config": a_kind(Config) | NONE,
    },
    gradients={
        "a": _gradient_of_a,
        "b": _gradient_of_b,
        "c": lambda grad_out, beta: grad_out if beta == 1 else beta * grad_out,
        "bias": lambda a, b, grad_out: _matrices(a, b, grad_out)[2],
    },
    composite=lambda activation: activation and _unfused,
    batching=_batched,
    operations=lambda a, out: 2.0 * math.prod(out.shape) * a.shape[-1],
)
def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Any = None,
    activation: str | Function | None = None,
    out: Any = None,
    batch_invariant: bool = False,
    config: Config | None = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return ``activation(alpha * a @ b + beta * c + bias)``, summed in float32, for float16 or
    bfloat16 arrays.

    a           (…, M, K), or a vector (K,), as for numpy.matmul
    b           (…, K, N), or (K,); leading dimensions are batches and broadcast
    c           an array that broadcasts to the result's shape; not read if beta is 0; out=c
                overwrites it
    bias        (N,), added to each row, or (M, 1), added to each column
    activation  "relu", "silu", "gelu" (the tanh approximation), or a `numpipe.function` of a
                float32 tile of any shape
    out         an array of the result's shape and type to write to; allocated by default
    batch_invariant
                if True, the config depends only on N and K, so that a row of the result has the
                same bits whatever M and the other rows are
    config      one of `numpipe.ops.configs`; by default the one that its `choose` returns
    target, stream
                as for any kernel

    Strides are arbitrary: an operand that TMA cannot address is copied once (see `numpipe.ops`).
    Results are deterministic, bit by bit. Raises SpecError if shapes do not match, for other
    element types, and for arrays of different types or on different devices.

    >>> a, b = np.ones((2, 3, 8), np.float16), np.ones((8, 5), np.float16)
    >>> matmul(a, b, bias=b[0], target="sim").shape
    (2, 3, 5)
    """


def _transpose(form: Form, arrays: list[ArrayInfo]) -> tuple[Form, list[ArrayInfo]]:
    """Return the form and the arrays of the transposed product."""
    a, b, *others = arrays
    bias = len(others) - 2 if form.bias else None
    return form.turned, [
        b,
        a,
        *(info if at == bias else transposed(info) for at, info in enumerate(others)),
    ]


# cached, because a call must not cost the host more than a few microseconds
_form = functools.cache(Form)


@functools.lru_cache(maxsize=1024)
def product_sizes(a: Ints, b: Ints, c: Any, bias: Any) -> tuple[Ints, int, int, int, Ints]:
    """Return (batches, M, N, K, result shape) for operands of these shapes. Raises SpecError if
    they do not match."""
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise SpecError(f"matmul: '{name}' is a number; fix: multiply with *, or pass alpha=")
    columns = b[-1:] if len(b) > 1 else ()
    m, n, k = a[-2] if len(a) > 1 else 1, columns[0] if columns else 1, a[-1]
    if k != (k_of_b := b[-2 if columns else -1]):
        fix = "; fix: pass b.T for a b (N, K)" * (columns == (k,))
        raise SpecError(f"matmul: K = {k} in 'a' {a}, {k_of_b} in 'b' {b}{fix}")
    try:
        batch = broadcast_shape(a[:-2], b[:-2])
    except ValueError:
        raise SpecError(
            f"matmul: the batches of 'a' {a} and 'b' {b} do not broadcast: {a[:-2]} and {b[:-2]}"
        ) from None
    result = (*batch, *a[-2:-1], *columns)
    if bias is not None and bias not in ((n,), (m, 1)):
        raise SpecError(f"matmul: 'bias' must be {(n,)} or {(m, 1)}, got {bias}")
    try:
        fits = c is None or broadcast_shape(c, result) == result
    except ValueError:
        fits = False
    if not fits:
        raise SpecError(f"matmul: 'c' must broadcast to {result}, got {c}")
    return batch, m, n, k, result
