"""Sums over the CTAs before this one, while those still run: decoupled look-back.

Each CTA publishes the sum of its own tile in a word of global memory, waits for the words of the
CTAs before it, and adds them. Tiles are in groups of 128; a group has a word for each tile, and one
for the sum of all groups before it, which the last tile of the previous group publishes::

    tile 300:  the sum before group 1  +  tiles 128 … 255  +  tiles 256 … 299

So a tile waits for at most 256 tiles and for a sum that has been known since the group before. Two
words for each lane are added in the order of a reduction, and results are bitwise reproducible.

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

GROUP = 128
SLOT = 4
"""words in a slot of the workspace, in place of its flags, which are 0 at first"""
WORDS = GROUP + SLOT
"""words of a group; the sum before the group follows the tiles' words"""
FORM = Form((2 * GROUP,), FLOAT32, f"{ROW} {WHOLE}")


def workspace(tiles: int) -> Workspace:
    """Return the workspace of a kernel with so many CTAs. Only such kernels have slots of this
    size."""
    return Workspace((1, FLAGS), slots=1 + (tiles // GROUP + 1) * WORDS // SLOT)


@function
def sum_of_earlier(work, launch, total, count):  # type: ignore[no-untyped-def]
    """Return the sum of the totals of the `count` CTAs before this one.

    work    a `workspace` of all CTAs, each of which makes this call once
    launch  `launch_number`, from before a barrier of the CTA
    total   this CTA's own total
    """
    number, first_wg = program_id(0), axis_index("wg") == 0
    group, place = number // GROUP, number % GROUP
    own, begin = SLOT + group * WORDS, max(group - 1, 0)
    if first_wg:
        publish(work, own + place, total, launch)
    known = number - begin * GROUP
    totals = published(work, SLOT + begin * WORDS, known, launch, count)
    chained = iota(2 * GROUP) >= known - count
    earlier = np.where(chained, totals, 0.0).sum()  # type: ignore[call-overload]
    if first_wg:
        if place == GROUP - 1:
            publish(work, own + WORDS + GROUP, earlier + total, launch)
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
def published(work: GmemRef, first: Any, known: Any, launch: Any, count: Any) -> Tile:
    """Wait for `known` words, from word `first` of a group on, and for the sum before that group.
    Return the sums as a vector, with zeros after them; the sum before the group is added to the
    first of them if `count` is larger than `known`."""
    found = np.zeros(2 * GROUP, np.float32)
    current().scoped("one", _await, (work, int(first), found[: int(known)], count > known))
    return Tile(found, FORM)


def _await(work: GmemRef, first: int, found: np.ndarray, with_before: Any) -> None:
    def value(number: int) -> Any:
        word = _word(work, first + number)
        current().gmem_await(word.view(np.int32), 1, work.name)
        return word[0]

    for number in range(found.size):
        found[number] = value(number + number // GROUP * SLOT)
    before = value(GROUP) if first > SLOT else 0.0
    if with_before:
        found[0] += before
