"""Encoding of user-chosen names for code, symbols and file systems."""

from __future__ import annotations

import re


def symbol(name: str, mark: str = "_") -> str:
    """Encode a name for LLVM, PTX and file systems: bytes other than ASCII letters, digits and `_`
    become `mark` and two hex digits.

    >>> symbol("gemm"), symbol("größe"), symbol("gemm[64]")
    ('gemm', 'gr_c3_b6_c3_9fe', 'gemm_5b64_5d')
    """
    return re.sub(
        r"[^A-Za-z0-9_]", lambda m: "".join(f"{mark}{byte:02x}" for byte in m[0].encode()), name
    )


def axis_symbol(what: str, name: str) -> str:
    """Return the name of the function in a kernel's code that returns the "index" or the "size" of
    an axis."""
    return f"np_axis_{what}_{symbol(name, '$')}"


def program_symbol(what: str, dimension: int) -> str:
    """Return the name of the function in a kernel's code that returns the "index" or the "size" of
    a dimension of its grid."""
    return f"np_program_{what}_{dimension}"


def axis_of(symbol: str) -> str:
    """Return the axis that an `axis_symbol` refers to."""
    spelled = re.sub(r"^np_axis_(index|size)_", "", symbol)
    return re.sub(
        r"(\$[0-9a-f]{2})+", lambda m: bytes.fromhex(m[0].replace("$", "")).decode(), spelled
    )
