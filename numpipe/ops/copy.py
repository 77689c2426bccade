"""``copy(a)``: a contiguous copy of an array with any strides.

The cost of a copy depends on the number of bytes in flight and on how many of them are adjacent.
The layouts of source and target select the kernel (`copy_ways` cuts a copy into pieces, usually
one):

=========  =========================================================================================
`by_tma`   TMA loads blocks of the source in its order and stores them, either unchanged or
           transposed in shared memory
`sectors`  lanes load blocks of the source in its order and store whole sectors of the target's
           rows: for large transposes, unless TMA can load the source and store the target
`columns`  lanes load columns of the source, which are together contiguous in the target: for large
           transposes of few rows
`turned`   lanes load tiles of the source in its order, transpose them in shared memory, and store
           whole rows: for other transposes
`lanes`    each lane gathers single elements into blocks that TMA stores: for rows at any address,
           steps, and repeated or reversed dimensions. The target's rows may also start anywhere:
           enough rows to make a multiple of 16 bytes are combined into one TMA row, a super-row.
           One launch makes two copies, such as those of a product's operands.
           Elements of 8 bits, and targets without super-rows, are also stored by lanes
           (`copy_blocks`), and so are short lines (`copy_line`)
=========  =========================================================================================

Elements are moved as bits, in units of 8, 16 or 32 (64 as two units), whatever their type.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import launch
from ..arch.dimensions import next_power_of_two, round_up
from ..arch.target import SECTOR
from ..arch.targets import DEFAULT
from ..core.arith import cdiv, divide, divisor
from ..core.static_range import static_range
from ..intrinsics.convert import permute_bytes
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..language.grid.orders.tile_numbers import begin_strips, place_grouped
from ..language.memory.copies import meet
from ..language.memory.per_lane import lane_index
from ..language.memory.scratch import scratch
from ..language.pipeline.body_form import emit_pipeline
from ..language.pipeline.pipelines import pipeline
from ..language.tiles.indices import index
from ..language.tiles.load import load_tile
from ..language.tiles.refs import ds
from ..launch.array_info import ArrayInfo
from ..launch.windows import memory
from ..plan.allocations import SMEM
from ..plan.context import axis_index, axis_size, program_id
from ..plan.params import CompilerParams, LoweringSemantics
from ..plan.specs import BlockSpec, persistent
from .copy_ways import SMALL, Part, ways
from .declaration import op
from .op_outputs import Place, same

__all__ = ["copy"]

MOVED: dict[int, np.dtype] = {1: np.dtype("u1"), 2: np.dtype("f2"), 4: np.dtype("i4")}
"""the type used to move elements, by their size in bytes"""
LANES = MOVED | {2: np.dtype("u2")}
"""the type used by `sectors`"""
PART = 512
"""elements that a CTA of `copy_line` copies"""
WARPGROUPS = 8
"""warpgroups in a CTA of `lanes`; each copies its own blocks"""
GROUP = 8
"""rows of blocks that `sectors` walks column by column, so that neighboring CTAs share sectors"""


def blocks_of(row_bytes: int) -> tuple[int, int]:
    """Return the rows and the bytes of a row of blocks of 16 KB, no wider than needed for rows of
    `row_bytes` bytes.

    >>> blocks_of(4096), blocks_of(40)
    ((64, 256), (256, 64))
    """
    wide = min(max(64, next_power_of_two(row_bytes)), 256)
    return 16384 // wide, wide


@functools.cache
def by_tma(rows: int, row_bytes: int, transposed: bool = False) -> Kernel:
    """Return the kernel that copies rows which TMA can address, as arrays of four dimensions, in
    blocks of so many rows and bytes.

    transposed  a is (…, N, M) and o is (…, M, N): tiles are transposed in shared memory, so that
                both sides access whole lines

    A CTA copies `run` neighboring blocks, then continues after the runs of all CTAs. On an H200, a
    run of 1 or twice the slots costs about 1 %. Rows of blocks are walked `group` at a time, column
    by column; for a transpose, which reads 256 adjacent bytes with groups of 2, this gains 4 %. The
    eviction policies make the L2 cache write the copy to memory first, because it will not be read
    soon, rather than drop blocks of the source that were just read; this gains 2 %.
    """
    run, group, outs = (1, 2, 3) if transposed else (8, 1, 2)

    @numpipe_kernel(grid=persistent(), grid_names="cta", num_compute_wgs=2)
    def copy_tma(a, o):  # type: ignore[no-untyped-def]
        """Compute o = a, or a with its last two dimensions exchanged."""
        wg, cta, ctas = axis_index("wg"), axis_index("cta"), axis_size("cta")
        columns = row_bytes // np.dtype(a.dtype).itemsize
        # in transposed copies, and with few rows in a block, each warpgroup moves half of the
        # columns
        half = columns // 2
        own = ds(wg * half, half)
        wide, high = cdiv(o.shape[3], columns), cdiv(o.shape[2], rows)
        begun = begin_strips(high, wide, group)
        blocks = o.shape[0] * o.shape[1] * high * wide
        # steps that are assigned in runs; the rest go one block at a time, to balance the CTAs
        whole = blocks // (run * ctas) * run

        def place(k):  # type: ignore[no-untyped-def]
            block = k * ctas + cta
            if run > 1 and k < whole:
                block = (k // run * ctas + cta) * run + k % run
            matrix = block // (high * wide)
            i, j = place_grouped(block % (high * wide), begun, group)
            return matrix // o.shape[1], matrix % o.shape[1], i, j

        def across(k):  # type: ignore[no-untyped-def]
            above, below, i, j = place(k)
            return above, below, j, i

        written = (None, None, rows, columns)
        read = (None, None, columns, rows) if transposed else written
        source = BlockSpec(read, across if transposed else place, eviction_policy="evict_last")
        target = BlockSpec(written, place, buffer_count=outs, eviction_policy="evict_first")
        steps = (cdiv(blocks - cta, ctas),)
        pipe = pipeline(
            grid=steps,
            max_concurrent_steps=3,
            in_specs=(source,),
            out_specs=(target,),
        )  # type: ignore[var-annotated]
        for _, (a_tile, o_tile) in pipe(a, o):
            if transposed:
                o_tile[:, own] = a_tile.at[own, :].T[...]
            elif rows > 64:
                upper = ds(wg * (rows // 2), rows // 2)
                o_tile[upper, :] = a_tile[upper, :]
            else:
                o_tile[:, own] = a_tile[:, own]

    return copy_tma  # type: ignore[no-any-return]


@functools.cache
def lanes(size: int, height: int, width: int, dims: int, both: bool = False) -> Kernel:
    """Return the kernel that gathers elements lane by lane into blocks that TMA stores.

    size    bytes of an element, 2 or 4
    height  rows of a block of o
    width   columns of a block
    dims    dimensions of the source's rows, 1…4
    both    whether it copies b to p, too
    """
    each = height * width // 128  # elements per lane

    @numpipe_kernel(
        grid=persistent(),
        grid_names="cta",
        warp_specialized=False,
        num_compute_wgs=WARPGROUPS,
        without=() if both else ("b", "p", "pitch_b"),
        compiler_params=CompilerParams(lowering_semantics=LoweringSemantics.Lane),
    )
    def copy_lanes(a, b, o, p, *, pitch, pitch_b):  # type: ignore[no-untyped-def]
        """Copy the rows of a, which has five dimensions, to the rows of o, which has one every
        `pitch` elements."""
        ctas, wgs = axis_size("cta"), axis_size("wg")
        workers = ctas * wgs  # warpgroups work independently
        # adjacent blocks on one SM; few are spread over the SMs
        mine = axis_index("cta") * wgs + axis_index("wg")
        if cdiv(o.shape[0], height) * cdiv(o.shape[1], width) <= workers:
            mine = axis_index("wg") * ctas + axis_index("cta")

        def gather(a, o, pitch, first):  # type: ignore[no-untyped-def]
            """Copy a to o, from block `first` on. Return the first block of a further array."""
            wide = cdiv(o.shape[1], width)
            blocks, across = cdiv(o.shape[0], height) * wide, divisor(wide)
            by_pitch = divisor(pitch)
            steps, group = cdiv(blocks - first, workers), divide(o.shape[1], by_pitch)
            rows = a.shape[0] * a.shape[1] * a.shape[2] * a.shape[3]
            by_1, by_2, by_3 = divisor(a.shape[1]), divisor(a.shape[2]), divisor(a.shape[3])

            def place(k):  # type: ignore[no-untyped-def]
                block = k * workers + first
                i = divide(block, across)
                return i, block - i * wide

            def element(number, column):  # type: ignore[no-untyped-def]  # of a row, both clamped to the last
                m = min(number, rows - 1)
                k = divide(m, by_3) if dims > 1 else 0
                h = divide(k, by_2) if dims > 2 else 0
                g = divide(h, by_1) if dims > 3 else 0
                column = min(column, a.shape[4] - 1)
                return a[g, h - g * a.shape[1], k - h * a.shape[2], m - k * a.shape[3], column]

            def body(indices, tile):  # type: ignore[no-untyped-def]
                i, j = place(indices[0])
                lane = lane_index()

                def own(n):  # type: ignore[no-untyped-def]  # row and column in the block of the lane's element n
                    if width < 128:
                        return lane // width + n * (128 // width), lane % width
                    return n % height, lane + n // height * 128

                def value(n):  # type: ignore[no-untyped-def]
                    r, c = own(n)
                    x = j * width + c
                    within = divide(x, by_pitch)
                    return element((i * height + r) * group + within, x - within * pitch)

                values: Any = ()  # all are loaded before the first is stored
                for n in static_range(each):
                    values += (value(n),)
                for n in static_range(each):
                    tile[own(n)] = values[n]

            emit_pipeline(
                body,
                grid=(steps,),
                out_specs=(BlockSpec((height, width), place, buffer_count=2),),
            )(o)
            return first + steps * workers - blocks

        following = gather(a, o, pitch, mine)
        if b is not None:
            gather(b, p, pitch_b, following)

    return copy_lanes  # type: ignore[no-any-return]


@functools.cache
def turned(height: int, width: int) -> Kernel:
    """Return the kernel that transposes blocks of `height` x `width` elements in shared memory."""

    @numpipe_kernel(
        grid=lambda a: (
            math.prod(a.shape[:2]) * cdiv(a.shape[2], height) * cdiv(a.shape[3], width),
        ),
        warp_specialized=False,
        compiler_params=CompilerParams(ctas_per_sm=8),
    )
    def copy_turned(a, o):  # type: ignore[no-untyped-def]
        """Copy a (…, N, M) to o (…, M, N), a block for each CTA."""
        block = scratch(SMEM((height, width), a.dtype))
        wide, high = cdiv(a.shape[3], width), cdiv(a.shape[2], height)
        matrix, number = program_id(0) // (wide * high), program_id(0) % (wide * high)
        above, below = matrix // a.shape[1], matrix % a.shape[1]
        rows = ds(number % high * height, height)  # whole rows of o at a time
        columns = ds(number // high * width, width)
        block[...] = a[above, below, rows, columns]
        o[above, below, columns, rows] = block.T[...]

    return copy_turned  # type: ignore[no-any-return]


@functools.cache
def sectors(height: int, width: int, size: int) -> Kernel:
    """Return the kernel that transposes matrices whose rows begin anywhere, in blocks of `height`
    rows and `width` words of 4 bytes, a power of two; elements have `size` bytes.

    A store of a part of a sector of 32 bytes is slow: on an H200, 0.58 of a copy instead of 0.87.
    So of each row of o, a CTA stores from the sector in which its block begins up to the one in
    which the next block begins, and loads a sector more rows of a. A block with all rows of a
    stores whole rows of o instead.

    Elements of 16 bits are loaded and stored as words, wherever in a word a row begins. A lane
    combines halves of two words of shared memory, from neighboring rows of a. Even rows come before
    odd ones there, so that lanes access words that are an odd distance apart, in different banks.
    """
    fold, sector = 4 // size, SECTOR // size
    step, pitch = 128 // width, width | 1  # rows that are loaded at once, words of a row
    each, alike = cdiv(height + sector, step), step // fold  # loads; of a step, rows of one parity
    apart = each * alike * pitch  # from even to odd rows
    table = fold * apart

    @numpipe_kernel(
        grid=lambda matrices, n, wide: (wide * cdiv(n + sector * (n > height), height), matrices),
        warp_specialized=False,
        compiler_params=CompilerParams(ctas_per_sm=5, lowering_semantics=LoweringSemantics.Lane),
    )
    def copy_sectors(  # type: ignore[no-untyped-def]
        a, o, matrices, n, m, wide, columns, first_a, next_a, pitch_a, first_o, next_o, pitch_o
    ):
        """Copy matrices of n x m elements of a, transposed, to o.

        wide     blocks side by side
        columns  columns of a block: one less than a block's words have if rows of a may begin in
                 the middle of a word
        first_…  elements from the word in which an array begins to its beginning
        next_…   elements from matrix to matrix
        pitch_…  elements from row to row
        """
        block = scratch(SMEM((table + 4 * fold * width,), np.int32))
        more = sector if n > height else 0
        strips = begin_strips(cdiv(n + more, height), wide, GROUP)
        i, j = place_grouped(program_id(0), strips, GROUP)
        row, column = i * height - more, j * columns  # of the first element that is loaded
        inside = min(columns, m - column)
        source = first_a + program_id(1) * next_a + row * pitch_a + column
        target = first_o + program_id(1) * next_o + column * pitch_o + row

        def element(r, c):  # type: ignore[no-untyped-def]
            """Return which word of the block has an element, and which of its halves."""
            c += source + r * pitch_a & fold - 1
            return r // fold * pitch + r % fold * apart + c // fold, c % fold

        def start(c):  # type: ignore[no-untyped-def]
            """Return where the block's row 0 is in a row of o, and the first row to store."""
            result = target + c * pitch_o
            return result, -result & max(more, fold) - 1

        def load(indices):  # type: ignore[no-untyped-def]
            c = lane_index()
            down, right = c // width, c % width
            begin = source + down * pitch_a
            last = (inside - 1 + (begin & fold - 1)) // fold
            place = (begin >> fold - 1) + min(right, last)
            values: Any = ()  # all are loaded before the first is stored
            for k in static_range(each):
                values += (a.words[index(place + k * alike * pitch_a, "zero")],)
            if c < inside:  # meanwhile, what all lanes need to store column c
                result, begin = start(c)
                one, low = element(begin, c)
                two, high = element(begin + 1, c)
                halves = 0x5410 + low * 0x22 + high * 0x2200
                entry = one, two, halves + (begin << 16), (result + begin) // fold
                for k in static_range(4):
                    block[table + 4 * c + k] = entry[k]
            to = down // fold * pitch + down % fold * apart + right
            for k in static_range(each):
                block[to + k * alike * pitch] = values[k]

        def save(indices):  # type: ignore[no-untyped-def]
            warp, lane = lane_index() // 32, lane_index() % 32
            for c in range(warp, inside, 4):
                entry: Any = ()
                for k in static_range(4):
                    entry += (block[table + 4 * c + k],)
                one, two, halves, to = entry
                one += lane * pitch
                two += lane * pitch
                first = row + (halves >> 16) + fold * lane
                values: Any = ()
                for k in static_range(height // (32 * fold)):
                    value = block[one + k * 32 * pitch]
                    if fold > 1:
                        value = permute_bytes(value, block[two + k * 32 * pitch], halves)
                    values += (value,)
                for k in static_range(height // (32 * fold)):
                    whole = (k > 0 or first >= 0) and first + 32 * fold * k <= n - fold
                    o.words[index(to + lane + 32 * k if whole else -1, "zero")] = values[k]
            # the first and the last element of a row that begins or ends in the middle of a word
            c = lane_index()
            if fold > 1 and c < inside:
                result, begin = start(c)
                for end in range(2):
                    r = end * (n - 1) - row
                    if (more == 0 or begin <= r < begin + height) and (result + r) % 2 != end:
                        at, half = element(r, c)
                        o.flat[result + r - first_o] = block[at] >> 16 * half & 0xFFFF

        emit_pipeline(load, grid=(1,))()
        meet()
        emit_pipeline(save, grid=(1,))()

    return copy_sectors  # type: ignore[no-any-return]


@functools.cache
def columns(n: int, wide: int) -> Kernel:
    """Return the kernel that transposes a matrix of n rows. Each CTA copies all rows of `wide`
    columns, which are contiguous in o."""
    high = 128 // wide  # rows that are loaded at once
    each = cdiv(n, high)

    @numpipe_kernel(
        grid=lambda m: (cdiv(m, wide),),
        warp_specialized=False,
        compiler_params=CompilerParams(
            ctas_per_sm=min(16, 512 // (each + 32)), lowering_semantics=LoweringSemantics.Lane
        ),
    )
    def copy_columns(a, o, m, pitch):  # type: ignore[no-untyped-def]
        """Copy a, which has a row of m elements every `pitch` elements, transposed, to o."""
        block, first = scratch(SMEM((wide * n,), o.dtype)), program_id(0) * wide

        def load(indices):  # type: ignore[no-untyped-def]
            c, r = lane_index() % wide, lane_index() // wide
            values: Any = ()  # all are loaded before the first is stored
            for k in static_range(each):
                values += (a[index(first + c + (r + k * high) * pitch, "zero")],)
            for k in static_range(each):
                if r + k * high < n:
                    block[c * n + r + k * high] = values[k]

        emit_pipeline(load, grid=(1,))()
        meet()
        o[ds(first * n, wide * n, stop=m * n)] = load_tile(block, "row 128")

    return copy_columns  # type: ignore[no-any-return]


@numpipe_kernel(grid=persistent(), grid_names="cta", warp_specialized=False, num_compute_wgs=4)
def copy_blocks(a, o):  # type: ignore[no-untyped-def]
    """Copy a to o, both with five dimensions, in blocks loaded and stored by lanes."""
    ctas = axis_size("cta") * axis_size("wg")
    mine = axis_index("cta") * axis_size("wg") + axis_index("wg")
    wide, high = cdiv(o.shape[4], 64), cdiv(o.shape[3], 64)
    blocks = o.shape[0] * o.shape[1] * o.shape[2] * high * wide
    for step in range(cdiv(blocks - mine, ctas)):
        block = step * ctas + mine
        row, j = block // wide, block % wide
        matrix, i = row // high, row % high
        stack = matrix // o.shape[2]
        above, below, first = stack % o.shape[1], matrix % o.shape[2], stack // o.shape[1]
        rows, columns = ds(i * 64, 64), ds(j * 64, 64)
        o[first, above, below, rows, columns] = a[first, above, below, rows, columns]


@numpipe_kernel(
    grid=lambda a: (cdiv(a.shape[1], PART),),
    warp_specialized=False,
    compiler_params=CompilerParams(ctas_per_sm=8),
)
def copy_line(a, o):  # type: ignore[no-untyped-def]
    """Copy a to o, both with one row, a part for each CTA."""
    part = ds(program_id(0) * PART, PART)
    o[ds(0, 1), part] = a[ds(0, 1), part]


def _launch(a: ArrayInfo, out: ArrayInfo, place: Place) -> None:
    launch.check_overlap([a, out], ["a", "out"], 1, "copy")
    copy_into(a, out, place)


@op(
    operands={"a": ""},
    results={"out": lambda a: same(a)},
    types=(),
    launch=_launch,
    gradients={"a": lambda grad_out: grad_out},
    batching="leading",
)
def copy(
    a: Any,
    *,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return a C-contiguous copy of an array, in the same library and on the same device.

    a               an array of elements of 8, 16, 32 or 64 bits, with any strides, including
                    steps and reversed or repeated dimensions
    out             an array of the same shape and type, with any strides, to write to and return
    target, stream  as for any kernel

    Raises SpecError for an `out` of another shape, type or device.

    >>> a = np.arange(12, dtype=np.float16).reshape(3, 4)
    >>> copy(a.T, target="sim").flags.c_contiguous
    True
    """


def copy_into(source: ArrayInfo, result: ArrayInfo, place: Place) -> None:
    """Copy one array to another of the same shape and element type that does not overlap it."""
    copy_all([(source, result)], place)


def copy_all(
    pairs: Sequence[tuple[ArrayInfo, ArrayInfo]], place: Place, padded: bool = False
) -> None:
    """Copy arrays (`copy_into`), two by one launch where lanes look up elements. With `padded`,
    bytes between the rows of results may be overwritten."""
    looked_up: dict[int, list] = {}
    for source, result in pairs:
        places = source.address % 16, result.address % 16
        layout = source.shape, source.strides, result.strides, source.dtype.itemsize
        for way, size, read, written, pitch in ways(*layout, places, padded):
            ends = (source, read), (result, written)
            arrays = [window(*end, size) for end in ends]
            # on a GPU, the copy of a host array begins with a word, wherever the array begins
            moved = any(
                info.kind == "host" and (info.address + part.offset) % 4 for info, part in ends
            )
            if way == "sectors" and moved and place.get("target") != "sim":
                way = "turned"
            if way == "rows":
                by_tma(*blocks_of(read.shape[3] * size))(*arrays, **place)
            elif way == "turned":
                rows, wide = read.shape[2:]
                if min(rows, wide) > 8:
                    block = (64 // size, 64) if math.prod(read.shape) < SMALL else (32, 128)
                else:  # few elements of larger blocks would be inside the matrix
                    block = (8, 256 // size) if rows <= 8 else (256 // size, 8)
                turned(*block)(*arrays, **place)
            elif way == "columns":
                _, _, n, m = read.shape
                flat = [window(info, whole(part, size), size) for info, part in ends]
                columns(n, 128 >> (n > 64))(*flat, m, read.strides[2] // size, **place)
            elif way == "sectors":
                _sectors(size, ends, place)
            elif way == "transposed":
                by_tma(64, 256, True)(*arrays, **place)
            elif way == "line":
                copy_line(*arrays, **place)
            elif way == "lanes":
                looked_up.setdefault(size, []).append((*arrays, pitch))
            else:
                copy_blocks(*arrays, **place)
    for size, copies in looked_up.items():
        for k in range(0, len(copies), 2):
            _gather(size, copies[k : k + 2], place)


def _sectors(size: int, ends: Sequence[tuple[ArrayInfo, Part]], place: Place) -> None:
    """Launch `sectors` for parts of a source and of a target."""
    (_, matrices, n, m), fold = ends[0][1].shape, 4 // size
    places = [
        number // size
        for info, part in ends
        for number in ((info.address + part.offset) % 4, *part.strides[1:3])
    ]
    odd = any(number % fold for number in places[:3])
    width = next_power_of_two(min(cdiv(m + odd, fold), 32 << (n <= 64 * fold)))
    across = fold * width - odd
    wide = cdiv(m, across)
    # about 32 KB, or half of it for more blocks
    most, reach = max(128, min(512, 4096 // width)) * fold, n + SECTOR // size
    if matrices * wide * cdiv(n, most) < 3 * DEFAULT.sms:
        most //= 2
    # blocks of one height, with few rows outside the matrix
    height = round_up(cdiv(reach, cdiv(reach, most)) if n > most else n, 32 * fold)
    sectors(height, width, size)(
        *(window(info, whole(part, size), size, LANES) for info, part in ends),
        *(matrices, n, m, wide, across, *places),
        **place,
    )


def _gather(size: int, copies: list[tuple[ArrayInfo, ArrayInfo, int]], place: Place) -> None:
    """Launch `lanes` for one or two copies."""
    sources, results, pitches = zip(*copies, strict=True)
    rows, columns = max((info.shape for info in results), key=math.prod)
    width = 128 // size
    # blocks of 4 KB, or of 1 KB if there is one for each warpgroup. Lanes look up fewer rows in
    # wide blocks
    wide = rows < 32 or 16 * round_up(columns, 4 * width) <= 17 * columns
    block = (8, 4 * width) if wide else (32, width)
    if rows * columns * size <= 1024 * WARPGROUPS * DEFAULT.sms:
        block = 8, width
    dims = max(sum(count > 1 for count in info.shape[:4]) for info in sources)
    scalars = dict(zip(("pitch", "pitch_b"), pitches, strict=False))
    lanes(size, *block, dims, len(copies) > 1)(*sources, *results, **scalars, **place)


def whole(part: Part, size: int) -> Part:
    """Return the memory from a part's first element to its last as an array of one dimension.

    >>> whole(Part(0, (3, 2), (8, 2)), 2)
    Part(offset=0, shape=(10,), strides=(2,))
    """
    last = sum((count - 1) * stride for count, stride in zip(part.shape, part.strides, strict=True))
    return Part(part.offset, (last // size + 1,), (size,))


def window(info: ArrayInfo, part: Part, size: int, kinds: dict = MOVED) -> ArrayInfo:
    """Return a part of an array's memory as an array of elements of `size` bytes."""
    dtype, at, array = kinds[size], info.address + part.offset, None
    if info.array is not None:
        array = memory(at, part.shape, part.strides, dtype, info.writable, info.array)
    return info._replace(
        ptr=at if array is None else 0,
        shape=part.shape,
        strides=part.strides,
        dtype=dtype,
        array=array,
    )
