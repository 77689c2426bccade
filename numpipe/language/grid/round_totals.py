"""Totals that the CTAs of a grid exchange in each round, while they run.

In round k of a loop, CTA i has tile k G + i of G. It publishes the total of the tile, and every CTA
reads the totals of all tiles of the round. So each CTA knows what all earlier tiles add up to, and
none waits for a chain of others. A CTA that publishes the total of its next tile before it reads
those of this round finds them there::

    publish(work, 0, …)
    for k in range(rounds):
        publish(work, k + 1, …)
        values = totals(work, k, known, launch)

The CTAs must run at the same time (``cooperative=True``), unless only the last one reads totals: it
starts after all others. A total is a word of 64 bits in global memory, which is stored and loaded
at once: a float32, and the number of the launch, by which it differs from what earlier launches
left there. So no fence is needed, and nothing is cleared. The first word of the workspace has the
number of the last launch, which `end_launch` replaces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core.functions import function
from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import helper, op
from ...plan.context import num_programs, program_id
from ...plan.specs import FLAGS, Workspace
from ..tiles.layout_names import ROW
from ..tiles.layouts import Form
from ..tiles.refs import GmemRef
from ..tiles.row_layouts import WHOLE
from ..tiles.tile import Tile

CTAS = 256
"""most CTAs of a grid"""
SLOT = 4
"""words in a slot of the workspace, in place of its flags, which are 0 at first"""
FORM = Form((CTAS,), FLOAT32, f"{ROW} {WHOLE}")


def workspace(tiles: int) -> Workspace:
    """Return the workspace of a kernel with so many tiles. Only such kernels have slots of this
    size."""
    return Workspace((1, FLAGS), slots=1 + (2 * tiles + CTAS) // SLOT)


@function
def first_word(k):  # type: ignore[no-untyped-def]
    """Return the first word of a round, an even number."""
    return SLOT + k * (num_programs(0) + num_programs(0) % 2)


@function
def publish(work, k, total, launch):  # type: ignore[no-untyped-def]
    """Publish the total of this CTA's tile of round k, from one warpgroup."""
    store_word(work, first_word(k) + program_id(0), total, launch)


@function
def end_launch(work, launch):  # type: ignore[no-untyped-def]
    """Count a launch. One warpgroup of the grid makes this call, when it has read totals."""
    store_word(work, 0, 0.0, launch)


@function
def totals(work, k, known, launch):  # type: ignore[no-untyped-def]
    """Wait for the totals of the first `known` CTAs in round k. Return a vector with zeros after
    them."""
    return await_words(work, first_word(k), known, launch)


@op
def launch_number(work: GmemRef) -> Any:
    """Return the number of this launch."""
    return np.int32(1)


@helper
def store_word(work, word, value, launch):  # type: ignore[no-untyped-def]
    one_lane(store, work, word, value, launch)


@op
def store(work: GmemRef, word: Any, value: Any, launch: Any) -> None:
    """Store a float32 and the number of the launch in a word, in one lane."""
    found = _word(work, int(word))
    found[0] = value
    current().gmem_signal(found.view(np.int32), 1, work.name, stays=True)


@op
def await_words(work: GmemRef, first: Any, known: Any, launch: Any) -> Tile:
    """Wait for `known` words, the first of which has an even number. Return their values."""
    found = np.zeros(CTAS, np.float32)
    current().scoped("one", _await, (work, int(first), found[: int(known)]))
    return Tile(found, FORM)


def _await(work: GmemRef, first: int, found: np.ndarray) -> None:
    for number in range(found.size):
        word = _word(work, first + number)
        current().gmem_await(word.view(np.int32), 1, work.name)
        found[number] = word[0]


def _word(work: GmemRef, word: int) -> np.ndarray:
    return work.array[word // SLOT, FLAGS + 2 * (word % SLOT) :]
