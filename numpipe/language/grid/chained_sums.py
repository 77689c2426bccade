"""Sums over the CTAs before this one, while those still run: decoupled look-back.

Each CTA publishes the sum of its own tile in a word of global memory, waits for the words of the
CTAs before it, and adds them::

    group      word 0                 words 1 … 255
    0          0                      sums of tiles 0 … 254
    1          sum of tiles 0 … 254   sums of tiles 255 … 509
    2          sum of tiles 0 … 509   …

A tile waits for the words of its group up to its own, one or two for each lane, and adds them in
the order of a reduction, so results are bitwise reproducible. The last tile of a group publishes
word 0 of the next group: of all words of other groups, only this one must arrive.

A word is 64 bits, stored and loaded at once: a float32 and the number of the launch. So no fence is
needed, and what earlier launches left is not mistaken for a sum. The number of the launch is in the
first slot of the workspace: one more than what the slot holds. The last CTA that has received its
words stores the new number: all CTAs have read the old one by then. CTAs wait for those with
smaller indices, which a GPU starts first.

Duane Merrill and Michael Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core.machine import current
from ...core.op import op
from ...plan.specs import FLAGS, Workspace
from ..tiles.layouts import ROW, Form
from ..tiles.refs import GmemRef
from ..tiles.row_layouts import WHOLE
from ..tiles.tile import Tile

GROUP = 256
"""words of a group, two for each lane of a warpgroup"""
SLOT = 4
"""words of a slot of the workspace, in place of its flags, which are 0 at first"""
FORM = Form((GROUP,), FLOAT32, f"{ROW} {WHOLE}")


def words(count: int) -> Workspace:
    """Return the workspace for `count` words. No other kernel has slots of this size."""
    return Workspace((1, FLAGS), slots=1 + -(-count // SLOT))


@op
def launch_number(work: GmemRef) -> Any:
    """Return the number of the launch, which words carry."""
    return np.int32(1)


@op
def publish(work: GmemRef, word: Any, value: Any, launch: Any) -> None:
    """Store a sum in a word, in one lane."""
    current().scoped("one", _publish, (work, int(word), value))


@op
def published(work: GmemRef, first: Any, count: Any, launch: Any, calls: Any) -> Tile:
    """Wait for `count` words from word `first`, the beginning of a group, and return them as a
    vector (256,), followed by zeros. All warpgroups of all CTAs call it once, `calls` in all."""
    found = np.zeros(GROUP, np.float32)
    current().scoped("one", _await, (work, int(first), found[: int(count)]))
    return Tile(found, FORM)


def _place(work: GmemRef, word: int) -> tuple[int, int]:
    """Return the slot of a word, and the place in the slot of its number."""
    return 1 + word // SLOT, FLAGS + 2 * (word % SLOT)


def _publish(work: GmemRef, word: int, value: Any) -> None:
    slot, place = _place(work, word)
    index = slice(slot, slot + 1), slice(place, place + 1)
    current().gmem_write(work.array, index, np.full((1, 1), value, np.float32), work.name)
    flags = work.array[slot].view(np.int32)
    current().gmem_signal(flags, place + 1, f"{work.name}[{slot}]", stays=True)


def _await(work: GmemRef, first: int, found: np.ndarray) -> None:
    for number in range(found.size):
        slot, place = _place(work, first + number)
        flags = work.array[slot].view(np.int32)
        current().gmem_await(flags, place + 1, f"{work.name}[{slot}]")
        index = slice(slot, slot + 1), slice(place, place + 1)
        found[number] = current().gmem_read(work.array, index, work.name)[0, 0]
