"""Schedules of kernels over rows: which lanes have a row, and how they read it.

============  ==========================  ==================================================
rows are      a row belongs to            and is read
============  ==========================  ==================================================
short         lanes of one warp           once, into registers; many contiguous rows through
                                          shared memory, where the next rows are loaded
                                          during a computation
long          warpgroups of a CTA         once, into registers
longer        a CTA, or a cluster of      once, into shared memory, where each pass over the
              CTAs                        row finds it. What does not fit is read again from L2
longer, not   a CTA, or a cluster of      once for each pass, later ones from L2
for TMA, or   CTAs if rows are few
of one pass
============  ==========================  ==================================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from ..arch.dimensions import round_up
from ..arch.dtypes import FLOAT32
from ..arch.target import LINE
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import Function
from ..language.tiles.layout_names import ROWS
from ..language.tiles.row_layouts import WHOLE, shared_lanes, shared_run
from ..language.tiles.warp_parts import GROUP, STEP
from . import row_blocks, row_registers

PART = 8192
"""most columns of a warpgroup's part of a row in registers: 64 elements per lane leave an SM room
for several CTAs (measured on an H200)"""
MOST_WARPGROUPS = 4
"""that share a row"""
ODD = 9664
"""most columns of 16-bit rows of odd length in the registers of a warpgroup, 76 for each lane. More
warps, and passes over shared memory, take more instructions (measured on an H200)"""
CHUNK = 8192
"""bytes of a warpgroup's chunk of a longer row"""
GROUPS = 2048
"""columns of a warpgroup's chunk of a row of groups that begins anywhere, if it is longer (measured
on an H200)"""
SHARED = 65536
"""bytes of a part of a row in shared memory: an SM has room for three (measured on an H200)"""
LIGHT = 49152
"""the same, of a kernel that loads one matrix and holds nothing else, for smaller CTAs"""
MOST_SHARED = 212992
"""most bytes, of rows that are longer than CLUSTER such parts"""
CLUSTER = 8
"""most CTAs that share a row"""
EXCHANGE, OWN, MORE = 8192, 3072, 640
"""bytes that an SM loads while a CTA exchanges numbers with another one of its cluster (measured on
an H200), bytes of shared memory that a CTA has in addition to its part of a row, and how many more
it has in a cluster of many warpgroups"""
PLACES = {1: (132, 0), 2: (132, 0), 3: (122, 5), 4: (122, 0), 6: (123, 21), CLUSTER: (120, 0)}
"""by CTAs of a cluster: SMs that clusters can fill, and CTAs for which there is no room on them,
because a cluster runs inside one GPC. Measured on an H200: 39 clusters of 3 run at once if an SM
has room for one of their CTAs, 79 if it has room for two, and 163 if it has room for four"""
ROOM = 3 * DEFAULT.sms
"""CTAs for which the GPU has room at once"""
TURNS = 16
"""fewest rows of each CTA that loads its next rows while it computes one: the last ones may leave
SMs idle"""
TILE, PACKED_TILE = 3072, 8192
"""most elements of a block of more than eight contiguous rows, and of 16-bit elements that are only
reduced (measured on an H200)"""
LEAST, STARTS = 6144, 2048
"""fewest bytes of rows in registers of each of at least STARTS CTAs, and most bytes of a row of a
warp if a kernel keeps nothing else: an H200 starts at most 800 CTAs in a microsecond"""
MOST = 8192
"""most bytes of a row of a warp if a kernel computes much for each row"""
MIDDLE = 3072
"""most columns of a row of a warp if a kernel computes much for each row, and holds values"""
PAIRS = 1792
"""most columns of an even 16-bit row of a warp if the kernel holds nothing: with more, ptxas would
spill"""
SHORT_ROW = 80
"""most columns of rows for which `short_tile` chooses a tile"""
FEW = 4
"""warpgroups of an SM that have enough registers for all that lanes do at once"""
PHASES = 32
"""of a `Barrier`: slots of all warpgroups"""


