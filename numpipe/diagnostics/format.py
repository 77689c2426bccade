"""The format strings of `debug_print`, a subset of Python's that the GPU's printf prints
identically.

A field is ``{}`` or ``{:[align][sign][0][width][.precision][type]}``, the part of Python's format
specification that C's printf spells the same way:

=============  ====================================================================================
align          ``<`` left, ``>`` right (the default, for words too)
sign           ``+`` or a blank before numbers that are not negative
``0``          fill up to the width with zeros
type           ``d`` int · ``x`` ``X`` hexadecimal int, two's complement of 32 bits (64 for 64-bit
               integers) · ``f`` ``e`` ``E`` ``g`` ``G`` number as a float
without type   ints as ``d``, floats as ``g`` (6 digits), bools and constant strings as words
=============  ====================================================================================

>>> "".join(
...     render(part, value) if isinstance(part, Field) else part
...     for part, value in zip(parse("k={:3d} x={:.2f}"), [None, 7, None, 0.5])
... )
'k=  7 x=0.50'
"""

from __future__ import annotations

import math
import re
import string
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .argument_checks import STRING, require
from .errors import SpecError

Kind = Literal["bool", "int", "float", "text"]
MISSING = "-"
"""printed for a value that the memory role does not have"""
_SPEC = re.compile(
    r"(?P<align>[<>]?)(?P<sign>[+ ]?)(?P<zero>0?)(?P<width>[1-9]\d{0,2})?"
    r"(?P<precision>\.\d{1,2})?(?P<type>[dxXfeEgG]?)"
)


@dataclass(frozen=True)
class Field:
    """One ``{…}`` field of a format: its number, its text as `written`, and its parsed parts."""

    number: int
    written: str
    align: str
    sign: str
    zero: str
    width: str
    precision: str
    type: str

    @property
    def to_left(self) -> str:
        """The printf flag of left alignment, or ""."""
        return "-" * (self.align == "<")

    def conversion(self, kind: Kind) -> str:
        """Return the printf conversion for a value of this kind, without a length modifier:
        ``%-5d``, ``%.3f``, ``%s``.

        Raises SpecError for a value that the field does not accept.
        """
        what = f"debug_print: field {self.number} {self.written}"
        letter = self.type or {"int": "d", "float": "g"}.get(kind, "s")
        if letter in "dxX" and kind not in ("int", "bool"):
            raise SpecError(
                f"{what} prints an int, got a {kind}: use {{}}, {{:f}}, {{:e}} or {{:g}}"
            )
        if kind == "text" and letter != "s":
            raise SpecError(f"{what} prints a number, got a string: use {{}}")
        if letter == "s" and (self.sign or self.zero):
            raise SpecError(f"{what} prints a number, got a {kind}: use {{}}")
        return f"%{self.to_left}{self.sign}{self.zero}{self.width}{self.precision}{letter}"


def parse(format: Any) -> tuple[str | Field, ...]:
    """Return the text and fields of a format, in order. Raises SpecError for a format that the GPU
    and the simulation would print differently."""
    require("debug_print", locals(), format=STRING)
    if any(ord(c) < 32 and c != "\t" for c in format):
        raise SpecError(
            f"debug_print: {format!r} has a control character: each call prints one line, and the "
            "newline is added automatically"
        )
    parts: list[str | Field] = []
    try:
        pieces = list(string.Formatter().parse(format))
    except ValueError as error:
        raise SpecError(
            f"debug_print: {format!r} is not a valid format: {error} (write a brace as "
            f"{{{{ or }}}})"
        ) from None
    for text, name, spec, conversion in pieces:
        if text:
            parts.append(text)
        if name is not None:
            parts.append(
                _field(1 + sum(isinstance(p, Field) for p in parts), name, spec or "", conversion)
            )
    return tuple(parts)


def _field(number: int, name: str, spec: str, conversion: str | None) -> Field:
    written = (
        "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
    )
    what = f"debug_print: field {number} {written}"
    if name:
        raise SpecError(
            f"{what}: fields are filled in order, without names and numbers: write {{}}"
        )
    match = _SPEC.fullmatch(spec)
    if conversion or match is None:
        raise SpecError(
            f"{what} would be printed differently on the GPU and simulated: a field is {{}} or "
            "{:[<>][+ ][0][width][.precision][d x X f e E g G]}"
        )
    part = match.groupdict(default="")
    if part["zero"] and (not part["width"] or part["align"]):
        raise SpecError(f"{what}: 0 pads numbers to a width, and cannot be combined with alignment")
    if part["precision"] and part["type"] not in tuple("feEgG"):
        raise SpecError(f"{what}: a precision requires f, e or g: {{:.3f}}")
    if part["sign"] and part["type"] in tuple("xX"):
        raise SpecError(f"{what}: hexadecimal numbers are printed without a sign")
    return Field(number, written, **part)


def fields(parts: tuple[str | Field, ...], values: int) -> None:
    """Raise SpecError unless the numbers of fields and values are equal."""
    expected = sum(isinstance(part, Field) for part in parts)
    if expected != values:
        raise SpecError(
            f"debug_print: the format has {expected} fields, but {values} values are given"
        )
    if values > MOST:
        raise SpecError(
            f"debug_print: {values} values in one line: printf on the GPU takes at most {MOST} in "
            "addition to the line's prefix"
        )


MOST = 28
"""vprintf takes 32 arguments, of which four are the indices of the CTA and the warpgroup"""


def kind_of(value: Any) -> Kind | None:
    """Return the kind that a Python or NumPy value is printed as, or None if it is not a scalar."""
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "int"
    if (
        isinstance(value, (float, np.floating))
        or getattr(getattr(value, "dtype", None), "name", "") == "bfloat16"
    ):
        return "float" if np.ndim(value) == 0 else None
    return "text" if isinstance(value, str) else None


def render(field: Field, value: Any) -> str:
    """Format a value as the field prints it; see `missing` for values that the memory role does not
    have."""
    kind = kind_of(value)
    assert kind is not None
    conversion = field.conversion(kind)
    match conversion[-1]:
        case "s":
            return conversion % str(value)
        case "d":
            return conversion % int(value)
        case "x" | "X":
            bits = (
                value.dtype.itemsize * 8
                if isinstance(value, np.integer)
                else 32
                if -(2**31) <= value < 2**31
                else 64
            )
            return conversion % (int(value) & (1 << max(32, bits)) - 1)
    number = float(value)
    if not math.isfinite(number):
        # printf pads inf and nan with spaces, not zeros
        conversion = conversion.replace("0", "", 1) if field.zero else conversion
    return conversion % number


def missing(field: Field) -> str:
    """Return what the field prints for a value that the memory role does not have."""
    return f"%{field.to_left}{field.width}s" % MISSING
