"""The rule for errors: which exceptions are valid answers to bad input, and which are raw.

An error of `numpipe.errors` is a valid answer. So are

- exceptions that Python itself promises: the TypeError of a call that does not match a function's
  signature, which Python raises before the function runs and which names function and parameter;
  the ZeroDivisionError of `numpipe.cdiv`, as of ``//``, with both numbers
- the OSError of the file system, with the file's name, if a file or folder does not exist or may
  not be read
- any exception of a user's function (a factory, a reference, `by=`)

Everything else is raw: AttributeError, KeyError, IndexError, UnicodeError, RecursionError,
MemoryError, struct.error, zlib.error, AssertionError and similar ones, any error whose traceback
ends in another package, a process that dies, and a call that is still running after `LIMIT`
seconds.
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
"""seconds, on a busy machine"""


def answered(call: Callable[[], Any], *words: str, also: tuple[type[Exception], ...] = ()) -> str:
    """Assert that a call raises an error that the rule allows, with all `words`, and return its
    text.

    `also` lists exceptions that Python or the file system promise here.
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
    """Return the ways an error may spell a value: as written, shortened, by its type, or by its
    shape."""
    if isinstance(value, np.ndarray):
        return [
            told(value),
            str(value.shape),
            str(value.dtype),
            "masked" if isinstance(value, np.ma.MaskedArray) else "ndarray",
        ]
    return [told(value), repr(value), str(value), type(value).__name__]
