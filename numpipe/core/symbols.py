"""Names that users chose, as the code of a kernel, its symbols and file systems take them."""

from __future__ import annotations

import re


def symbol(name: str, mark: str = "_") -> str:
    """A name as LLVM, PTX and file systems take it: each byte that is no ASCII letter, digit or `_` is `mark` and two hex digits.

    >>> symbol("gemm"), symbol("größe"), symbol("gemm[64]")
    ('gemm', 'gr_c3_b6_c3_9fe', 'gemm_5b64_5d')
    """
    return re.sub(r"[^A-Za-z0-9_]", lambda m: "".join(f"{mark}{byte:02x}" for byte in m[0].encode()), name)


def axis_symbol(what: str, name: str) -> str:
    """The function that says the "index" or the "size" of an axis in a kernel's code."""
    return f"np_axis_{what}_{symbol(name, '$')}"


def axis_of(symbol: str) -> str:
    """The axis that an `axis_symbol` is of."""
    spelled = re.sub(r"^np_axis_(index|size)_", "", symbol)
    return re.sub(r"(\$[0-9a-f]{2})+", lambda m: bytes.fromhex(m[0].replace("$", "")).decode(), spelled)
