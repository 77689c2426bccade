"""One or two matrices, copied to rows that begin at lines of the L2: what operands take whose rows TMA cannot address.

Rows of an odd number of elements begin anywhere, so lanes load them, element by element, neighbours those of neighbours; blocks of
them leave shared memory by TMA. Both operands of a product have rows of one length: one launch copies both, to one array, the
second behind the first. A small copy is a launch, and one way to memory and back: it is cut so finely that each lane waits once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.arith import cdiv
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernels import Kernel
from ..language.memory.per_lane import lane_index
from ..language.pipeline.emit import emit_pipeline
from ..launch.info import ArrayInfo
from ..launch.views import merged, strided
from ..plan.context import axis_index, axis_size
from ..plan.params import CompilerParams, LoweringSemantics
from ..plan.specs import BlockSpec, persistent
from .costs import SMS
from .results import allocated

LINE = 128
"""bytes of a line of the L2 cache: a row that begins at one has no box that touches two"""
_WARPGROUPS = 8
"""of a CTA; each copies blocks of its own"""
_MOVED: dict[int, np.dtype[Any]] = {2: np.dtype(np.float16), 4: np.dtype(np.int32)}
"""the types that elements are moved as, by bytes"""
_TOGETHER = 16
"""elements that a lane asks for before it waits for one"""


@functools.cache
def kernel(size: int, height: int, width: int) -> Kernel:
    """Return the kernel for elements of so many bytes, 2 or 4, in blocks of `height` rows and `width` columns."""
    each = height * width // 128  # elements of a lane

    @numpipe_kernel(grid=persistent(), grid_names="cta", warp_specialized=False, num_compute_wgs=_WARPGROUPS,
                    compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane))
    def copy_padded(a, b, o, *, columns, rows_a, rows_b, step_a, step_b):  # type: ignore[no-untyped-def]
        """Row i of o has the `columns` elements from a[i * step_a] on; b's rows lie behind, from a multiple of `height` on."""
        ctas = axis_size("cta")
        mine = axis_index("wg") * ctas + axis_index("cta")  # few blocks are on many SMs
        above, wide = cdiv(rows_a, height), cdiv(columns, width)
        blocks = (above + cdiv(rows_b, height)) * wide

        def place(k):  # type: ignore[no-untyped-def]
            block = k * (_WARPGROUPS * ctas) + mine
            return block // wide, block % wide

        def body(indices, tile):  # type: ignore[no-untyped-def]
            i, j = place(indices[0])
            lane = lane_index()

            def own(n):  # type: ignore[no-untyped-def]  # the row and column, in the block, of the lane's element n
                if width < 128:
                    return lane // width + n * (128 // width), lane % width
                return n % height, lane + n // height * 128

            def at(n, first, rows, step):  # type: ignore[no-untyped-def]  # where it lies; what is not there is the last row, or column
                r, c = own(n)
                return min(first + r, rows - 1) * step + min(j * width + c, columns - 1)

            def four(array, n, first, rows, step):  # type: ignore[no-untyped-def]
                return (array[at(n, first, rows, step)], array[at(n + 1, first, rows, step)],
                        array[at(n + 2, first, rows, step)], array[at(n + 3, first, rows, step)])

            def put(n, values):  # type: ignore[no-untyped-def]
                tile[own(n)] = values[0]
                tile[own(n + 1)] = values[1]
                tile[own(n + 2)] = values[2]
                tile[own(n + 3)] = values[3]

            def move(array, first, rows, step):  # type: ignore[no-untyped-def]
                if each < _TOGETHER:
                    put(0, four(array, 0, first, rows, step))
                else:
                    v0, v1 = four(array, 0, first, rows, step), four(array, 4, first, rows, step)
                    v2, v3 = four(array, 8, first, rows, step), four(array, 12, first, rows, step)
                    put(0, v0)
                    put(4, v1)
                    put(8, v2)
                    put(12, v3)

            if i < above:
                move(a, i * height, rows_a, step_a)
            else:
                move(b, (i - above) * height, rows_b, step_b)

        emit_pipeline(body, grid=(cdiv(blocks - mine, _WARPGROUPS * ctas),),
                      out_specs=(BlockSpec((height, width), place, buffer_count=2),))(o)

    return copy_padded  # type: ignore[no-any-return]


def rows_of(info: ArrayInfo) -> ArrayInfo | None:
    """Return the rows of a matrix, or of a batch of them, as the one matrix that `padded` copies; None where they are none."""
    rows, size = merged(info, 1), info.dtype.itemsize
    if rows is None or size not in _MOVED or rows.strides[1] != size or rows.strides[0] < 0 or rows.strides[0] % size:
        return None
    return rows if rows.shape[0] * max(rows.strides) < 1 << 31 else None  # places are numbers of 32 bits


def padded(matrices: Sequence[ArrayInfo], target: str | None, stream: Any) -> list[ArrayInfo]:
    """Return copies, whose rows begin at lines, of one or two matrices on a GPU that `rows_of` found, of rows of one length."""
    first, second = matrices[0], matrices[-1]
    itemsize, (rows_a, columns) = first.dtype.itemsize, first.shape
    rows_b = second.shape[0] if len(matrices) > 1 else 0
    pitch = _blocks(columns * itemsize, LINE) * LINE
    size = math.gcd(4, columns * itemsize, *(number for info in matrices for number in (info.ptr, info.strides[0])))
    columns = columns * itemsize // size
    height, width = cut(size, (rows_a, rows_b), columns)
    behind = _blocks(rows_a, height) * height  # the row at which the second begins
    made = allocated("copy", first, (behind + rows_b if rows_b else rows_a, pitch // itemsize), stream)
    steps = [info.strides[0] // size for info in (first, second)]
    sources = [info._replace(shape=((info.shape[0] - 1) * step + columns,), strides=(size,), dtype=_MOVED[size])
               for info, step in zip((first, second), steps, strict=True)]
    whole = made._replace(shape=(made.shape[0], pitch // size), strides=(pitch, size), dtype=_MOVED[size])
    kernel(size, height, width)(*sources, whole, columns=columns, rows_a=rows_a, rows_b=rows_b, step_a=steps[0], step_b=steps[1],
                                target=target, stream=stream)
    return [strided(made._replace(ptr=made.ptr + row * pitch), info.shape, (pitch, itemsize))
            for row, info in zip((0, behind), matrices, strict=False)]


def cut(size: int, rows: Sequence[int], columns: int) -> tuple[int, int]:
    """Return height and width of the blocks, in elements of so many bytes: small ones where they are few, so that all SMs have
    some; else such of which a lane has sixteen elements, as wide as the rows allow.

    >>> cut(2, (215, 2745), 127), cut(2, (10553, 1582), 127), cut(2, (2, 12375), 10801)
    ((8, 64), (32, 64), (8, 256))
    """
    narrow = LINE // size
    height = 512 // narrow  # four elements of a lane
    if sum(_blocks(each, height) for each in rows) * _blocks(columns, narrow) <= _WARPGROUPS * SMS:
        return height, narrow
    return (4 * height, narrow) if columns <= 2 * narrow else (height, 4 * narrow)


def _blocks(size: int, block: int) -> int:
    """Return how many blocks cover a size, a Python int (`cdiv` gives the kernel's numbers of 32 bits, too small for addresses)."""
    return -(-size // block)
