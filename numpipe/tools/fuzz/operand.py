"""A BlockSpec of a drawn pipeline, as text and as numbers."""

from __future__ import annotations

from dataclasses import dataclass

Env = dict[str, int]


@dataclass(frozen=True)
class Operand:
    """A BlockSpec and its array. `index` are expressions of the grid's indices and the kernel's variables; None: no index map."""

    name: str
    sides: tuple[int | None, ...]
    index: tuple[str, ...] | None
    elements: bool = False
    dtype: str = "float16"
    fill: str = "zeros"
    options: str = ""

    @property
    def block(self) -> tuple[int, ...]:
        return tuple(1 if side is None else side for side in self.sides)

    def spec(self, variables: str) -> str:
        sides = ", ".join(f"Element({side})" if self.elements else str(side) for side in self.sides)
        index = f", lambda {variables}: ({', '.join(self.index)})" if self.index is not None else ""
        fill = f', oob_fill="{self.fill}"' if self.fill != "zeros" else ""
        return f"BlockSpec(({sides}){index}{fill}{self.options})"

    def start(self, env: Env) -> tuple[int, ...]:
        found = eval(f"({', '.join(self.index)},)", {}, env) if self.index is not None else (0,) * len(self.sides)
        return tuple(n if self.elements or side is None else n * side for n, side in zip(found, self.sides, strict=True))
