"""Files that come from anywhere, read only if they are regular and small enough, and written whole.

A reader would wait forever for a pipe or a device.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path


def content(path: Path, most: int, own: bool = False) -> bytes:
    """Return the bytes of a file.

    own  whether it must belong to this user, and may not be a link

    Raises OSError, with its name, where there is none or it may not be read; ValueError for a
    folder, a pipe, a device, for more than `most` bytes, and for what `own` refuses.
    """
    more = getattr(os, "O_NONBLOCK", 0) | (os.O_NOFOLLOW if own else 0)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise ValueError(f"it is no file, or has more than {most} bytes")
            if own and status.st_uid != os.getuid():
                raise ValueError("it belongs to another user")
            return file.read()
    except IsADirectoryError:
        raise ValueError("it is a folder") from None
    except OSError as error:
        if own and error.errno == errno.ELOOP:
            raise ValueError("it is a link") from None
        raise


def put(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file in one step: readers find the old one or the new one, never a part."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
