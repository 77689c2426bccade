"""Sums over the CTAs before this one, while those still run: decoupled look-back.

Each CTA publishes the sum of its own tile in a word of global memory, waits for the words of the
CTAs before it, and adds them::

    group   word 0                  words 1 … 255
    0       0                       sums of tiles 0 … 254
    1       sum up to tile 254      sums of tiles 255 … 509
    2       sum up to tile 509      …

A tile waits for the words of its group up to its own, two for each lane, and adds them in the order
of a reduction, so results are bitwise reproducible. The last tile of a group publishes word 0 of
the next one, so a sum passes from group to group, not from tile to tile.

A word has 64 bits, which are stored and loaded at once: a float32, and the number of the launch, by
which it differs from what earlier launches left there. So no fence is needed, and nothing is
cleared. The first word of the workspace has the number of the last launch. The last CTA replaces it
when the words of all others have come, as they have read it by then. A GPU starts CTAs in the order
of their indices, so those that a CTA waits for run.

Duane Merrill and Michael Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core.functions import function
from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import helper, op
from ...plan.context import axis_index, num_programs, program_id
from ...plan.specs import FLAGS, Workspace
from ..tiles.elementwise import iota
from ..tiles.layouts import ROW, Form
from ..tiles.refs import GmemRef
from ..tiles.row_layouts import WHOLE
from ..tiles.tile import Tile

WORDS = 256
"""words of a group, two for each lane of a warpgroup"""
TILES = WORDS - 1
SLOT = 4
"""words in a slot of the workspace, in place of its flags, which are 0 at first"""
FORM = Form((WORDS,), FLOAT32, f"{ROW} {WHOLE}")


def workspace(tiles: int) -> Workspace:
    """Return the workspace of a kernel with so many CTAs. Only such kernels have slots of this
    size."""
    return Workspace((1, FLAGS), slots=(tiles // TILES + 2) * WORDS // SLOT)


@function
def sum_of_earlier(work, launch, total, count):  # type: ignore[no-untyped-def]
    """Return the sum of the totals of the `count` CTAs before this one.

    work    a `workspace` of all CTAs, each of which makes this call once
    launch  `launch_number`, from before a barrier of the CTA
    total   this CTA's own total
    """
    number, first_wg = program_id(0), axis_index("wg") == 0
    place, first = number % TILES, (number // TILES + 1) * WORDS
    if first_wg:
        if number == 0:
            publish(work, first, 0.0, launch)
        publish(work, first + place + 1, total, launch)
    totals = published(work, first, (place + 1) * min(number, 1), launch)
    earlier = np.where(iota(WORDS) > place - count, totals, 0.0).sum()  # type: ignore[attr-defined]
    if first_wg:
        if place == TILES - 1:
            publish(work, first + WORDS, earlier + total, launch)
        if number == num_programs(0) - 1:
            publish(work, 0, 0.0, launch)
    return earlier


@helper
def publish(work, word, value, launch):  # type: ignore[no-untyped-def]
    """Store a sum and the number of the launch in a word."""
    one_lane(store, work, word, value, launch)


def _word(work: GmemRef, word: int) -> np.ndarray:
    return work.array[word // SLOT, FLAGS + 2 * (word % SLOT) :]


@op
def launch_number(work: GmemRef) -> Any:
    """Return the number of this launch."""
    return np.int32(1)


@op
def store(work: GmemRef, word: Any, value: Any, launch: Any) -> None:
    """Implement `publish`, in one lane."""
    found = _word(work, int(word))
    found[0] = value
    current().gmem_signal(found.view(np.int32), 1, work.name, stays=True)


@op
def published(work: GmemRef, first: Any, count: Any, launch: Any) -> Tile:
    """Wait for the first `count` words of the group that begins with word `first`, and return them
    as a vector, with zeros after them."""
    found = np.zeros(WORDS, np.float32)
    current().scoped("one", _await, (work, int(first), found[: int(count)]))
    return Tile(found, FORM)


def _await(work: GmemRef, first: int, found: np.ndarray) -> None:
    for number in range(found.size):
        word = _word(work, first + number)
        current().gmem_await(word.view(np.int32), 1, work.name)
        found[number] = word[0]
