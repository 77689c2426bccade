"""The records of a call before it is planned: `Bound` and `Described`.

Each of the three records of a call is made by one function from the one before, and nothing changes
it afterwards:

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
    """Names and values of a call's Statics, as part of dictionary keys: 1, True and 1.0 are
    different constants.

    >>> Statics([("n", 1)]) == Statics([("n", True)])
    False
    """

    types: tuple[Any, ...]

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
    """Return the types in a value, with those of a dataclass' fields and of a tuple's items."""
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
    """The arguments of a call by parameter."""

    arguments: Mapping[str, Any]
    """arrays and run-time scalars, with defaults; without the outputs that the call leaves out"""
    statics: Statics

    def known(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a user's function of the arguments may take: `arrays` in place of the arrays,
        scalars and Statics."""
        return {
            **{name: arrays.get(name, value) for name, value in self.arguments.items()},
            **dict(self.statics),
        }


class Described(NamedTuple):
    """A call with its arrays described: what its plan depends on."""

    bound: Bound
    arrays: Mapping[str, ArrayInfo]
    """the arrays that are passed, also as ``out=``; outputs are the last ones"""
    numbers: Mapping[str, Any]
    """the run-time scalars, in the order in which kernels take them"""
    missing: Sequence[str]
    """the outputs that are not passed by position or by name"""
    results: Sequence[Any] | None = None
    """the arrays that are passed as ``out=``, one for each missing output; None: the call allocates
    them"""
    target: str | None = None
    """the argument ``target=``"""
    mesh: Mesh | None = None
    own: int = 0
    """which of this process' GPUs it runs on, of those of the mesh"""

    @property
    def known(self) -> dict[str, Any]:
        """What a user's function of the arguments may take."""
        return self.bound.known(self.arrays)

    @property
    def gpus(self) -> int:
        """The number of GPUs that run it together; 0: it is of one GPU, without a mesh."""
        return 0 if self.mesh is None else self.mesh.size
