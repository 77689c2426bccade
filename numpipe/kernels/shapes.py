"""Shapes that belong together, in NumPy's gufunc notation: ``"(m,k),(n,k)->(m,n)"``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..diagnostics.errors import SpecError

_ARRAY = r"\((?:\w+(?:,\w+)*)?\)"


@dataclass(frozen=True)
class Signature:
    """Names of the dimensions of each input and output; a number stands for itself."""

    text: str
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Signature:
        """
        >>> Signature.parse("(m,k),(n,k)->(m,n)").outputs
        (('m', 'n'),)
        """
        if not isinstance(text, str):
            raise SpecError(f"signature={text!r}: a string in NumPy's gufunc notation is expected, e.g. '(m,k),(n,k)->(m,n)'")
        plain = text.replace(" ", "")
        if not re.fullmatch(rf"{_ARRAY}(,{_ARRAY})*->{_ARRAY}(,{_ARRAY})*", plain):
            raise SpecError(f"signature={text!r}: NumPy's gufunc notation is expected, e.g. '(m,k),(n,k)->(m,n)'")

        def dims(side: str) -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(d for d in group[1:-1].split(",") if d) for group in re.findall(_ARRAY, side))

        left, right = plain.split("->")
        return cls(text, dims(left), dims(right))

    def check(self, kernel: str, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Sizes of the named dimensions; SpecError naming the argument, expected and actual.

        `names` are all arrays of the call, `shapes` those that are known, in the same order.
        """
        groups = self.inputs + self.outputs
        if len(names) != len(groups):
            raise SpecError(f"kernel {kernel}: signature {self.text!r} speaks of {len(groups)} arrays, the call has {len(names)} "
                            f"({', '.join(names)})")
        sizes: dict[str, int] = {}
        origin: dict[str, str] = {}
        for name, dims, shape in zip(names, groups, shapes, strict=False):
            if len(shape) != len(dims):
                raise SpecError(f"kernel {kernel}: argument '{name}' must have {len(dims)} dimensions ({', '.join(dims)}), got "
                                f"shape {tuple(shape)}")
            for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
                expected = int(dim) if dim.isdigit() else sizes.setdefault(dim, size)
                origin.setdefault(dim, f"'{name}'.shape[{axis}]")
                if size != expected:
                    source = "the signature" if dim.isdigit() else origin[dim]
                    raise SpecError(f"kernel {kernel}: argument '{name}' has shape {tuple(shape)}, but {dim} = {expected} "
                                    f"(from {source}) was expected in dimension {axis}: signature {self.text}")
        return sizes
