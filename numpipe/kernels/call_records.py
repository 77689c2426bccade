"""The records of a call before it is planned: `Bound` and `Described`.

A call goes through three immutable records. One function makes each of them from the previous one:

===========  =====================  ================================================================
`Bound`      `Definition.bind`      which argument each parameter has
`Described`  `Definition.describe`  what the arguments are: layouts of arrays, types of scalars,
                                    which outputs are left out or passed as ``out=``, where it is to
                                    run
`Planned`    `Calls.plan`           the variant and its machine code, the grid, all arrays with the
                                    outputs that were allocated, checked scalars (`planned_calls`)
===========  =====================  ================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..launch.array_info import ArrayInfo
from ..launch.mesh import Mesh


class Statics(tuple[tuple[str, Any], ...]):
    """The names and values of a call's Statics, for use in dictionary keys. Values of different
    types are different: 1, True and 1.0 are three constants.

    >>> Statics([("n", 1)]) == Statics([("n", True)])
    False
    """

    types: tuple

    def __new__(cls, pairs: Iterable[tuple[str, Any]]) -> Statics:
        statics = super().__new__(cls, pairs)
        statics.types = tuple([_types(value) for _, value in statics])
        return statics

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Statics) and self.types == other.types and tuple.__eq__(self, other)
        )

    __hash__ = tuple.__hash__


def _types(value: Any) -> Any:
    """Return the type of a value, including the types of a dataclass's fields and a tuple's
    items."""
    if isinstance(value, tuple):
        return (type(value), *[_types(v) for v in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (
            (type(value), *[_types(v) for v in vars(value).values()])
            if hasattr(value, "__dict__")
            else type(value)
        )
    return type(value)


class Bound(NamedTuple):
    """The arguments of a call, by parameter name."""

    arguments: Mapping[str, Any]
    """arrays and run-time scalars, including defaults, without the outputs that the call leaves
    out"""
    statics: Statics

    def known(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a user's function of the arguments may take: scalars, Statics, and `arrays`
        in place of the arrays."""
        return {
            **{name: arrays.get(name, value) for name, value in self.arguments.items()},
            **dict(self.statics),
        }


class Described(NamedTuple):
    """A call with its arrays described: everything that its plan depends on."""

    bound: Bound
    arrays: Mapping[str, ArrayInfo]
    """the arrays that are passed, including those in ``out=``; outputs are last"""
    numbers: Mapping[str, Any]
    """the run-time scalars, in the order in which kernels take them"""
    missing: Sequence[str]
    """the outputs that are not passed by position or by name"""
    results: Sequence | None = None
    """the arrays passed as ``out=``, one per missing output; None: the call allocates them"""
    target: str | None = None
    """the ``target=`` argument"""
    mesh: Mesh | None = None
    own: int = 0
    """index of the GPU that it runs on, among this process's GPUs of the mesh"""

    @property
    def known(self) -> dict[str, Any]:
        """The values that a user's function of the arguments may take."""
        return self.bound.known(self.arrays)

    @property
    def gpus(self) -> int:
        """The number of GPUs of the mesh; 0 for a kernel of one GPU, without a mesh."""
        return 0 if self.mesh is None else self.mesh.size
