"""What the names of layouts say."""

from __future__ import annotations

import functools
from dataclasses import dataclass

ROWS, ROW, COLUMN, EITHER, COALESCED = "rows", "row", "column", "either", "coalesced"


@dataclass(frozen=True)
class LayoutName:
    """A layout's name.

    word    "accumulator", "coalesced", "rows", "row", "column" or "either"
    lanes   lanes that share a row; 0 in layouts that are not by row
    run     adjacent columns of a lane, in layouts by row
    vector  adjacent elements of a lane in a coalesced layout; 0 in other layouts
    """

    word: str
    lanes: int = 0
    run: int = 2
    vector: int = 0

    @property
    def by_row(self) -> bool:
        """Whether lanes share rows; how many, the shape decides if the name is "rows" alone."""
        return self.word == ROWS or self.lanes > 0

    def along(self, word: str) -> str:
        """Return the layout of a vector along the columns ("row") or the rows ("column") of tiles
        in this layout.

        >>> name_of("rows 32 8").along("row"), name_of("rows 32 8").along("column")
        ('row 32 8', 'column 32')
        >>> name_of("accumulator").along("row")
        'row'
        """
        lanes = f" {self.lanes}" if self.lanes else ""
        return word + lanes + (f" {self.run}" if self.run > 2 and word == ROW else "")


@functools.cache
def name_of(layout: str) -> LayoutName:
    """Read the name of a layout.

    >>> name_of("rows 32 8")
    LayoutName(word='rows', lanes=32, run=8, vector=0)
    >>> name_of("column 4").lanes, name_of("coalesced 8").vector, name_of("column").by_row
    (4, 8, False)
    """
    word, *numbers = layout.split() or [""]
    if word == COALESCED:
        return LayoutName(word, vector=int(*numbers))
    return LayoutName(word, *map(int, numbers if word in (ROWS, ROW, COLUMN) else ()))
