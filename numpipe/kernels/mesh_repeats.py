"""Repeated calls on the GPUs of a mesh: found by what the arrays of all GPUs of this process are now, and launched again.

As `repeats` for one GPU. The key of a call has the marks of every GPU's arrays, so a call that was made before is a few look-ups
whatever the number of GPUs; outputs that a call leaves out are allocated as its first call did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import launch
from ..launch.info import ArrayInfo
from ..launch.marks import MARKS, learn
from ..launch.mesh import Mesh
from ..launch.peers import Together
from ..launch.table import Table
from .arguments import Call, Parameters
from .repeats import constants_of, keep_constants


class Repeat:
    """Lists of arrays that a kernel was called on; with streams it is the key of the launches in the table."""

    __slots__ = ("current", "newest")

    def __init__(self, current: Sequence[Callable[[], int]], newest: Together) -> None:
        self.current = current
        """by GPU the stream that a call without stream= runs on"""
        self.newest = newest


class MeshRepeats:
    """The launches that calls of one kernel on meshes may repeat."""

    def __init__(self, arguments: Parameters, table: Table) -> None:
        self._arguments, self._table = arguments, table
        self._any = False
        """whether a call was learnt; of a kernel with scalars none is"""

    def find(self, mesh: Mesh, args: tuple[Any, ...], named: dict[str, Any], out: Any, stream: Any) -> tuple[Together | None, Any]:
        """Return the launches of a call with these arguments, None where they are not known; and its outputs, as returned."""
        if not self._any:
            return None, out
        get, constants = self._table.get, None
        try:
            key: list[Any] = [_marks(each) for each in args]
            if out is not None:
                key += [_marks(each) for each in (out if type(out) is tuple else (out,))]
        except (KeyError, TypeError):
            return None, out
        if named and (constants := constants_of(named, self._arguments, get)) is None:
            return None, out
        repeat = get((mesh, constants, len(args), *key))
        if type(repeat) is list and out is None and stream is None:
            lists = [[make() for make in makers] for makers in repeat]
            outputs = [each[0] for each in lists] if mesh.rank is not None else lists
            out = outputs[0] if len(outputs) == 1 else tuple(outputs)
            repeat = get((mesh, constants, len(args), *key, *[_marks(each) for each in outputs]))
        if type(repeat) is not Repeat:
            return None, out
        newest: Together | None = repeat.newest
        streams = tuple([now() for now in repeat.current]) if stream is None else handles(stream)
        if repeat.newest.streams != streams:
            newest = get((repeat, *streams))
        return (None if newest is None or newest.stale else newest), out

    def learn(self, mesh: Mesh, calls: Sequence[Call], named: dict[str, Any], launched: Together) -> None:
        """Keep the launches of a call, if the arrays and Statics alone determine them; `calls` are those of this process' GPUs."""
        keep, first = self._table.keep, calls[0]
        if any(each.observers for each in launched.launches) or any(
                type(info.owner) is not type(None) and learn(info) is None for call in calls for info in call.infos):
            return
        constants = None
        if named:
            if self._arguments.constants(named) is None:
                return
            constants = keep_constants(named, first.statics, self._table)

        def passed(number: int) -> Any:
            """Return an argument as a call passes it: a description of an array stands for itself."""
            if number < len(first.args):
                each = [call.args[number] for call in calls]
                return each[0] if mesh.rank is not None else each
            each = [call.infos[number].owner if call.infos[number].owner is not None else call.infos[number] for call in calls]
            return each[0] if mesh.rank is not None else each

        try:
            key = (mesh, constants, len(first.args), *[_marks(passed(number)) for number in range(len(first.infos))])
        except KeyError:
            return
        repeat = self._table.get(key)
        if type(repeat) is not Repeat:
            repeat = keep(key, Repeat([launch.follow(call.infos) for call in calls], launched))
        repeat.newest = keep((repeat, *launched.streams), launched)
        self._any = True
        if first.fresh and all(now() == handle for now, handle in zip(repeat.current, launched.streams, strict=True)):
            makers = [[launch.maker(call.infos[number]) for call in calls] for number in range(-first.fresh, 0)]
            if not any(None in each for each in makers):
                keep(key[:-first.fresh], makers)


def handles(streams: Any) -> tuple[int, ...]:
    """Return the handles of a call's streams, one of each GPU of this process."""
    return tuple([launch.as_stream(each) for each in (streams if type(streams) in (list, tuple) else (streams,))])


def _mark(array: Any) -> Any:
    return array[1:7] if type(array) is ArrayInfo else MARKS[type(array)](array)


def _marks(argument: Any) -> Any:
    """Return the marks of an argument: of an array, or of a list of the GPUs' arrays."""
    kind = type(argument)
    return tuple([_mark(each) for each in argument]) if kind is list or kind is tuple else _mark(argument)
