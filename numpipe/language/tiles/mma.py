"""Matrix products of tiles on the tensor cores: ``wgmma``, whose accumulator stays in flight until
it is waited for, and ``mma``, which uses the target's preferred product."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...arch.products import WGMMA, Product
from ...core.machine import Mma, current
from ...core.op import called, context_op, op
from ...diagnostics.errors import SpecError
from ...intrinsics.wgmma import check_pending, descriptor
from ...plan.context import Context
from ...plan.layout import Layout, Operand, operand
from ...plan.nested_tuples import made, tree_of
from ...plan.unit import Unit
from .fence_order import before_access, before_async
from .layout_names import COLUMN
from .layouts import ACCUMULATOR, Form, only_accumulator
from .refs import SmemLike, SmemTile
from .shared_tiles import read, read_shared
from .tile import Tile, TileLike, form_of

__all__ = ["mma", "wgmma", "wgmma_wait"]


def plan(acc: Any, a: Any, b: Any, product: Product | None = None, what: str = "wgmma") -> Form:
    """Return the form of the result of a product: ``wgmma(acc, a, b)``, or `what` by another
    product. Raises SpecError that names the operands that do not fit."""
    product = product or WGMMA
    if (
        not (acc is None or isinstance(acc, TileLike))
        or not isinstance(a, (SmemLike, TileLike))
        or not isinstance(b, SmemLike)
    ):
        raise SpecError(
            f"{what}(acc, a, b): acc must be a register tile or None, a a shared-memory tile of a "
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
            f"{what}: a and b must be of one kind, {'; '.join(product.kinds)}; got {a.dtype} and "
            f"{b.dtype}"
        )
    if acc is not None and acc.dtype != one.sums:
        raise SpecError(f"{what}: the accumulator must be {one.sums}, got {acc.dtype}")
    if depth != k:
        raise SpecError(
            f"{what}: a {left} has K = {depth}, but b {right} has K = {k}; fix: b is (K, N), so "
            "write b_tile.T for a tile loaded as (N, K)"
        )
    if acc is not None:
        only_accumulator(acc.form, what)
        if acc.shape != (m, n):
            raise SpecError(
                f"{what}: the accumulator is {acc.shape}, but a {left} x b {right} is {(m, n)}"
            )
    step = product.k(a.dtype)
    if k % step or m % product.rows or n not in one.widths:
        raise SpecError(
            f"{what}: a {left} x b {right}: M must be a multiple of {product.rows}, K a multiple "
            f"of {step}, and N a multiple of {one.unit} up to {one.widths[-1]}"
        )
    for name, tile, axis, kind in (("a", a, 0, one), ("b", b, 1, other)):
        layout = tile.layout
        # the layout of a register tile is a name
        if not isinstance(layout, Layout) or layout.inner != axis:
            continue
        if "mn" not in kind.majors:
            fix = (
                "np.ascontiguousarray(b.T), of shape (N, K), and multiply by b_tile.T"
                if name == "b"
                else "np.ascontiguousarray(a), of shape (M, K), and multiply by a_tile"
            )
            raise SpecError(
                f"{what}: {name} {layout.shape} of {tile.dtype} must be K-major (contiguous along "
                f"K), the only order that {what} supports for this type; fix: pass {fix}"
            )
        if layout.shape[layout.inner] % layout.per_panel:
            raise SpecError(
                f"{what}: {name} {layout.shape} does not fill its {layout.width}-byte panels"
            )
    return Form((m, n), one.sums, product.accumulator.name)


def _check_registers(a: Form, product: Product, what: str) -> None:
    """Raise SpecError unless a register tile can be an A operand: 16-bit elements in accumulator
    layout."""
    only_accumulator(a, what)
    if a.layout != ACCUMULATOR:
        lies = "rows (column" if a.layout == COLUMN else "columns (row"
        raise SpecError(
            f"{what}: a {a.shape} lies along {lies} layout), but the A operand must be a 16-bit "
            "tile (M, K) in accumulator layout; fix: broadcast it to a tile first"
        )
    kind = product.operand(a.dtype)
    if kind is None or not kind.from_registers:
        raise SpecError(
            f"{what}: a is a {a.dtype} register tile, but an A operand in registers must have 16 "
            "bits; fix: write a.astype(b.dtype), with b of float16 or bfloat16"
        )


@functools.lru_cache(maxsize=256)
def steps(rows: int, a: Operand | None, b: Operand) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the descriptors, at address 0, for every instruction of a product: [64-row block][step
    of 32 bytes along K] -> (a, b).

    If A is in registers (None), its descriptors are 0.
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

    acc     float32 tile (M, N), or int32 for products of integers; M a multiple of 64. It is in
            flight afterwards: reading it before `wgmma_wait` is an error. Accumulators that a
            pipeline loop carries are waited for at its end. None computes the product alone,
            without setting registers to zero first.
    a       shared-memory tile (M, K), K a multiple of 32 bytes: float16 or bfloat16 in either
            major order; or, K-major only, float32 (tf32: the low 13 bits are ignored), a float8
            type, int8 or uint8. Or a 16-bit register tile: `astype` converts a float32 tile to one
            within the same lanes. A register tile is never overwritten while the product reads it:
            assigning to its name creates a value in other registers. In a pipeline loop, a value
            computed in one step shares its registers with the previous step's value, so the
            previous step's product must be complete: the compiler raises SpecError if it may be in
            flight.
    b       shared-memory tile (K, N), ``b_tile.T`` for a tile loaded as (N, K): of a's type, the
            other float8 type, or the integer type of the other sign

    The simulator sums in float32; a tensor core keeps fewer bits when it sums float8 products,
    about 14 of the largest. Sums of integers are exact, and wrap.

    Each call is one wgmma group. Raises SpecError for unsupported shapes, types and layouts.
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
    """Return why a kernel cannot call `wgmma`; "" if it can."""
    name = unit.params.product if unit is not None else ""
    return (
        f"wgmma: the kernel's product is {name!r}, by CompilerParams(product={name!r}): fix: write "
        "numpipe.mma(acc, a, b), which multiplies by it, or leave the option out"
        if name not in ("", WGMMA.name)
        else ""
    )


def chosen(unit: Unit, a: Any) -> Product:
    """Return the product that ``mma(acc, a, b)`` uses in a kernel. Raises SpecError if its target
    has none for these operands."""
    name, target = unit.params.product, unit.target
    dtype = a.dtype if isinstance(a, (SmemLike, TileLike)) else None
    if dtype is None:  # `plan` raises the error
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
        f"mma: a is {dtype}, but {' and '.join(dict.fromkeys(each.name for each in known))} of "
        f"{target.name} multiplies only "
        f"{'; '.join(kind for each in known for kind in each.kinds)}; fix: {fix}"
    )


@context_op(products="issues")
def mma(np_: Context, acc: Tile | None, a: SmemTile | Tile, b: SmemTile) -> Tile:
    """Compute ``acc + a @ b`` by the product that the kernel's target prefers, or the one that
    ``CompilerParams(product=…)`` names.

    Operands, shapes and errors are the same as for `wgmma`. With "wgmma" it is the same operation.
    With "mma.sync", the warps load the operands themselves, the result can be read at once, and
    `wgmma_wait` takes no time.

        acc = numpipe.mma(acc, a_tile, b_tile.T)

    Raises SpecError for unsupported shapes, types and layouts; the message lists what the target
    supports.
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
        right = read_shared(b.layout, b.address, b.dtype)
        found = product.computed(left) @ product.computed(right)
    machine.product_cycles(int(np.prod(form.shape)) * a.shape[1], a.dtype, product)
    if form.dtype.kind == "i":
        found = found.astype(np.int64).astype(form.dtype)
    return Tile(found if acc is None else acc.value + found, form)


@op(products="waits")
def wgmma_wait(acc: Any, pending: int = 0) -> Any:
    """Wait until at most the newest `pending` wgmmas of this warpgroup are in flight (0…7), and
    return the accumulator.

    With ``pending=0`` the returned tile can be read (PTX ISA, "wgmma.wait_group"). Without
    `pending`, a kernel waits for this accumulator, and the returned tile can be read: the compiler
    counts the groups that are certain to be issued after it on every path from the wgmma to the
    wait, and leaves these in flight (`compile.waits`). `acc` may be a tuple that contains
    accumulators; other values are returned unchanged.
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
    """Wait as ``wgmma_wait(acc)`` does, for a tile after which `pending` more groups have been
    issued."""
    if not isinstance(acc, Tile) or acc.inert:
        return wgmma_wait(acc, 0)
    current().wgmma_wait(pending)
    return Tile(acc.value, acc.form)
