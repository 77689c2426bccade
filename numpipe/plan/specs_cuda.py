"""BlockSpec as a Numba value: its shape is in the type, its index map (with what it captured) in the value."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core import numba as nb
from ..core.op import Op, cuda_meaning, immediate
from .specs import GMEM, OPTIONS, RECORDS, BlockSpec, block_spec


class RecordType(nb.types.Type):  # type: ignore[misc]
    """Of an `Element`, a transform: all of it is known at compile time, so it counts as a literal."""

    def __init__(self, value: Any) -> None:
        self.literal_value = value
        super().__init__(name=repr(value))


nb.register_model(RecordType)(nb.models.OpaqueModel)


class SpecType(nb.types.Type):  # type: ignore[misc]
    """Has what `BlockSpec` has, but for its index map a type."""

    def __init__(self, block: tuple[Any, ...], index_map: Any, delay_release: int | None, buffer_count: int | None, loaded: bool,
                 depends: tuple[bool, ...] | None) -> None:
        self.block, self.index_map, self.delay_release, self.buffer_count = block, index_map, delay_release, buffer_count
        self.loaded, self.depends = loaded, depends
        super().__init__(name=f"BlockSpec({block}, {index_map}, {delay_release}, {buffer_count}, {loaded}, {depends})")


nb.struct_model(SpecType, lambda ty: [("index_map", ty.index_map)])


def _record(kind: type, operation: Op[..., Any]) -> None:
    field, = dataclasses.fields(kind)

    @cuda_meaning(operation)
    def typer(_context: Any, value: Any) -> Any:
        record = RecordType(kind(immediate(kind.__name__, field.name, value)))
        return record(value), lambda context, builder, sig, args: nb.nothing(context)


for _kind, _operation in RECORDS.items():
    _record(_kind, _operation)


@cuda_meaning(block_spec)
def _block_spec(_context: Any, *given: Any) -> Any:
    *types, known, depends = given
    of = dict(zip(OPTIONS, types, strict=True))
    index_map = of.pop("index_map")
    said = {name: immediate("BlockSpec", name, ty) for name, ty in of.items()}
    said["memory_space"] = GMEM if said["memory_space"] == "GMEM" else None
    nowhere = isinstance(index_map, nb.types.NoneType)
    function: Any = None if nowhere else (lambda: None) if isinstance(index_map, nb.types.Callable) else str(index_map)
    same = BlockSpec(index_map=function, **said)  # the same validation as on the host
    object.__setattr__(same, "_known", nb.literal(known))
    spec = SpecType(same.block, index_map, same.delay_release, same.buffer_count, same.loaded,
                    () if nowhere else nb.literal(depends))
    context, builder, args = yield spec(*given)
    return nb.struct(context, builder, spec, index_map=args[1])
