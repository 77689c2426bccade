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

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from ..arch.dimensions import round_up
from ..arch.dtypes import FLOAT32
from ..arch.target import LINE
from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import Function
from ..language.tiles.warp_parts import STEP
from . import row_blocks, row_registers

PART = 8192
"""most columns of a warpgroup's part of a row in registers: 64 elements per lane leave an SM room
for several CTAs (measured on an H200)"""
MOST_WARPGROUPS = 4
"""that share a row"""
ODD = 8192
"""most columns of rows of odd length that TMA loads for a warpgroup's registers (measured on an
H200). Vectors along the columns take more registers where more than half as many begin anywhere"""
CHUNK = 8192
"""bytes of a warpgroup's chunk of a longer row"""
SHARED = 65536
"""bytes of a part of a row in shared memory: an SM has room for three (measured on an H200)"""
LIGHT = 49152
"""the same, of a kernel that loads one matrix and holds nothing else, for smaller CTAs"""
MOST_SHARED = 212992
"""most bytes, of rows that are longer than CLUSTER such parts"""
CLUSTER = 8
"""most CTAs that share a row"""
FEW = 49152
"""most bytes of a CTA's part of a row if there are few rows: half of the part is loaded while CTAs
exchange numbers. If the CTAs are more than the SMs, parts have at most half of these bytes;
otherwise some SMs would have two CTAs and others one"""
ROOM = 3 * DEFAULT.sms
"""CTAs for which the GPU has room at once"""
TILE = 6144
"""most elements of a block of contiguous rows: larger and smaller ones are not faster, and neither
are more CTAs of an SM (measured on an H200)"""
PACKED_TILE = 8192
"""the same, of 16-bit elements that are only reduced"""
LEAST, STARTS = 6144, 2048
"""fewest bytes of rows in registers of each of at least STARTS CTAs, and most bytes of a row of a
warp if a kernel keeps nothing else: an H200 starts at most 800 CTAs in a microsecond"""
SHORT_ROW = 80
"""most columns of rows for which `short_tile` chooses a tile"""
PHASES = 32
"""of a `Barrier`: slots of all warpgroups"""


class Needs(NamedTuple):
    """What a kernel over rows asks of its schedule.

    operands  matrices whose rows it loads
    held      float32 matrices that it computes and keeps; 0: only what it loads
    once      whether it has one pass over a row: one reduction or one store
    unit      its tiles begin and end at multiples of so many columns: 1 or 128
    """

    operands: int = 1
    held: int = 0
    once: bool = False
    unit: int = 1


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
    slots    tiles of each warpgroup, and of each loaded matrix, in shared memory
    cluster  CTAs that share a row, each with some chunks of each step
    operands, dtype
             the number of matrices that the kernel loads, and their element type
    flat     whether TMA loads parts of the flat array: rows begin at any element
    loops    whether a CTA computes several blocks of rows

    A kernel over rows calls its functions. A value of a row is a function of its columns, j: it
    returns a float32 tile (rows, columns), for example ``x_(j) * gamma[j]``.

    ===================================  ==========================================================
    ``for k in row.blocks(x):``          the blocks of rows of x that this program computes
    ``x_, block = row.load(k, x)``,      the rows of block k of one or two matrices, as values, and
    ``x_, y_, block = row.load(k, x,     what `store` needs
    y)``
    ``row.load(k, x, dtype=x.dtype)``    the same, as values of the type of x, for
                                         ``row.max(f, x.dtype)`` and ``row.argmax(f, x.dtype)``
    ``row.sum(f)``, ``row.mean(f)``,     the sum, the mean or the maximum of each row of a value,
    ``row.max(f)``                       (rows, 1)
    ``row.argmax(f)``                    the first column with the maximum of each row, or with NaN,
                                         (rows, 1), int32
    ``row.sums(f, g)``                   the sums of two values, in one pass
    ``row.moments(f)``                   the mean and the variance of each row, (rows, 1)
    ``row.softmax(f, off=0.0)``          (softmax of each row as a value, log(sum(exp(f - off))))
    ``row.store(block, y, f)``,          store values to the rows of one or two matrices
    ``row.store(block, y, f, z, g)``
    ``row.column(j)``                    the column of each element, (1, columns), int32
    ``row.random(k, j, seed)``           random float32 numbers in [0, 1), which depend on the seed,
                                         row and column alone
    ``row.groups(tile, j)``,             the columns j of a value as groups (rows * groups, 128) of
    ``row.joined(groups)``               adjacent columns, with 0 from column n on; and back
    ``row.get(k, v)``,                   load and store an element of a vector for each row,
    ``row.put(k, v, values)``,           (rows, 1), or of column c of a matrix
    ``row.put(k, v, values, c)``
    ``row.put_groups(k, v, values, j)``  store an element of a vector for each group of columns j
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
    operands: int = 1
    dtype: np.dtype = field(default=FLOAT32, repr=False)
    flat: bool = field(default=False, repr=False)
    loops: bool = field(default=False, repr=False)
    cluster: int = field(default=1, repr=False)
    brief: bool = field(default=False, repr=False)

    @property
    def shifts(self) -> int:
        """The most elements that are loaded before a row that may begin anywhere: from the start of
        the line that has its first column."""
        return LINE // self.dtype.itemsize - 1 if self.flat and not self.loops else 0

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