class Needs(NamedTuple):
    """What a kernel over rows asks of its schedule.

    operands  matrices whose rows it loads
    held      float32 matrices that it computes and keeps; 0: only what it loads
    once      whether it has one pass over a row: one reduction or one store
    unit      its tiles begin and end at multiples of so many columns: 1 or 128
    scans     whether it scans rows
    by_row    whether it computes much for each row, so that lanes have more columns of fewer rows
    """

    operands: int = 1
    held: int = 0
    once: bool = False
    unit: int = 1
    scans: bool = False
    by_row: bool = False

    @property
    def values(self) -> int:
        """The number of matrices whose rows it has in registers."""
        return max(self.held, self.operands)

    @property
    def brief(self) -> bool:
        """Whether it only reduces rows, and keeps nothing in addition to what it loads."""
        return self.once and not self.held and self.unit == 1


ONE = Needs()
"""one matrix, in any number of passes"""


@dataclass(frozen=True)
class Rows:
    """A schedule of a kernel over rows of n columns.

    n        columns of a row
    height   rows of a warpgroup's tile; 1: a tile is a part of one row
    width    columns of a warpgroup's tile
    wgs      warpgroups of a CTA that share a row
    whole    leading columns of a tile in registers that are inside the row in every warpgroup
    ctas     CTAs that an SM has registers for, at least
    steps    0: a row is in registers. Else the steps of a pass over a row, a tile of each
             warpgroup in each
    slots    tiles of each warpgroup, and of each loaded matrix, in shared memory. If a row is in
             registers of a CTA that computes several, they are those of the next rows
    cluster  CTAs that share a row, each with some chunks of each step
    needs    what the kernel asks of its schedule; `needs.operands` is the number of matrices that
             it loads
    dtype    element type of these matrices
    flat     whether TMA loads parts of the flat array: rows begin at any element
    loops    whether a CTA computes several blocks of rows
    layout   layout of a tile of several rows; "": the one that `lanes` chooses
    rereads  whether a kernel that stores what it computes from two matrices does so in its first
             pass, and loads that again in later ones, from L2

    A kernel over rows calls its functions. A value of a row is a function of its columns, j: it
    returns a float32 tile (rows, columns), for example ``x_(j) * gamma[j]``.

    ===================================  ==========================================================
    ``for k in row.blocks(x):``          the blocks of rows of x that this program computes
    ``x_, block = row.load(k, x)``,      the rows of block k of one or two matrices, as values, and
    ``x_, y_, block = row.load(k, x,     what `store` needs
    y)``
    ``row.load(k, x, dtype=x.dtype)``    the same, as values of the type of x, for
                                         ``row.max(f, x.dtype)`` and ``row.argmax(f, x.dtype)``
    ``row.vector(v)``                    a vector with an element for each column, as a value: one
                                         load for all rows where a CTA computes several
    ``row.sum(f)``, ``row.mean(f)``,     the sum, the mean or the maximum of each row of a value,
    ``row.max(f)``                       (rows, 1)
    ``row.argmax(f)``                    the first column with the maximum of each row, or with NaN,
                                         (rows, 1), int32
    ``row.sums(f, g)``                   the sums of two values, in one pass
    ``row.moments(f)``                   the mean and the variance of each row, (rows, 1)
    ``row.softmax(f, off=0.0)``          (softmax of each row as a value, log(sum(exp(f - off))))
    ``row.store(block, y, f)``,          store values to the rows of one or two matrices; call it
    ``row.store(block, y, f, z, g)``     once for each block
    ``row.column(j)``                    the column of each element, (1, columns), int32
    ``row.random(k, j, seed)``           random float32 numbers in [0, 1), which depend on the seed,
                                         row and column alone
    ``row.each_group(k, v, f, change)``  the value f with each group of 128 adjacent columns
                                         changed: ``change(groups)`` gets one group of several rows,
                                         or several of one row, (groups, columns), and returns new
                                         groups and a number for each, (groups, 1), an element of
                                         the matrix v (rows, groups of a row). 128 columns, of which
                                         those outside the row are 0, or only those inside it
    ``row.get(k, v)``,                   load and store an element of a vector for each row,
    ``row.put(k, v, values)``,           (rows, 1), or of column c of a matrix
    ``row.put(k, v, values, c)``
    ===================================  ==========================================================

    Tiles may be wider than the row. Their elements from column n on are undefined; these functions
    leave them out, and stores skip them.
    """

    _same_stores: ClassVar[bool] = True
    """whether the functions of all values store to the same arguments"""
    n: int
    height: int
    width: int
    wgs: int = 1
    whole: int = 0
    ctas: int = 1
    steps: int = 0
    slots: int = 0
    dtype: np.dtype = FLOAT32
    flat: bool = False
    loops: bool = False
    cluster: int = 1
    needs: Needs = ONE
    layout: str = ""
    rereads: bool = False

    @property
    def shifts(self) -> int:
        """The most elements that are loaded before a row that may begin anywhere: from the start of
        the line that has its first column."""
        return LINE // self.dtype.itemsize - 1 if self.flat and not self.loops else 0

    @property
    def lanes(self) -> str:
        """The layout of tiles of rows; "": the default. In groups of short rows that begin at
        multiples of 16 bytes, lanes have four adjacent columns."""
        height, itemsize, needs = self.height, self.dtype.itemsize, self.needs
        aligned = self.n * itemsize % 16 == 0
        if self.layout:
            return self.layout
        if self.loops and height == 1:
            # loads and stores of four elements take fewer instructions than of two
            return f"{ROWS} {WHOLE} {4 if needs.unit > 1 else 16 // itemsize}"
        if self.loops:
            # of more rows of a warp, elements would often be in the same banks
            lanes = max(shared_lanes(height, self.n, itemsize), 16 * (needs.unit > 1))
            run = 2
            if needs.scans and lanes > 1 and itemsize == 2:
                # an odd number of words from lane to lane, so that they have different banks
                run = 4 * cdiv(self.n - 2 * lanes, 4 * lanes) + 2
            elif not needs.by_row:
                run = shared_run(self.n, itemsize, lanes)
            return f"{ROWS} {lanes}" + f" {run}" * (run > 2)
        if self.flat:
            return f"{ROWS} {WHOLE}"
        if needs.unit > 1 and height > 1 and aligned and self.n >= GROUP:
            return f"{ROWS} 32 4"
        # lanes that each have two rows, or six of a higher tile
        by_row = (needs.brief or needs.by_row) and height > 1
        return f"{ROWS} {min(32, 256 // (height & -height))}" if by_row else ""

    def __getattr__(self, name: str) -> Function:
        # a schedule that is being unpickled has no fields yet
        if name.startswith("_") or name not in (known := functions(self)):
            raise AttributeError(f"a schedule of rows has no function '{name}'")
        return known[name]


