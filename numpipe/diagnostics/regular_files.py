"""Safe reading and atomic writing of files: only regular files of limited size are read.

A pipe or a device could block the reader forever."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path


def content(path: Path, most: int, own: bool = False) -> bytes:
    """Return the bytes of a file.

    own  whether to require that the file belongs to this user and is not a link

    Raises OSError, with the file's name, if it does not exist or cannot be read. Raises ValueError
    for a folder, a pipe, a device, more than `most` bytes, and what `own` refuses.
    """
    more = getattr(os, "O_NONBLOCK", 0) | (os.O_NOFOLLOW if own else 0)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise ValueError(f"it is not a regular file, or has more than {most} bytes")
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
    """Write a file atomically: readers find the old or the new content, never a part."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
