"""What counts as an answer to abuse, and what is a raw exception.

An answer is an error of `numpipe.errors`. It is also an answer

- where Python itself promises it: the TypeError of a call that does not fit a function's signature,
  which Python raises before the function runs and which names function and parameter; the
  ZeroDivisionError of `numpipe.cdiv`, as of ``//``, with both numbers
- where a file or folder is not there, or may not be read: the OSError of the file system, with the
  file's name
- where a function of the user's raises (a factory, a reference, `by=`): that error is the user's

Everything else is raw: AttributeError, KeyError, IndexError, UnicodeError, RecursionError,
MemoryError, struct.error, zlib.error, AssertionError and their like, any error whose traceback ends
in another package, a process that dies, and one that is still busy after `LIMIT` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numpipe.diagnostics.argument_checks import told
from numpipe.errors import NumpipeError

LIMIT = 20.0
"""seconds, of a busy machine"""


def answered(call: Callable[[], Any], *words: str, also: tuple[type[Exception], ...] = ()) -> str:
    """Assert that a call is refused as the rule says, with all `words` in the error; returns its
    text.

    `also`: exceptions that Python or the file system promise here.
    """
    begun = time.monotonic()
    with pytest.raises((NumpipeError, *also)) as caught:
        call()
    text = str(caught.value)
    assert time.monotonic() - begun < LIMIT, "it took so long that a user would call it a hang"
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
    return text


def spellings(value: Any) -> list[str]:
    """How an error may tell a value: as it is written, shortened, by its type, or by its shape."""
    if isinstance(value, np.ndarray):
        return [
            told(value),
            str(value.shape),
            str(value.dtype),
            "masked" if isinstance(value, np.ma.MaskedArray) else "ndarray",
        ]
    return [told(value), repr(value), str(value), type(value).__name__]
