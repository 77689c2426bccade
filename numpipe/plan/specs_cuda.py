"""BlockSpec as a Numba value: its shape is in the type, its index map (with captured variables) in
the value."""

from __future__ import annotations

from typing import Any

from ..core import numba as nb
from ..core.op import Op, cuda_meaning
from .specs import OPTIONS, RECORDS, BlockSpec, block_spec


class RecordType(nb.FieldsType):
    """The type of an `Element` or a transform. The whole value is known at compile time, so the
    type counts as a literal."""

    literal_value: Any


nb.register_model(RecordType)(nb.models.OpaqueModel)


class SpecType(nb.Type):  # type: ignore[misc]
    """The type of a `BlockSpec`: it has the spec's attributes, with the index map replaced by its
    type."""

    def __init__(self, spec: BlockSpec, index_map: Any) -> None:
        self.index_map, self.loaded, self.depends = index_map, spec.loaded, spec.depends
        self.block = spec.block
        self.delay_release = spec.delay_release
        self.buffer_count = spec.buffer_count
        super().__init__(
            name=f"BlockSpec({self.block}, {index_map}, {self.delay_release}, "
            f"{self.buffer_count}, {self.loaded}, {self.depends})"
        )


nb.struct_model(SpecType, lambda ty: [("index_map", ty.index_map)])


def _record(operation: Op) -> None:
    @cuda_meaning(operation)
    def typer(value: Any) -> Any:
        yield RecordType(operation.function(value))


for _operation in RECORDS.values():
    _record(_operation)


@cuda_meaning(block_spec)
def _block_spec(*given: Any) -> Any:
    at = OPTIONS.index("index_map")
    index_map, facts = given[at], map(nb.literal, given[len(OPTIONS) :])
    function = (
        None
        if isinstance(index_map, nb.NoneType)
        else (lambda: None)
        if isinstance(index_map, nb.types.Callable)
        else str(index_map)
    )
    spec = SpecType(
        block_spec.function(*given[:at], function, *given[at + 1 : len(OPTIONS)], *facts), index_map
    )
    builder, args = yield spec
    return builder.struct(spec, index_map=args[at])
