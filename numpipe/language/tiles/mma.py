"""Tile-level wgmma: products of shared-memory tiles added to an accumulator that stays in flight
until it is waited for."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...arch.products import WGMMA, Product
from ...core.machine import Mma, current
from ...core.op import called, op
from ...diagnostics.errors import SpecError
from ...intrinsics.wgmma import check_pending, descriptor
from ...plan.context import Context
from ...plan.layout import Layout, Operand, operand
from ...plan.nested_tuples import made, tree_of
from ...plan.unit import Unit
from .fence_order import before_access, before_async
from .layouts import ACCUMULATOR, COLUMN, Form, only_accumulator
from .refs import SmemLike, SmemTile
from .shared_tiles import read, read_shared
from .tile import Tile, TileLike, form_of

__all__ = ["mma", "wgmma", "wgmma_wait"]


def plan(acc: Any, a: Any, b: Any, product: Product | None = None, what: str = "wgmma") -> Form:
    """Return the form of ``wgmma(acc, a, b)``, or of `what` by another product; raise SpecError,
    which names the two operands that disagree."""
    product = product or WGMMA
    if (
        not (acc is None or isinstance(acc, TileLike))
        or not isinstance(a, (SmemLike, TileLike))
        or not isinstance(b, SmemLike)
    ):
        raise SpecError(
            f"{what}(acc, a, b): acc is a register tile or None, a a shared-memory tile of a "
            "pipeline or a register tile, b a shared-memory tile, got "
            f"({', '.join(map(called, (acc, a, b)))})"
        )
    form: Any = a.layout if isinstance(a, SmemLike) else form_of(a, f"{what}(acc, a, b), a")
    if isinstance(form, Form):
        _check_registers(form, product, what)
    (m, depth), (k, n) = left, right = form.shape, b.layout.shape
    one, other = product.operand(a.dtype), product.operand(b.dtype)
    if one is None or other is None or one.family != other.family:
        raise SpecError(
            f"{what}: a and b must be of one kind: {'; '.join(product.kinds)}; got {a.dtype} and "
            f"{b.dtype}"
        )
    if acc is not None and acc.dtype != one.sums:
        raise SpecError(f"{what}: the accumulator must be {one.sums}, got {acc.dtype}")
    if depth != k:
        raise SpecError(
            f"{what}: a {left} has K = {depth}, b {right} has K = {k}: b is (K, N), use b_tile.T "
            "for a tile loaded as (N, K)"
        )
    if acc is not None:
        only_accumulator(acc.form, what)
        if acc.shape != (m, n):
            raise SpecError(
                f"{what}: the accumulator is {acc.shape}, but a {left} x b {right} gives {(m, n)}"
            )
    step = product.k(a.dtype)
    if k % step or m % product.rows or n not in one.widths:
        raise SpecError(
            f"{what}: a {left} x b {right}: M must be a multiple of {product.rows}, K of {step}, "
            f"N of {one.unit} and at most {one.widths[-1]}"
        )
    for name, tile, axis, kind in (("a", a, 0, one), ("b", b, 1, other)):
        layout = tile.layout
        if not isinstance(layout, Layout) or layout.inner != axis:  # a register tile's is a name
            continue
        if "mn" not in kind.majors:
            fix = (
                "np.ascontiguousarray(b.T), of shape (N, K), and multiply by b_tile.T"
                if name == "b"
                else "np.ascontiguousarray(a), of shape (M, K), and multiply by a_tile"
            )
            raise SpecError(
                f"{what}: {name} {layout.shape} of {tile.dtype} must be K-major, its elements "
                f"along K contiguous: {what} has no other order for it; fix: pass {fix}"
            )
        if layout.shape[layout.inner] % layout.per_panel:
            raise SpecError(
                f"{what}: {name} {layout.shape} does not fill its {layout.width}-byte panels"
            )
    return Form((m, n), one.sums, product.accumulator.name)


def _check_registers(a: Form, product: Product, what: str) -> None:
    """Raise SpecError unless a register tile is an A operand: an accumulator's, packed to 16
    bits."""
    only_accumulator(a, what)
    if a.layout != ACCUMULATOR:
        lies = "rows (column" if a.layout == COLUMN else "columns (row"
        raise SpecError(
            f"{what}: a {a.shape} lies along {lies} layout), the A operand is a tile (M, K) in the "
            "accumulator's layout, packed: combine it with a tile first"
        )
    kind = product.operand(a.dtype)
    if kind is None or not kind.from_registers:
        raise SpecError(
            f"{what}: a is a {a.dtype} register tile in the accumulator's layout, and the A "
            "operand of registers is that packed to 16 bits: write a.astype(b.dtype), which "
            "moves nothing between lanes, with b of float16 or bfloat16"
        )


@functools.lru_cache(maxsize=256)
def steps(rows: int, a: Operand | None, b: Operand) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the descriptors, at address 0, of every instruction of a product: [64-row block][step
    of 32 bytes along K] -> (a, b).

    Where A is in registers, None, its descriptors are 0.
    """
    cb = descriptor(0, b.leading, b.stride, b.swizzle)
    right = [cb + (y >> 4) for y in b.offsets[0]]
    if a is None:
        return (tuple((0, y) for y in right),) * (rows // WGMMA.rows)
    ca = descriptor(0, a.leading, a.stride, a.swizzle)
    return tuple(
        tuple((ca + (x >> 4), y) for x, y in zip(row, right, strict=True)) for row in a.offsets
    )


@op(products="issues")
def wgmma(acc: Tile | None, a: SmemTile | Tile, b: SmemTile) -> Tile:
    """Compute ``acc + a @ b`` on the tensor cores, asynchronously (PTX ISA, "wgmma.mma_async").

    acc     float32 tile (M, N), of integers int32, M a multiple of 64; in flight afterwards:
            reading it before `wgmma_wait` is an error. Accumulators carried out of a pipeline loop
            are waited for at its end. None: the product alone, for which no register is set to
            zero.
    a       shared-memory tile (M, K), K a multiple of 32 bytes: float16 or bfloat16, in either
            major order; or K-major: float32, whose low 13 bits are ignored (tf32), a float8 type,
            int8 or uint8. Or a register tile of 16 bits: a float32 tile becomes one by `astype`, in
            the same lanes. Values are never overwritten: what a kernel calls by the same name while
            the product is in flight is another value, in other registers; but what a step of a
            pipeline makes is in the registers of the step before, whose product has to be over: a
            compile raises SpecError where it may be in flight.
    b       shared-memory tile (K, N), ``b_tile.T`` for a tile loaded as (N, K): of a's type, of the
            other float8 type, or of the other sign

    Sums are float32 in the simulation; a tensor core keeps fewer bits of those of float8 products,
    some 14 of the largest. Those of integers are exact, and wrap.

    Each call is one wgmma group. Raises SpecError for shapes, types and layouts that do not fit.
    """
    if why := refused(current().unit):
        raise SpecError(why)
    form = plan(acc, a, b)
    if not b.role.computes or (acc is not None and acc.inert):
        return Tile(None, form) if acc is None else acc
    machine = current()
    left = None if isinstance(a, Tile) else operand(a.layout, 1)
    right = operand(b.layout, 0)
    da = 0 if isinstance(a, Tile) else a.address >> 4
    db = b.address >> 4
    batch = Mma(
        form.shape[1],
        a.dtype,
        left.major if left else "k",
        right.major,
        tuple(tuple((x + da, y + db) for x, y in row) for row in steps(form.shape[0], left, right)),
        b.dtype,
    )
    rows = [a.value] if isinstance(a, Tile) else []
    before_async(*(tile for tile in (a, b) if isinstance(tile, SmemTile)))
    machine.wgmma_fence()
    value = np.zeros(form.shape, form.dtype) if acc is None else acc._value
    assert value is not None
    result = machine.wgmma(value, batch, *rows)
    machine.wgmma_commit()
    return Tile(result, form)


def refused(unit: Unit | None) -> str:
    """Return why a kernel cannot call `wgmma`, "" where it can."""
    name = unit.params.product if unit is not None else ""
    return (
        f"wgmma: the kernel's product is {name!r}, by CompilerParams(product={name!r}): fix: write "
        "numpipe.mma(acc, a, b), which multiplies by it, or leave the option out"
        if name not in ("", WGMMA.name)
        else ""
    )


def chosen(unit: Unit, a: Any) -> Product:
    """Return the product of ``mma(acc, a, b)`` in a kernel; raise SpecError where its target has
    none for these operands."""
    name, target = unit.params.product, unit.target
    dtype = a.dtype if isinstance(a, (SmemLike, TileLike)) else None
    if dtype is None:  # which `plan` refuses
        return target.product
    product, other = target.product_of(dtype, name), target.product_of(dtype)
    if product is not None:
        return product
    known = [each for each in target.products if name in ("", each.name)]
    fix = (
        f"leave out CompilerParams(product={name!r}), {other.name} multiplies {dtype}"
        if other
        else "pass a and b as one of these"
    )
    raise SpecError(
        f"mma: a is {dtype}, which {' and '.join(dict.fromkeys(each.name for each in known))} of "
        f"{target.name} does not multiply: it takes "
        f"{'; '.join(kind for each in known for kind in each.kinds)}; fix: {fix}"
    )


@op(context=True, products="issues")
def mma(np_: Context, acc: Tile | None, a: SmemTile | Tile, b: SmemTile) -> Tile:
    """Compute ``acc + a @ b`` by the product that the kernel's target prefers, or the one that
    ``CompilerParams(product=…)`` names.

    Operands, shapes and errors are those of `wgmma`. By "wgmma" it is the same operation; by
    "mma.sync" the warps load the operands themselves, and the tile can be read at once: a
    `wgmma_wait` for it takes no time.

        acc = numpipe.mma(acc, a_tile, b_tile.T)

    Raises SpecError for shapes, types and layouts that do not fit, with what the target takes.
    """
    product = chosen(np_.unit, a)
    if product.groups:
        return wgmma(acc, a, b)
    form = plan(acc, a, b, product, "mma")
    if not b.role.computes or (acc is not None and acc.inert):
        return Tile(None, form) if acc is None else acc
    tiles = [tile for tile in (a, b) if isinstance(tile, SmemTile)]
    for tile in tiles:
        before_access(tile)
    machine, found = current(), np.zeros(form.shape, form.dtype)
    if machine.moves:
        left = a.value if isinstance(a, Tile) else read(a.layout, a.address, a.dtype, "mma, a")
        right = read_shared(b.layout, b.address, b.dtype, "mma, b")
        found = product.computed(left) @ product.computed(right)
    machine.product_cycles(int(np.prod(form.shape)) * a.shape[1], a.dtype, product)
    if form.dtype.kind == "i":
        found = found.astype(np.int64).astype(form.dtype)
    return Tile(found if acc is None else acc.value + found, form)


@op(products="waits")
def wgmma_wait(acc: Any, pending: int = 0) -> Any:
    """Wait until at most the newest `pending` wgmmas of this warpgroup are in flight (0…7); returns
    the accumulator.

    With ``pending=0`` the tile returned can be read (PTX ISA, "wgmma.wait_group"). Without
    `pending` a kernel waits for this accumulator: as many groups stay in flight as its source is
    sure to have issued after it, on every path from the wgmma to here (`compile.waits`), and the
    tile can be read. `acc` may be a tuple with accumulators in it; anything that is neither is
    returned as it is.
    """
    check_pending(pending)
    if isinstance(acc, tuple):
        return made(tree_of(acc), [wgmma_wait(part, pending) for part in acc])
    if not isinstance(acc, Tile) or acc.inert:
        return acc
    current().wgmma_wait(pending)
    return acc if pending or isinstance(acc._value, np.ndarray) else Tile(acc.value, acc.form)


@op(products="waits")
def wait_for(acc: Any, pending: int) -> Any:
    """Wait as ``wgmma_wait(acc)`` does, for a tile after which `pending` groups have been
    issued."""
    if not isinstance(acc, Tile) or acc.inert:
        return wgmma_wait(acc, 0)
    current().wgmma_wait(pending)
    return Tile(acc.value, acc.form)
