"""Words of memory on the GPU: the instructions that move them, and their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numba as nb


def vector_of(count: int, first: int) -> tuple[str, str]:
    """Return how an instruction names `count` operands that it moves together: its qualifier, and
    operands `first`, `first` + 1, …

    >>> vector_of(2, 1)
    ('.v2', '{$1, $2}')
    """
    names = ", ".join(f"${first + i}" for i in range(count))
    return (f".v{count}", f"{{{names}}}") if count > 1 else ("", names)


def type_of_bytes(nbytes: int) -> Any:
    """Return the LLVM type that one instruction loads: an integer of up to 4 bytes, or a vector of
    32-bit integers."""
    return nb.ir.VectorType(nb.i32, nbytes // 4) if nbytes > 4 else nb.ir.IntType(8 * nbytes)


def words_of(builder: Any, found: Any) -> list:
    """Return what was loaded as 32-bit integers."""
    if isinstance(found.type, nb.ir.VectorType):
        return [builder.extract_element(found, i) for i in range(found.type.count)]
    return [found if found.type == nb.i32 else builder.zext(found)]


def load_words(
    builder: Any, machine: Any, kind: str, address: Any, count: int, space: str = "shared"
) -> list:
    """Load `count` adjacent elements of shared memory with one instruction; each has the LLVM type
    `machine`, `kind` in PTX. `space`: the state space, "shared" or "shared::cluster"."""
    vector, names = vector_of(count, 0)
    text = f"ld.{space}{vector}.{kind} {names}, [${count}];"
    return builder.emit_asm([machine] * count, [address], text)  # type: ignore[no-any-return]


def store_words(
    builder: Any,
    kind: str,
    address: Any,
    values: Sequence,
    chosen: Any = None,
    statement: str = "st.shared",
) -> None:
    """Store registers to adjacent places in memory with one instruction, or reduce them there, in
    lanes where `chosen`, an int32, is not 0."""
    where = [address] if chosen is None else [address, chosen]
    vector, names = vector_of(len(values), len(where))
    text = f"{statement}{vector}.{kind} [$0], {names};"
    if chosen is not None:
        text = f"{{ .reg .pred own; setp.ne.u32 own, $1, 0; @own {text} }}"
    builder.execute([*where, *values], text)
