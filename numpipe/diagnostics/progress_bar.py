"""A progress bar on stderr, using tqdm if it is installed."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def progress_bar(text: str, shown: bool | None = None, **options: Any) -> Any:
    """Return a tqdm bar, a context manager with `update`, `close` and `n`.

    text     label before the bar
    shown    whether to show it; default: only if stderr is a terminal
    options  for tqdm: total, unit, delay in seconds

    If tqdm is not installed, nothing is shown.

    >>> with progress_bar("warmup: compile", total=2) as bar:
    ...     bar.update()
    """
    if not importlib.util.find_spec("tqdm"):
        return _NoBar()
    from tqdm.auto import tqdm

    hidden = not sys.stderr.isatty() if shown is None else not shown
    return tqdm(desc=text, leave=False, file=sys.stderr, disable=hidden, **options)


class _NoBar:
    n = 0.0

    def update(self, n: float = 1) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None: ...
