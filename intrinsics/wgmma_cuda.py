"""The CUDA implementation of wgmma, in which accumulators are tuples of float32 that are tied
operands of the statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpipe.core import numba as nb
from numpipe.core.numba import F32, I32, I64
from numpipe.core.op import cuda_meaning, immediate
from numpipe.diagnostics.errors import SpecError

from . import wgmma


def _n_of(operation: str, acc: Any) -> int:
    if not isinstance(acc, nb.UniTuple) or acc.dtype != F32:
        raise SpecError(
            f"wgmma.{operation}: acc must be an accumulator from accumulators(n), mma_async or "
            f"wait, got {acc}"
        )
    n = 2 * len(acc)
    wgmma.check_n(n)
    return n


def _through(builder: Any, acc: Any, text: str, inputs: Sequence = ()) -> Any:
    """Emit `text` on the registers of `acc`, which are its outputs $0, $1, … and inputs tied to
    them."""
    count = acc.type.count
    registers = [builder.extract_value(acc, i) for i in range(count)]
    result = builder.emit_asm([nb.f32] * count, [*registers, *inputs], text, tied=0)
    updated = nb.ir.Constant(acc.type, nb.ir.Undefined)
    for i, register in enumerate(result):
        updated = builder.insert_value(updated, register, i)
    return updated


@cuda_meaning(wgmma.accumulators)
def _accumulators(n: Any) -> Any:
    count = immediate("wgmma.accumulators", "n", n)
    wgmma.check_n(count)
    count //= 2
    zeros = nb.ir.Constant(nb.ir.ArrayType(nb.f32, count), [0.0] * count)
    return nb.UniTuple(F32, count)(n), lambda builder, args: zeros


@cuda_meaning(wgmma.fence_accumulators)
def _fence_accumulators(acc: Any) -> Any:
    _n_of("fence_accumulators", acc)
    return acc(acc), lambda builder, args: _through(builder, args[0], "wgmma.fence.sync.aligned;")


@cuda_meaning(wgmma.mma_async)
def _mma_async(acc: Any, a_desc: Any, b_desc: Any, dtype: Any, a_major: Any, b_major: Any) -> Any:
    n = _n_of("mma_async", acc)
    element, of_a, of_b = (
        immediate("wgmma.mma_async", name, ty)
        for name, ty in (("dtype", dtype), ("a_major", a_major), ("b_major", b_major))
    )
    wgmma.check_operands(n, element, of_a, of_b)
    # $0 … are the outputs, followed by as many inputs tied to them, then the descriptors
    text = wgmma.statement(
        n, element, of_a, of_b, [f"${i}" for i in range(n // 2)], f"${n}", f"${n + 1}"
    )

    builder, args = yield acc(acc, I64, I64, dtype, a_major, b_major)
    return _through(builder, args[0], text, args[1:3])


@cuda_meaning(wgmma.wait)
def _wait(acc: Any, n: Any) -> Any:
    _n_of("wait", acc)
    pending = immediate("wgmma.wait", "n", n)
    wgmma.check_pending(pending)
    text = f"wgmma.wait_group.sync.aligned {pending};"
    return acc(acc, n), lambda builder, args: _through(builder, args[0], text)


@cuda_meaning(wgmma.descriptor)
def _descriptor(addr: Any, leading_bytes: Any, stride_bytes: Any, swizzle: Any) -> Any:
    mode = wgmma.swizzle_mode(immediate("wgmma.descriptor", "swizzle", swizzle))
    for name, ty in (("leading_bytes", leading_bytes), ("stride_bytes", stride_bytes)):
        if isinstance(ty, nb.types.Literal):
            wgmma.check_field(name, ty.literal_value)
    builder, (addr, leading, stride, _) = yield I64(I32, I32, I32, swizzle)

    def field(value: Any, position: int) -> Any:
        units = builder.lshr(builder.and_(value, 0x3FFFF), 4)
        return builder.shl(builder.zext(units, nb.i64), position)

    word = builder.or_(builder.or_(field(addr, 0), field(leading, 16)), field(stride, 32))
    return builder.or_(word, (mode - 4 if mode >= 2 else mode) << 62)