@functools.cache
def functions(rows: Rows) -> dict[str, Function]:
    """Return the functions of a schedule, by name."""
    if rows.steps:
        return row_blocks.functions(rows)
    return row_registers.functions(rows)


@dataclass(frozen=True)
class Request:
    """The rows that a schedule is for, and the kernel over them.

    n        columns of a row
    needs    what the kernel asks of its schedule
    dtype    element type of the matrices that it loads
    aligned  whether TMA can load their rows: all begin at multiples of 16 bytes
    flat     whether TMA can load parts of them as flat arrays: they are contiguous
    count    rows of each matrix
    vectors  vectors along the columns, which a CTA that has several rows loads once
    wide     whether elements of a vector have more bytes than those of the matrices

    `choose` clears `flat` where rows are not loaded as parts of a flat array. The properties are
    those of the request after that.
    """

    n: int
    needs: Needs = ONE
    dtype: np.dtype = FLOAT32
    aligned: bool = True
    flat: bool = False
    count: int = ROOM
    vectors: int = 0
    wide: bool = False

    @property
    def pairs(self) -> bool:
        """Whether the number of columns is even: lanes load pairs of elements quickly, but single
        elements slowly."""
        return self.n % 2 == 0

    @property
    def size(self) -> int:
        """Bytes of one row of all loaded matrices together."""
        return self.n * self.needs.operands * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of registers for one column of a row."""
        return max(4 * self.needs.held, self.needs.operands * self.dtype.itemsize)

    @property
    def compute_bound(self) -> bool:
        """Whether instructions take longer than loads (measured on an H200). Fewer warps for each
        row are then faster, because they execute fewer instructions."""
        return self.needs.by_row and self.needs.held > 0 and self.dtype.itemsize < 4

    @property
    def tma(self) -> bool:
        """Whether TMA can load rows that are too long for a warp. Lanes load them where that is
        faster."""
        return self.aligned or self.flat

    @property
    def odd(self) -> bool:
        """Whether rows of an odd number of columns, of a kernel with several passes, are loaded as
        parts of a flat array: lanes would load their elements one by one."""
        return self.flat and not (self.needs.once or self.pairs)

    @property
    def groups(self) -> bool:
        """Whether lanes load groups of 128 columns, in one pass. The groups are independent, so
        small CTAs can share a row."""
        return self.needs.once and self.needs.unit > 1 and not self.tma

    @property
    def plain(self) -> bool:
        """Whether the kernel loads one matrix, not as parts of a flat array, and keeps nothing in
        addition to what it loads."""
        return not (self.needs.held or self.flat) and self.needs.operands == 1

    @property
    def product(self) -> bool:
        """Whether a single pass computes values that it keeps, with a vector along the columns,
        such as the sum of a row times a vector."""
        return self.needs.once and self.needs.held > 0 and self.vectors > 0

    @property
    def single(self) -> bool:
        """Whether the kernel does nothing more once a row is in shared memory."""
        needs = self.needs
        return needs.once or (needs.operands > 1 and not (needs.held or self.vectors))

    @property
    def small_ctas(self) -> bool:
        """Whether more than four CTAs of an SM have one warpgroup each. Not if there are two
        vectors along the columns: each CTA loads its part of them, so fewer CTAs are better."""
        return (self.product or not self.needs.held) and self.vectors < 2

    @property
    def light(self) -> bool:
        """Whether an SM has registers for six CTAs: the kernel is `plain`, and rows are neither few
        nor very many. In many rows, more and smaller parts are slower if there are vectors along
        the columns (measured on an H200)."""
        count = self.count
        return self.plain and 2 * count > ROOM and count * self.size <= 4 * ROOM * SHARED

    @property
    def schedule(self) -> Callable[..., Rows]:
        """A function that makes schedules of these rows from the other fields of `Rows`."""
        return functools.partial(Rows, self.n, dtype=self.dtype, needs=self.needs)


@functools.lru_cache(maxsize=1024)
def choose(request: Request) -> Rows:
    """Return the schedule for rows.

    >>> of = lambda *given, **options: choose(Request(*given, **options))
    >>> of(1024).height, of(1024).width, of(1024).ctas
    (8, 1024, 4)
    >>> of(16384).wgs, of(65536).steps, of(65536).slots, of(65536).cluster
    (2, 4, 4, 8)
    >>> half = np.dtype(np.float16)
    >>> [of(24000, Needs(2, held=1), half, count=count).wgs for count in (130, 180, 1000)]
    [4, 2, 2]
    >>> of(5811, dtype=half, aligned=False, flat=True, count=1000).ctas
    5
    >>> [
    ...     of(n, Needs(once=once), half, False, True, 316).cluster
    ...     for n, once in ((27521, False), (27521, True), (127521, True))
    ... ]
    [2, 2, 8]
    >>> product = Needs(held=1, once=True)
    >>> [of(n, product, half, count=1206, vectors=1).width for n in (64576, 65536)]
    [4096, 8192]
    """
    n, unit = request.n, request.needs.unit
    # lanes load groups of even rows quickly, as pairs, and a last group of one column would be no
    # matrix
    groups_fit = unit == 1 or (n % 2 > 0 and n % unit > 1)
    request = replace(request, flat=request.flat and not request.aligned and groups_fit)
    if n <= _most_of_warp(request):
        return _of_warp(request)
    # groups of longer rows are not loaded as parts of a flat array
    request = replace(request, flat=request.flat and unit == 1)
    return _looping(request) or _in_registers(request) or _of_ctas(request)


def _most_of_warp(request: Request) -> int:
    """Return the length, in columns, up to which a row belongs to lanes of one warp."""
    needs, count, pairs, nbytes = request.needs, request.count, request.pairs, request.nbytes
    by_row, bound = needs.by_row, request.compute_bound
    # enough rows for three or four CTAs of eight rows on each SM
    enough = (24 if by_row or request.flat else 32) * DEFAULT.sms
    if (needs.brief or (bound and pairs)) and count >= enough:
        return MIDDLE if bound else (MOST if by_row else LEAST) // nbytes
    # a warp has registers for a row of pairs and its parts of two vectors
    packed = nbytes == 2 and pairs and needs.unit == 1 and count >= 32 * DEFAULT.sms
    return min(2048 // needs.values, PAIRS if packed else 1536)


def _looping(request: Request) -> Rows | None:
    """Return the schedule in which an SM has one CTA, which computes many long rows and has its
    parts of the vectors and of the next rows in shared memory; None if they do not fit, or if
    another schedule is faster."""
    n, needs, size, count = request.n, request.needs, request.size, request.count
    cluster = 1 << (cdiv(size, SHARED) - 1).bit_length()
    share, across = cdiv(size, cluster), MOST_WARPGROUPS * cluster
    slots = MOST_SHARED // share - (request.vectors << request.wide)
    many = count * cluster >= TURNS * DEFAULT.sms and n % (2 * STEP * across) == 0
    # with smaller parts, or a single vector, more CTAs are faster (measured on an H200)
    fits = cluster < CLUSTER and share > LIGHT and slots > 0
    faster = not needs.once and max(needs.unit, request.vectors) > 1
    if not (request.plain and request.aligned and faster and many and fits):
        return None
    width = n // across
    return request.schedule(
        1, width, MOST_WARPGROUPS, width, 1, 0, min(slots, 2), loops=True, cluster=cluster
    )


def _in_registers(request: Request) -> Rows | None:
    """Return the schedule with a row in registers of up to MOST_WARPGROUPS warpgroups; None for
    rows that are too long, or that fit at once in shared memory but not in registers."""
    n, needs, count = request.n, request.needs, request.count
    odd, nbytes = request.odd, request.nbytes
    itemsize, values, groups, wgs = request.dtype.itemsize, needs.values, request.groups, 1
    part = PART * 4 // max(nbytes, 4)
    if odd and (values, itemsize) == (1, 2) and count >= ROOM:
        part = ODD
    # columns beyond `part` that one warpgroup has; of few rows, an SM would have too few warps
    longer = PART // 2 * (request.compute_bound and count > 4 * DEFAULT.sms)
    while n > part * wgs + longer:
        wgs *= 2
    longest = max(part, PART) if odd else 2 * part
    # lanes load adjacent elements of odd 16-bit rows one by one
    if groups and not request.pairs and itemsize < 4:
        longest = GROUPS
    # with more warpgroups, an SM has room for a single row, and loads nothing while it computes
    if wgs > MOST_WARPGROUPS or (n > longest and (request.tma or groups)):
        return None
    width = round_up(cdiv(n + odd * (LINE // itemsize - 1), wgs), STEP)
    whole = max(0, n - (wgs - 1) * width) // STEP * STEP
    live = width * nbytes // 512 + 28 + 16 * values
    live += (28 + 24 * request.wide) * (odd and n > PART // 2)
    if needs.brief:
        live = max(live - 16 * values - 3, min(live, 60))
    # a lane of four warpgroups has no registers for one more
    ctas = with_room(max(1, 512 // live // wgs), count, wgs, needs.brief and wgs < 4)
    # lanes would load odd 16-bit rows by elements: they are in shared memory if all fit at once
    # there, but not in registers
    one_by_one = needs.once and request.flat and not request.pairs and itemsize < 4
    fit = DEFAULT.smem_bytes // (request.size + OWN) * DEFAULT.sms
    if one_by_one and ctas * DEFAULT.sms < count <= fit:
        return None
    return request.schedule(1, width, wgs, whole, ctas, flat=odd)


def _of_ctas(request: Request) -> Rows:
    """Return the schedule of rows that are too long for registers: each belongs to a CTA, or to a
    cluster of CTAs."""
    n, size, count, flat = request.n, request.size, request.count, request.flat
    needs, itemsize = request.needs, request.dtype.itemsize
    operands, held, once = needs.operands, needs.held, needs.once
    # in a kernel that loads a vector, single float32 elements of many rows are as fast as pairs
    # (measured on an H200)
    words = request.pairs or (request.vectors > 0 and itemsize == 4 and count > ROOM)
    direct = not request.tma or (once and words)
    if request.groups:
        most = 3 * CHUNK
    elif direct:
        most = 2 * size
    else:
        most = MOST_SHARED * itemsize // 8 if once else SHARED >> request.light
    # with parts of two matrices, one CTA of four warpgroups is the fastest (measured on an H200)
    lanes = 0 if not request.tma else 4 if operands > 1 else 16 if needs.brief else 12
    shared = functools.partial(
        shares, count, n + flat * LINE // itemsize, operands * itemsize, most
    )
    traits = once or not (held or request.vectors), request.single, request.small_ctas
    cluster, each = shared(0 if direct and held else lanes, *traits)
    # where lanes load few pairs at once, or rows are aligned, TMA is faster (measured on an H200)
    if direct and request.product and (request.aligned or 2 * count * cluster < 5 * DEFAULT.sms):
        cluster, each = shared(lanes, *traits)
    if direct and not each:
        return _by_lanes(request, cluster)
    # rows of two matrices that nearly fit in shared memory all run at once, too: a kernel stores
    # what it computes from them, and loads that again from L2
    memory = DEFAULT.sms * DEFAULT.smem_bytes
    rereads = operands > 1 and held > 0 and not each and 2 * count * size <= 3 * memory
    if rereads:
        cluster, each = shared(8, False, False, False, True)
        rereads = each > 0
    # rows of two matrices that fit in four CTAs, each with an SM of its own. Eight CTAs that share
    # SMs would take 6 to 10 % longer (measured on an H200)
    if operands > 1 and not each and CLUSTER * MOST_SHARED // size == 2:
        cluster, each = CLUSTER // 2, 1
    return _in_shared_memory(request, cluster, each, rereads)


def _by_lanes(request: Request, cluster: int) -> Rows:
    """Return the schedule in which `cluster` CTAs share a row, and lanes load it in each pass."""
    n, needs, count, pairs = request.n, request.needs, request.count, request.pairs
    operands, once, itemsize = needs.operands, needs.once, request.dtype.itemsize
    # smaller chunks leave registers for elements that are loaded one by one
    width = 2 * CHUNK // (itemsize if pairs else 4 * operands)
    wgs, ctas = 2, 3 + (cdiv(count, DEFAULT.sms) == 4) if once and needs.unit == 1 else 2
    # smaller chunks, so that a lane has registers for a masked last chunk and its part of a vector.
    # Otherwise some loads wait for others, or registers spill, which takes 1.4 to 1.7 times as
    # long. With few rows, this happens only if the second of two chunks is more than half full
    # (measured on an H200)
    across = cluster * wgs * width
    many = count > ROOM and (width > CHUNK // 2 or (request.tma and not pairs))
    if once and request.vectors and n % across and (many or 3 * across < 2 * n < 4 * across):
        width, ctas = width // 2, 4
    if request.groups:
        width, wgs = GROUPS, 1 + (n > 2 * PART)
        ctas = 12 // (wgs * operands)
    return request.schedule(1, width, wgs, 0, ctas, cdiv(n, cluster * wgs * width), cluster=cluster)


def _in_shared_memory(request: Request, cluster: int, each: int, rereads: bool) -> Rows:
    """Return the schedule in which `cluster` CTAs share a row, and TMA loads it into shared memory.

    each     CTAs of an SM, if all rows run at once, or 1 for rows of two matrices whose CTAs have
             an SM each; else 0, and the number follows from their registers and shared memory
    rereads  as in `Rows`
    """
    needs, flat, itemsize = request.needs, request.flat, request.dtype.itemsize
    operands, held, once, brief = needs.operands, needs.held, needs.once, needs.brief
    total, share = cluster * request.count, cdiv(request.size, cluster)
    # a lane of four CTAs has no registers for elements of two vectors of odd rows
    small_parts = (
        operands > 1
        and not (flat and request.vectors > 1)
        and share <= LIGHT
        and total > 2 * DEFAULT.sms
    )
    # more warps hide latency, above all where an SM has room for one or two CTAs, but those of more
    # CTAs would take longer to exchange numbers, and an SM has registers for two CTAs of so many if
    # a kernel holds values. Where it loads one matrix only, two warpgroups are always enough
    crowded = (
        flat
        or cluster > 2
        or needs.unit > 1
        or small_parts
        or (held and (operands == 1 or 2 * DEFAULT.sms < total <= ROOM))
    )
    large = share > SHARED
    light = request.light or (request.plain and not crowded and share <= LIGHT)
    # more warps have more loads of single elements of vectors along the columns in flight
    singles = request.odd and not held and (operands, itemsize) == (1, 4)
    several = 2 + (request.single or rereads)
    wgs = 4 if (each < several if each else large or singles or not (crowded or light)) else 2
    # fewer warps of a cluster exchange numbers sooner, if lanes compute much (measured on an H200)
    few_warps = brief and needs.by_row and itemsize < 4 and cluster > 2 and 1 < each < 5
    wgs = 1 if each > 4 and request.small_ctas else wgs >> few_warps
    # smaller chunks leave registers for more CTAs, for what a kernel holds in addition to what it
    # loads, and for vectors along the columns, which are loaded by elements where rows begin
    # anywhere
    small = not large and ((flat and not once) or light or small_parts or wgs == 4)
    if each > 3 or (each and request.single):
        small = few_warps or (each > 1 and (wgs > 1 or not brief))
    width = (CHUNK >> small) // itemsize
    width = max(STEP, min(width, CHUNK // 4 if rereads else width) >> max(0, held - 1))
    if each and request.product:
        width = CHUNK // 2 >> (itemsize > 2 and each * wgs > 4)
    steps, step = cdiv(request.n, cluster * wgs * width), wgs * operands * width * itemsize
    # CTAs of the next launch start early. Where some had room, they were distributed unevenly over
    # the SMs, which made kernels 15 to 40 % slower on an H200
    room = MOST_SHARED // max(each, 1) // step
    slots = min(max(steps, room) if each and not rereads else min(steps, room), PHASES // wgs)
    # three fit, if a kernel needs no more than 40 registers where four warpgroups share a part
    fit = 2 if wgs == 4 and not singles else 6 if light else 3 + small_parts
    ctas = each or max(1, min(fit, MOST_SHARED // share))
    return request.schedule(
        1, width, wgs, 0, ctas, steps, slots, flat=flat, cluster=cluster, rereads=rereads
    )


def shares(
    count: int,
    n: int,
    nbytes: int,
    most: int,
    lanes: int,
    short: bool,
    single: bool,
    small_ctas: bool,
    streams: bool = False,
) -> tuple[int, int]:
    """Return how many CTAs share each of `count` rows of n columns of `nbytes`, so that the busiest
    SM has the least to do, and how many CTAs an SM has if all rows are in shared memory at once,
    else 0.

    most        most bytes of a CTA's part of a row, unless all rows are in shared memory at once
    lanes       warpgroups that an SM has registers for
    short       whether the kernel does little else than load
    single      whether it does nothing more once a row is in shared memory
    small_ctas  whether more than four CTAs of an SM have one warpgroup each
    streams     whether all rows may run at once even if shared memory has no room for them

    >>> reduced = functools.partial(
    ...     shares, nbytes=2, most=65536, lanes=16, short=True, single=True, small_ctas=True
    ... )
    >>> reduced(76, 83008), reduced(126, 40320), reduced(554, 19296), reduced(5540, 99296)
    ((3, 2), (1, 1), (1, 5), (4, 0))
    """
    found = []
    for cluster, (sms, lost) in PLACES.items():
        each, own = cdiv(count * cluster + lost, sms), cdiv(n, cluster)
        wgs = 4 if each < 3 else 2
        part = round_up(own, wgs * STEP) * nbytes
        # many warpgroups exchange more numbers
        many = cluster > 4 and not (each > 4 and small_ctas)
        room = each * (part + OWN + many * MORE)
        at_once = each * wgs <= lanes and (streams or room <= DEFAULT.smem_bytes)
        if at_once or cluster == CLUSTER or (cluster in (1, 2, 4) and own * nbytes <= most):
            # CTAs that run at once exchange numbers at once
            exchanges = (cluster - 1) * (1 if at_once else cdiv(each, 3) << short)
            # an SM that has fewer than three CTAs is idle at times, unless all rows are in shared
            # memory at once. If not even three CTAs fit, it takes as long as with four. The first
            # loads and the last stores of a CTA overlap with nothing
            least = 3 + (own * nbytes > most)
            ends = 0 if (single if at_once else short) else 0.5 / (1 + streams)
            turns = (each if at_once else max(each, least)) + ends
            found.append((turns * own * nbytes + EXCHANGE * exchanges, cluster, each * at_once))
    return min(found)[1:]


def _of_warp(request: Request) -> Rows:
    """Return the schedule of short rows: lanes of a warp have them in registers, or blocks of
    contiguous ones go through shared memory."""
    n, needs, count, vectors = request.n, request.needs, request.count, request.vectors
    brief, unit, values, itemsize = needs.brief, needs.unit, needs.values, request.dtype.itemsize
    nbytes = request.nbytes if brief else 4 * values
    # eight odd rows of one-byte elements end inside 16 bytes, of which copies have a multiple
    flat = request.flat and itemsize > 1
    # 16-bit elements of rows that are only reduced
    packed, by_row = nbytes < 4 * values, brief or needs.by_row
    height = 8 if brief or n <= 1536 else 4
    # lanes with more elements of few rows take fewer instructions for each
    while height < 32 and height * n < (3073 if by_row and count > STARTS * height else 2048):
        height *= 2
    # a warp that only reduces rows loads its own quickly wherever they begin, and so do a few lanes
    # that share a float32 row, if a CTA has enough bytes
    by_lanes = needs.by_row and not packed and (n <= 40 or height * n * nbytes >= LEAST)
    if flat and height > 4 and not (brief and (height == 8 or by_lanes)):
        # what gradients compute for each row pays for larger blocks, and takes more registers
        more = needs.by_row and needs.held > 0
        tile = 2 * TILE if unit > 1 else TILE + more * TILE // 2
        room = (PACKED_TILE if packed else tile) // (n * values)
        height = max(8, min(256, 1 << room.bit_length() - 1))
        span = height * n
        # two blocks, results of one byte, and what warps exchange
        size = span * (2 * needs.operands * itemsize + 1) + 4096
        shared = n * vectors // shared_lanes(height, n, itemsize)
        live = span * (values + more * (height > 8)) // 128 + shared + 20
        most = max(1, min(4 if packed else 8, 544 // live, MOST_SHARED // size))
        if most > 3 or not needs.scans:
            # 5 to 7, or more than 8, are up to 15 % slower than 4 or 8 (measured on an H200)
            most = 1 << most.bit_length() - 1
        return request.schedule(height, n, 1, n, most, flat=True, loops=True)
    size = n * itemsize
    if brief and size in (32, 64) and count > 64 * STARTS:
        # lanes that load 16 bytes at once take fewer instructions, and have more rows of a CTA
        return request.schedule(
            8192 // size, n, 1, n, 8, layout=f"{ROWS} {size // 16} {16 // itemsize}"
        )
    # lanes have pairs of columns; all pairs but those of the last group of lanes are inside
    wide = n + n % 2
    if n <= (40 if brief else SHORT_ROW) and unit == 1:
        height, padded = short_tile(n)
        # lanes that are chosen for the height need no padded columns
        wide = wide if needs.by_row and not brief and n > 40 else padded
    if not brief and (unit > 1 or SHORT_ROW < n < wide):
        wide = round_up(n, max(64, unit))
    if height * wide * nbytes < LEAST and count > STARTS * height * (3 if needs.by_row else 1):
        height *= 3  # an odd factor: tiles of a multiple of 64 rows would be accumulators
    # one mask for all columns, so that no lane has it of other columns; the compiler drops most
    whole = n if wide == n else 0
    # few registers besides those of elements, if nothing is masked
    live, spare = height * wide * nbytes // 512, 40 + 16 * packed
    if whole and by_row:
        spare = 24 if brief else 32
    ctas, need = max(1, 512 // (live + spare)), live + 20
    if vectors > 1:
        # lanes have parts of them, and an SM gives out multiples of 8 registers. The numbers are
        # the least without spills in layer_norm of float16 rows
        need = live + 17 + 6 * values + vectors * wide // 96
        ctas = min(ctas, 64 // cdiv(need, 8))
    # a single wave of CTAs may spill a few
    more = spare >= 40 and 512 // (ctas + 1) >= need - 4
    return request.schedule(height, wide, 1, whole, with_room(ctas, cdiv(count, height), 1, more))


def with_room(ctas: int, grid: int, wgs: int, more: bool = True) -> int:
    """Return CTAs of `wgs` warpgroups of an SM, at most one `more` than `ctas`: as few as the grid
    needs to run at once, so that each has more registers.

    >>> [with_room(6, grid, 1) for grid in (100, 600, 900, 1000)]
    [4, 5, 7, 6]
    """
    needed = max(cdiv(grid, DEFAULT.sms), min(ctas, FEW // wgs))
    return needed if needed <= ctas + more else ctas


def short_tile(n: int) -> tuple[int, int]:
    """Return the rows and columns of a tile of rows of n columns, at most SHORT_ROW. 8 lanes share
    a row of an odd multiple of 16 columns, 4 lanes one of an odd multiple of 8, for narrow rows. Of
    40 columns for rows of 32, elements would be loaded one by one.

    >>> short_tile(12), short_tile(24), short_tile(32), short_tile(49)
    ((32, 16), (64, 24), (32, 48), (32, 80))
    """
    sizes = (16, 8) if n <= 40 and n % 16 else (16,)
    columns, size = min((size * (cdiv(n, size) | 1), size) for size in sizes)
    return 512 // size, columns