@functools.lru_cache(maxsize=1024)
def choose(
    n: int,
    needs: Needs = ONE,
    dtype: np.dtype = FLOAT32,
    aligned: bool = True,
    flat: bool = False,
    count: int = ROOM,
) -> Rows:
    """Return the schedule for rows of n columns.

    needs    what the kernel asks of its schedule
    dtype    element type of the matrices that it loads
    aligned  whether TMA can load their rows: all begin at multiples of 16 bytes
    flat     whether TMA can load parts of them as flat arrays: they are contiguous
    count    rows of each matrix

    >>> choose(1024)
    Rows(n=1024, height=8, width=1024, wgs=1, whole=1024, ctas=4, steps=0, slots=0, operands=1)
    >>> choose(16384).wgs, choose(65536).steps, choose(65536).slots, choose(65536).cluster
    (2, 4, 4, 8)
    >>> half = np.dtype(np.float16)
    >>> [choose(24000, Needs(held=1), half, count=count).wgs for count in (130, 180, 1000)]
    [4, 2, 4]
    >>> choose(5811, dtype=half, aligned=False, flat=True, count=1000).ctas
    5
    >>> [
    ...     choose(21777, Needs(once=once), half, False, True, 286).cluster
    ...     for once in (False, True)
    ... ]
    [1, 2]
    """
    (operands, held, once, unit), itemsize = needs, dtype.itemsize
    brief = once and not held and unit == 1
    # float32 matrices, and bytes of a column, in registers
    values, nbytes = max(held, operands), max(4 * held, operands * itemsize)
    flat = flat and not aligned and unit == 1
    rows = functools.partial(Rows, n, operands=operands, dtype=dtype, brief=brief)
    by_warp = brief and not flat and count >= 8 * DEFAULT.sms
    if n <= (LEAST // nbytes if by_warp else min(2048 // values, 1536)):
        return _short(rows, n, values, unit, flat, nbytes if brief else 4 * values, brief, count)
    part, wgs = PART * 4 // max(nbytes, 4), 1
    while n > part * wgs:
        wgs *= 2
    # with more warpgroups, an SM has room for a single row, and loads nothing while it computes
    # the lanes would load elements of odd rows one by one
    odd = flat and n % 2 > 0 and not once
    if wgs <= MOST_WARPGROUPS and (n <= (ODD if odd else 2 * part) or not (aligned or flat)):
        width = round_up(cdiv(n + odd * (LINE // itemsize - 1), wgs), STEP)
        whole = max(0, n - (wgs - 1) * width) // STEP * STEP
        live = width * nbytes // 512 + 28 + 16 * values + 28 * (odd and n > ODD // 2)
        if brief:
            live = max(live - 16 * values, min(live, 60))
        ctas = max(1, 512 // live // wgs)
        return rows(1, width, wgs, whole, ctas, flat=odd)
    # lanes load pairs of elements quickly, but single ones slowly
    pairs, size = n % 2 == 0, n * operands * itemsize
    direct = not (aligned or flat) or (once and pairs)
    # an SM has registers for six CTAs of a kernel that loads one matrix and holds nothing else. In
    # many rows, more and smaller parts are slower if there are vectors along the columns (H200)
    plain = not (held or flat or direct) and operands == 1
    light = plain and 2 * count > ROOM and count * size <= 4 * ROOM * SHARED
    part = size if direct else MOST_SHARED * itemsize // 8 if once else SHARED >> light
    # one CTA on each SM, so that those of the next launch have room: then it begins without a wait.
    # With several passes, an SM would have nothing to do while its CTA waits for others
    sharing, short = min(DEFAULT.sms // max(count, 1), CLUSTER), once and unit == 1
    alone = short and size <= sharing * MOST_SHARED
    cluster = min(sharing, cdiv(size, FEW)) if alone else 1
    while (
        not alone
        and cluster < CLUSTER
        and size
        > cluster
        * (
            FEW >> (3 * cluster * count > ROOM)
            if 2 * cluster * count <= ROOM << (once and cluster == 1 and not (short and direct))
            else part
        )
    ):
        cluster *= 2
    if direct:
        # smaller chunks leave registers for elements that are loaded one by one
        width = 2 * CHUNK // (itemsize if pairs else 4 * operands)
        wgs, ctas = (4, 2) if alone else (2, 2 + short)
        steps = cdiv(n, cluster * wgs * width)
        return rows(1, width, wgs, 0, ctas, steps, cluster=cluster)
    # more warps hide latency, above all where an SM has room for one or two CTAs, but those of more
    # CTAs would take longer to exchange numbers, and an SM has registers for two CTAs of so many if
    # a kernel holds values
    few = 2 * DEFAULT.sms < cluster * count <= ROOM
    crowded = flat or cluster > 2 or unit > 1 or (held and few)
    large = alone or size > cluster * SHARED
    light = light or (plain and not crowded and size <= cluster * LIGHT)
    wgs = 4 if large or not (crowded or light) else 2
    # smaller chunks leave registers for what a kernel holds in addition to what it loads, and for
    # vectors along the columns, which are loaded by elements where rows begin anywhere
    width = (CHUNK >> (not large and ((flat and not once) or light or wgs == 4))) // itemsize
    width = max(STEP, width >> max(0, held - 1))
    steps, step = cdiv(n, cluster * wgs * width), wgs * operands * width * itemsize
    slots = min(steps, PHASES // wgs, MOST_SHARED // step)
    # three fit, if a kernel needs no more than 40 registers where four warpgroups share a part
    fit = 2 if wgs == 4 else 6 if light else 3
    ctas = max(1, min(fit, MOST_SHARED // cdiv(size, cluster)))
    return rows(1, width, wgs, 0, ctas, steps, slots, flat=flat, cluster=cluster)


def _short(
    rows: Callable[..., Rows],
    n: int,
    held: int,
    unit: int,
    flat: bool,
    nbytes: int,
    brief: bool,
    count: int,
) -> Rows:
    """Return the schedule for rows that lanes of a warp have."""
    # 16-bit elements of rows that are only reduced
    packed = nbytes < 4 * held
    if flat:
        room = (PACKED_TILE if packed else TILE) // (n * held)
        height = max(8, min(256, 1 << room.bit_length() - 1))
        made, span = rows(height, n, 1, n, flat=True, loops=True), height * n
        # two blocks, results of one byte, and what warps exchange
        size = span * (2 * made.operands * made.dtype.itemsize + 1) + 4096
        # in the few lanes of a short row, vectors along the columns take many registers
        few = n <= SHORT_ROW
        live = span * (held + few) // 128 + 36 + 12 * few
        ctas = max(1, min(4 if packed else 512 // live, MOST_SHARED // size))
        return dataclasses.replace(made, ctas=ctas)
    height = 8
    # lanes with more elements of few rows take fewer instructions for each
    while height * n < (3073 if brief and count > STARTS * height else 2048) and height < 32:
        height *= 2
    # lanes have pairs of columns; all pairs but those of the last group of lanes are inside
    wide = n + n % 2
    if n <= (40 if brief else SHORT_ROW) and unit == 1:
        height, wide = short_tile(n)
    if not brief and (unit > 1 or SHORT_ROW < n < wide):
        wide = round_up(n, max(64, unit))
    if height * wide * nbytes < LEAST and count > STARTS * height:
        height *= 3  # an odd factor: tiles of a multiple of 64 rows would be accumulators
    # one mask for all columns, so that no lane has it of other columns; the compiler drops most
    whole = n if wide == n else 0
    live = height * wide * nbytes // 512 + 16 * packed
    ctas = max(1, 512 // (live + 40))
    # room for one more, if all run at once then
    ctas += cdiv(count, height * DEFAULT.sms) == ctas + 1
    return rows(height, wide, 1, whole, ctas)


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
