"""``rotary(x, cos, sin)``: rotary position embeddings. Pairs of elements of each row are rotated by
angles; the gradient is the rotation by the negative angles."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.static_range import static_range
from ..diagnostics.argument_checks import a
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import loadable
from ..language.memory.copies import copy_gmem_to_smem, meet
from ..language.memory.per_lane import lane_index
from ..language.memory.scratch import scratch
from ..language.pipeline.body_form import emit_pipeline
from ..language.pipeline.operand_barriers import barrier_wait
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import broadcast, merged, strided
from ..plan.allocations import SMEM, Barrier
from ..plan.context import program_id
from ..plan.params import CompilerParams, LoweringSemantics
from ..plan.specs import ArrayType
from .declaration import Operand, op
from .gated import halves
from .op_outputs import Arrays, Place
from .tiled import TYPES, reshaped, rows_of, with_fitting


@functools.cache
def rotated(repeats: int, height: int, width: int) -> Kernel:
    """Return the kernel for tiles of `height` rows of `width` pairs, with the same angles for
    `repeats` tiles. x1 and x2 are the elements of the pairs, (outer, repeated, rows, pairs)."""

    def grid(x1: Any) -> tuple[int, int]:
        outer, repeated, down, n = x1.shape
        return (cdiv(n, width) * (repeated // repeats) * cdiv(down, height), outer)

    @numpipe_kernel(
        grid=grid,
        warp_specialized=False,
        static_dims=(-1,),
        compiler_params=CompilerParams(ctas_per_sm=4),
    )
    def rotate(x1, x2, cos, sin, y1, y2):  # type: ignore[no-untyped-def]
        place, outer = program_id(0), program_id(1)
        across, down = cdiv(x1.shape[3], width), cdiv(x1.shape[2], height)
        j = ds(place % across * width, width) if across > 1 else ds(0, width, most=0)
        place = place // across  # tiles that follow each other in memory run at the same time
        i, first = ds(place % down * height, height), place // down * repeats
        c, s = cos[outer, first, i, j], sin[outer, first, i, j]
        pairs: Any = ()  # all are loaded before the first is stored
        for k in static_range(repeats):
            pairs += ((x1[outer, first + k, i, j], x2[outer, first + k, i, j]),)
        c, s = c.astype(np.float32), s.astype(np.float32)
        for k in static_range(repeats):
            a, b = pairs[k]
            a, b = a.astype(np.float32), b.astype(np.float32)
            y1[outer, first + k, i, j] = a * c - b * s
            y2[outer, first + k, i, j] = a * s + b * c

    return rotate  # type: ignore[no-any-return]


LANES, PASS_BYTES, BOX = 128, 32, 256
"""LANES: lanes of a CTA of `rotated_rows`. PASS_BYTES: bytes of the first elements of the pairs of
a block that a lane has. BOX: elements that TMA copies at once"""
MOST = 1 << 25
"""most pairs of a matrix: its blocks are along the second dimension of the grid, which has at most
65,535 CTAs"""
MATRICES = 4, 2
"""how many matrices a CTA of `rotated_rows` rotates by the same angles: as many as leave each SM at
least WAVES CTAs, because the last ones leave SMs idle (measured on an H200); otherwise 1"""
WAVES = 2
SHARING = 32
"""least rows with the same angles for which `rotated`, which keeps angles for several rows, is
faster if rows are aligned to 16 bytes: 4.05 instead of 3.75 TB/s on an H200"""


@functools.cache
def rotated_rows(n: int, inverse: bool, matrices: int, passes: int) -> Kernel:
    """Return the kernel for matrices of contiguous rows of n pairs, at most LANES, that have the
    same angles. x, cos, sin and y have one dimension.

    A CTA rotates a block of rows of several `matrices`; x has a multiple of so many. A lane has
    `passes` pairs of a block, a multiple of 8. Rows may begin anywhere: TMA loads them from a
    multiple of 16 bytes on, and neighboring lanes have neighboring pairs. Results are stored from
    shared memory in memory order.
    """
    across = LANES // n * n
    count = passes * across
    room = round_up(count, BOX)
    wide = 2 * room + BOX

    def grid(x: Any, cos: Any) -> tuple[int, int]:
        return x.shape[0] // cos.shape[0] // (2 * matrices), cdiv(cos.shape[0], count)

    @numpipe_kernel(
        grid=grid,
        warp_specialized=False,
        compiler_params=CompilerParams(
            lowering_semantics=LoweringSemantics.Lane, ctas_per_sm=6, unsafe_no_auto_barriers=True
        ),
    )
    def rotate_rows(x, cos, sin, y):  # type: ignore[no-untyped-def]
        pairs, first, matrix = cos.shape[0], program_id(1) * count, program_id(0) * matrices
        rows, made, cosines, sines, landed, angles_landed = scratch(
            (
                SMEM((2 * wide,), x.dtype),
                SMEM((2 * count,), y.dtype),
                SMEM((room,), cos.dtype),
                SMEM((room,), sin.dtype),
                Barrier(num_barriers=2),
                Barrier(num_arrivals=2),
            )
        )

        def start_of(k):  # type: ignore[no-untyped-def]
            return 2 * ((matrix + k) * pairs + first)

        def load(k):  # type: ignore[no-untyped-def]
            begin, to = start_of(k), rows.at[ds(k % 2 * wide, wide)]
            copy_gmem_to_smem(x.at[ds(begin - begin % 8, wide)], to, landed.at[k % 2])

        load(0)
        copy_gmem_to_smem(cos.at[ds(first, room)], cosines, angles_landed)
        copy_gmem_to_smem(sin.at[ds(first, room)], sines, angles_landed)
        barrier_wait(angles_landed)
        for k in range(matrices):
            if k + 1 < matrices:
                load(k + 1)
            start = start_of(k)
            begin = k % 2 * wide + start % 8

            def rotate(indices):  # type: ignore[no-untyped-def]
                lane = lane_index()
                if lane < across:
                    own: Any = ()  # all are loaded before the first is stored
                    for i in static_range(passes):
                        pair, one = lane + i * across, begin + lane + lane // n * n + 2 * i * across
                        a, b = rows[one], rows[one + n]
                        own += ((a, b, np.float32(cosines[pair]), np.float32(sines[pair])),)
                    for i in static_range(passes):
                        a, b, c, s = own[i]
                        s = -s if inverse else s
                        one = lane + lane // n * n + 2 * i * across
                        made[one], made[one + n] = a * c - b * s, a * s + b * c

            barrier_wait(landed.at[k % 2])
            emit_pipeline(rotate, grid=(1,))()
            meet()
            end = 2 * (matrix + k + 1) * pairs
            y[ds(start, 2 * count, stop=end)] = load_tile(made, "row 128")
            meet()

    return rotate_rows  # type: ignore[no-any-return]


def _launch(
    x: ArrayInfo,
    cos: ArrayInfo,
    sin: ArrayInfo,
    y: ArrayInfo,
    interleaved: bool,
    inverse: bool,
    place: Place,
) -> None:
    """Launch the kernel on arrays of four dimensions: the largest one along which the angles change
    gives the rows, and the largest one along which they do not gives the repeated dimension."""

    def in_four(info: ArrayInfo) -> Any:
        lacking = [1] * (4 - len(info.shape))
        adjacent = info.strides[-1] == info.dtype.itemsize
        return merged(broadcast(info, (*lacking, *info.shape)), 3) if adjacent else None

    def run(arrays: Arrays) -> None:
        x, cos, sin, _ = views = [in_four(info) for info in arrays.values()]
        changes = [cos.strides[k] or sin.strides[k] for k in range(3)]
        sizes = x.shape
        rows = max(range(3), key=lambda k: (bool(changes[k]), sizes[k]))
        outer, same = sorted({0, 1, 2} - {rows}, key=lambda k: (not changes[k], sizes[k]))
        order = outer, same, rows, 3
        x, cos, sin, y = (
            strided(of, *([each[k] for k in order] for each in (of.shape, of.strides)))
            for of in views
        )
        n = cos.shape[3]
        # cos and sin of one matrix
        angles = (strided(of, of.shape[2:], of.strides[2:]) for of in (cos, sin))
        whole = [rows_of(of) for of in (x, *angles, y)]
        aligned, dense = loadable(*whole)
        heads = sizes[outer] * sizes[same]
        # not in place: TMA loads blocks that other CTAs store to
        if (
            n <= LANES <= sizes[rows] <= MOST // n
            and not (interleaved or changes[outer] or changes[same] or x.ptr == y.ptr)
            and dense
            and (not aligned or heads < SHARING)
        ):
            flat = [reshaped(of, math.prod(of.shape)) for of in whole]
            passes = PASS_BYTES // x.dtype.itemsize
            ctas = heads * cdiv(sizes[rows], LANES // n * passes)
            shared = (m for m in MATRICES if not heads % m and ctas >= m * WAVES * DEFAULT.sms)
            matrices = next(shared, 1)
            rotated_rows(n, inverse, matrices, passes)(*flat, **place)
            return
        width = min(256, round_up(n, 64)) if n > 32 else 32 if n > 16 else 16
        # no fewer rows than all lanes of a warpgroup have
        height = 32 if width == 16 else 16 if width <= 128 else 8
        repeats = next(k for k in (4 if width == 32 else 2, 2, 3, 5, 1) if not sizes[same] % k)
        # the inverse is the rotation of (x2, x1)
        step = -1 if inverse else 1
        x1, x2 = halves(x, interleaved)[::step]
        kernel = rotated(1 if changes[same] else repeats, height, width)
        kernel(x1, x2, cos, sin, *halves(y, interleaved)[::step], **place)

    half = (*x.shape[:-1], x.shape[-1] // 2)
    inputs = {"x": x, "cos": broadcast(cos, half), "sin": broadcast(sin, half)}
    with_fitting(inputs, {"y": y}, in_four, place, run)


# ---- declaration
def _result(x: Any, cos: Any, sin: Any) -> ArrayType:
    shape = tuple(x.shape)
    if not shape or shape[-1] % 2:
        raise SpecError(
            f"rotary: the last dimension of 'x' must have an even number of elements, got {shape}"
        )
    half = (*shape[:-1], shape[-1] // 2)
    for name, given in (("cos", tuple(cos.shape)), ("sin", tuple(sin.shape))):
        sizes = zip(given[::-1], half[::-1], strict=False)
        if given[-1:] != half[-1:] or len(given) > len(half) or any(
            mine not in (1, size) for mine, size in sizes
        ):  # fmt: skip
            fix = f"[:, None] repeats it along a dimension of x, {name}[..., : {half[-1]}]"
            raise SpecError(
                f"rotary: '{name}' must broadcast to {half}, with one column for each pair, got "
                f"shape {given}; fix: {name}{fix} takes one of two equal halves"
            )
    return ArrayType(shape, x.dtype)


def _over_batch(
    xp: Any, size: Any, batched: Any, x: Any, cos: Any, sin: Any, interleaved: bool, inverse: bool
) -> Any:
    x = x if batched["x"] else xp.broadcast_to(x, (size, *x.shape))

    def fitting(name: str, given: Any) -> Any:
        lacking = [1] * (len(x.shape) - len(given.shape))
        return given.reshape((size, *lacking, *given.shape[1:])) if batched[name] else given

    angles = fitting("cos", cos), fitting("sin", sin)
    return xp(rotary, x, *angles, interleaved=interleaved, inverse=inverse)


@op(
    operands={"x": "", "cos": Operand(types=TYPES), "sin": Operand(types=TYPES)},
    results={"y": _result},
    types=TYPES,
    launch=_launch,
    checks={"interleaved": a(bool), "inverse": a(bool)},
    gradients={
        "x": lambda xp, cos, sin, grad_y, interleaved, inverse: xp(
            "rotary", grad_y, cos, sin, interleaved=interleaved, inverse=not inverse
        )
    },
    batching=_over_batch,
)
def rotary(
    x: Any,
    cos: Any,
    sin: Any,
    *,
    interleaved: bool = False,
    inverse: bool = False,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return x with pairs of elements (a, b) rotated to ``(a cos - b sin, a sin + b cos)``.

    x            (…, d) of float16, bfloat16 or float32, with any strides
    cos, sin     (…, d / 2) of any of these types; broadcast, so (tokens, d / 2) suits x of shape
                 (batch, heads, tokens, d), and ``cos[:, None]`` suits (batch, tokens, heads, d)
    interleaved  whether pairs are (x[2 k], x[2 k + 1]), as in GPT-J, rather than (x[k], x[k + d /
                 2]), as in Llama
    inverse      whether to rotate by the negative angles
    out          an array of x's shape and type to write to, which may be x; allocated by default
    target, stream
                 as for any kernel

    Arithmetic is float32. x is read once; cos and sin are read once for up to 5 rows that share
    them. There is a gradient of x, the rotation by the negative angles, and none of cos and sin.
    Raises SpecError for an odd d and for angles that do not broadcast.

    >>> rotary(
    ...     np.ones((1, 4), np.float32),
    ...     np.zeros(2, np.float32),
    ...     np.ones(2, np.float32),
    ...     target="sim",
    ... )
    array([[-1., -1.,  1.,  1.]], dtype=float32)
    """
