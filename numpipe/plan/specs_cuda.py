"""BlockSpec as a Numba value: its shape is in the type, its index map (with what it captured) in the value."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core import numba as nb
from ..core.op import Op, cuda_meaning, immediate
from .specs import GMEM, RECORDS, BlockSpec, axis_names, block_spec


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
def _block_spec(_context: Any, block_shape: Any, index_map: Any, memory_space: Any, transforms: Any, delay_release: Any,
                oob_fill: Any, buffer_count: Any, eviction_policy: Any, collective_axes: Any, known: Any, depends: Any) -> Any:
    shape = immediate("BlockSpec", "block_shape", block_shape)
    made = immediate("BlockSpec", "transforms", transforms)
    delay = immediate("BlockSpec", "delay_release", delay_release)
    fill = immediate("BlockSpec", "oob_fill", oob_fill)
    count = immediate("BlockSpec", "buffer_count", buffer_count)
    policy = immediate("BlockSpec", "eviction_policy", eviction_policy)
    axes = immediate("BlockSpec", "collective_axes", collective_axes)
    nowhere = isinstance(index_map, nb.types.NoneType)
    function: Any = None if nowhere else (lambda: None) if isinstance(index_map, nb.types.Callable) else str(index_map)
    same = BlockSpec(shape, function, memory_space=GMEM if nb.literal(memory_space) == "GMEM" else None,
                     transforms=made, delay_release=delay, oob_fill=fill,
                     buffer_count=count, eviction_policy=policy, collective_axes=axes)  # the same validation as on the host
    block = shape, fill, nb.literal(known), made, policy, axis_names("BlockSpec", axes)
    spec = SpecType(block, index_map, delay, count, same.loaded,
                    () if nowhere else nb.literal(depends))
    context, builder, args = yield spec(block_shape, index_map, memory_space, transforms, delay_release, oob_fill,
                                        buffer_count, eviction_policy, collective_axes, known, depends)
    return nb.struct(context, builder, spec, index_map=args[1])
