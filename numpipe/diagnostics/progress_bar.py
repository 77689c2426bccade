"""A progress bar on stderr, by tqdm where that is installed."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def progress_bar(text: str, shown: bool | None = None, **options: Any) -> Any:
    """Return a bar of tqdm: a context manager with `update`, `close` and `n`.

    text     stands before the bar
    shown    default: where stderr is a terminal
    options  for tqdm: total, unit, delay in seconds

    Where tqdm is not installed the bar shows nothing.

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
