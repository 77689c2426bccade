"""What values of a type are to LLVM: a structure of fields, one machine value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba.cuda import cgutils
from numba.cuda.datamodel import models
from numba.cuda.extending import register_model

__all__ = ["fields", "machine_model", "struct", "struct_model"]


def struct_model(type_class: type, fields: Callable[[Any], Sequence[tuple[str, Any]]]) -> None:
    """Values of `type_class` are structures; ``fields(type)``: (name, Numba type) of each field."""
    register_model(type_class)(lambda manager, ty: models.StructModel(manager, ty, fields(ty)))


def machine_model(type_class: type, machine: Callable[[Any], Any]) -> None:
    """Values of `type_class` are values of the LLVM type ``machine(type)``."""
    register_model(type_class)(lambda manager, ty: models.PrimitiveModel(manager, ty, machine(ty)))


def fields(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    """The fields of a structure, as attributes."""
    return cgutils.create_struct_proxy(ty)(context, builder, value=value)


def struct(context: Any, builder: Any, ty: Any, **values: Any) -> Any:
    """A structure of these fields; others are undefined."""
    made = cgutils.create_struct_proxy(ty)(context, builder)
    for name, value in values.items():
        setattr(made, name, value)
    return made._getvalue()
