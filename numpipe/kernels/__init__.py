"""A kernel as it is written, compiled for types and Statics, and called.

Here belongs what lies between a call's arguments and a compile, a launch or a simulation. Read `decorator` for what a user says,
then `kernels`, `calls` and `variants`.
"""

from typing import TYPE_CHECKING, Any

from .decorator import kernel

if TYPE_CHECKING:
    from .kernels import Kernel

__all__ = ["Kernel", "kernel"]


def __getattr__(name: str) -> Any:
    if name == "Kernel":
        from .kernels import Kernel

        return Kernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
