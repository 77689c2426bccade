"""Files that come from anywhere: regular ones of a size that fits, neither pipes nor devices, on which a reader waits for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def content(path: Path, most: int) -> bytes:
    """Return the bytes of a file.

    Raises OSError, with its name, where there is none or it may not be read; ValueError for a folder, a pipe, a device, and for
    more than `most` bytes.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise ValueError(f"it is no file, or has more than {most} bytes")
            return file.read()
    except IsADirectoryError:
        raise ValueError("it is a folder") from None
