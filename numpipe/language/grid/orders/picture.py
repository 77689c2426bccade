"""An order of tiles as a picture, by matplotlib: the path through the grid, and the tiles that run at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ....diagnostics.errors import SpecError


class Order(Protocol):
    """What is asked of an order (`order.Order`) here."""

    def panels(self, shape: Sequence[int], ctas: int) -> list[tuple[int, int]]: ...

    def table(self, shape: Sequence[int]) -> npt.NDArray[np.int32]: ...


_WAVES = ("#e3e3e3", "#f7f7f7")
_IN_FLIGHT, _PATH, _PANEL = "#56b4e9", "#000000", "#e69f00"
_NUMBERED = 256
"""tiles of a grid whose numbers are written in it"""


def draw(order: Order, shape: tuple[int, ...], ctas: int, wave: int, path: str | Path | None) -> Any:
    """`Order.plot`."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise SpecError("an order is drawn by matplotlib, which is not installed: pip install 'numpipe[plot]'; its numbers are in "
                        "order.table(shape) and order.panels(shape, ctas)") from None
    if len(shape) != 2:
        raise SpecError(f"{order}: a grid of two dimensions is drawn, got {shape}: planes are alike")
    panels = order.panels(shape, ctas)
    if not 0 <= wave < len(panels):
        raise SpecError(f"{order}: wave {wave} of {len(panels)}: {shape[0]} x {shape[1]} tiles, {ctas} at a time")
    table = order.table(shape)
    rows, columns = shape
    grid = np.empty(shape, np.int64)
    grid[table[:, 0], table[:, 1]] = np.arange(len(table))
    flight = table[wave * ctas:(wave + 1) * ctas]

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "numpipe", "font.size": 8, "font.family": "sans-serif"}):
        inch = min(0.4, 9.0 / max(rows, columns))
        figure = Figure(figsize=(max(columns * inch, 3.5) + 1.2, max(rows * inch, 1.0) + 1.0), dpi=144, layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(grid // ctas % 2, cmap=matplotlib.colors.ListedColormap(_WAVES), vmin=0, vmax=1)
        for m, n in flight:
            axes.add_patch(Rectangle((n - 0.5, m - 0.5), 1, 1, facecolor=_IN_FLIGHT, edgecolor="white", linewidth=0.3))
        for m in {int(m) for m, _ in flight}:  # beside the grid: the panels of A, above it those of B
            axes.add_patch(Rectangle((-1.3, m - 0.5), 0.6, 1, facecolor=_PANEL, clip_on=False))
        for n in {int(n) for _, n in flight}:
            axes.add_patch(Rectangle((n - 0.5, -1.3), 1, 0.6, facecolor=_PANEL, clip_on=False))
        axes.plot(table[:, 1], table[:, 0], color=_PATH, linewidth=min(1.0, 3 * inch), alpha=0.6)
        if len(table) <= _NUMBERED:
            for t, (m, n) in enumerate(table):
                axes.text(n + 0.42, m + 0.36, str(t), ha="right", va="bottom", fontsize=5)
        axes.set_xlim(-1.4, columns - 0.5)
        axes.set_ylim(rows - 0.5, -1.4)
        axes.set_xlabel("n (a panel of B each)")
        axes.set_ylabel("m (a panel of A each)")
        a, b = panels[wave]
        axes.set_title(f"{order}, {rows} x {columns} tiles; wave {wave} of {len(panels)}: {len(flight)} tiles,\n"
                       f"{a} panels of A and {b} of B; all waves {sum(map(sum, panels))}")
        if path is not None:
            figure.savefig(path)
    return figure
