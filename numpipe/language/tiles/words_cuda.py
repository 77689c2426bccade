"""Words of shared memory on the GPU: the instructions that move them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numba as nb


def load_words(builder: Any, machine: Any, kind: str, address: Any, count: int) -> list[Any]:
    """Load `count` adjacent elements of shared memory with one instruction; each has the LLVM type
    `machine`, `kind` in PTX."""
    if count == 1:
        return [
            builder.emit_asm(
                machine,
                [address],
                f"ld.shared.{kind} $0, [$1];",
            )
        ]
    names = ", ".join(f"${i}" for i in range(count))
    found = builder.emit_asm(
        nb.ir.LiteralStructType([machine] * count),
        [address],
        f"ld.shared.v{count}.{kind} {{{names}}}, [${count}];",
    )
    return [builder.extract_value(found, i) for i in range(count)]


def store_words(
    builder: Any,
    kind: str,
    address: Any,
    values: Sequence[Any],
    chosen: Any = None,
    space: str = "shared",
) -> None:
    """Store registers to adjacent places in memory with one instruction, in lanes where `chosen`,
    an int32, is not 0."""
    where = [address] if chosen is None else [address, chosen]
    names = ", ".join(f"${len(where) + i}" for i in range(len(values)))
    vector, names = (f".v{len(values)}", f"{{{names}}}") if len(values) > 1 else ("", names)
    text = f"st.{space}{vector}.{kind} [$0], {names};"
    if chosen is not None:
        text = f"{{ .reg .pred own; setp.ne.u32 own, $1, 0; @own {text} }}"
    builder.emit_asm(nb.void, [*where, *values], text)
