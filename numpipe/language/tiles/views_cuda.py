"""Views of arrays as Numba values: sizes in the type, starts in the value."""

from __future__ import annotations

import operator
from typing import Any

from ...core import numba as nb
from ...core.inert_cuda import InertType
from . import views as source
from .refs_cuda import AllType, DsType, GmemType

I32 = nb.types.int32


class GmemAtType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, ref: GmemType) -> None:
        self.ref = ref
        super().__init__(name=f"at({ref})")


class ViewType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, ref: GmemType, axes: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.ref, self.axes, self.sizes = ref, axes, sizes
        super().__init__(name=f"view({ref}, {axes}, {sizes})")

    @property
    def place(self) -> Any:
        return nb.types.UniTuple(I32, self.ref.arg.ndim)


nb.struct_model(GmemAtType, lambda ty: [("ref", ty.ref)])
nb.struct_model(ViewType, lambda ty: [("ref", ty.ref), ("start", ty.place)])


def _at(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    return nb.struct(context, builder, GmemAtType(ty), ref=value)


nb.attribute(GmemType, "at", GmemAtType, _at)
nb.constant_attribute(ViewType, "shape", lambda ty: ty.sizes)
nb.constant_attribute(ViewType, "dtype", lambda ty: ty.ref.arg.dtype.name)


def _kind(part: Any) -> str:
    if isinstance(part, (DsType, AllType)):
        return "ds" if isinstance(part, DsType) else ":"
    return "int" if isinstance(part, (nb.types.Integer, InertType)) else "other"


def _view(target: Any, index: Any) -> Any:
    if not isinstance(target, GmemAtType):
        return None
    parts = tuple(index) if isinstance(index, nb.types.BaseTuple) else (index,)
    axes = source.view_axes(target.ref.arg.name, target.ref.arg.ndim, [_kind(part) for part in parts],
                            f"({', '.join(map(str, parts))}{',' * (len(parts) == 1)})")
    result = ViewType(target.ref, axes, tuple(parts[axis].size for axis in axes))
    context, builder, args = yield result(target, index)
    ref = nb.fields(context, builder, target, args[0]).ref
    start = []
    for axis, part in enumerate(parts):
        inert = isinstance(part, InertType) or getattr(part, "inert", False)
        given = args[1] if not isinstance(index, nb.types.BaseTuple) else builder.extract_value(args[1], axis)
        found = nb.const(0) if inert else given
        start.append(found if inert or isinstance(part, DsType) else context.cast(builder, found, part, I32))
    return nb.struct(context, builder, result, ref=ref, start=context.make_tuple(builder, result.place, start))


nb.binary(operator.getitem, _view)
