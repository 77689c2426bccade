"""Repeated calls on the GPUs of a mesh: found by what the arrays of all GPUs of this process are now, and launched again.

Kernels and ops find their calls in the same way. The key of a call has the marks of every GPU's arrays, so a call that was made
before is a few look-ups whatever the number of GPUs; outputs that a call leaves out are allocated as its first call did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .info import ArrayInfo
from .marks import MARKS, learn
from .mesh import Mesh
from .outputs import maker
from .peers import Together
from .streams import as_stream, follow
from .table import Table


class Repeat:
    """Lists of arrays that were passed once; with streams it is the key of the launches in the table."""

    __slots__ = ("current", "newest")

    def __init__(self, current: Sequence[Callable[[], int]], newest: Together) -> None:
        self.current = current
        """by GPU the stream that a call without stream= runs on"""
        self.newest = newest


class MeshRepeats:
    """The launches that calls on meshes may repeat, of one kernel or one op."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.any = False
        """whether a call was learnt; of a kernel with scalars none is"""

    def find(self, mesh: Mesh, constants: Hashable, args: tuple[Any, ...], out: Any, stream: Any) -> tuple[Together | None, Any]:
        """Return the launches of a call with these arguments, None where they are not known; and its outputs, as returned.

        `constants` is all else that the call depends on. Raises KeyError or TypeError for arguments that have no marks.
        """
        get = self._table.get
        key: list[Any] = [_marks(each) for each in args]
        if out is not None:
            key += [_marks(each) for each in (out if type(out) is tuple else (out,))]
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

    def learn(self, mesh: Mesh, constants: Hashable, args: int, passed: Sequence[Any], infos: Sequence[Sequence[ArrayInfo]],
              fresh: int, launched: Together) -> None:
        """Keep the launches of a call, if its arrays and `constants` alone determine them.

        args    how many arrays it passed ahead of its outputs
        passed  these and its outputs, as it passed or got them
        infos   what they are, on each GPU of this process
        fresh   the outputs, of the last ones, that it left out
        """
        keep = self._table.keep
        if any(each.observers for each in launched.launches):
            return
        for info in itertools.chain(*infos):
            learn(info)
        try:
            key = (mesh, constants, args, *[_marks(each) for each in passed])
            repeat = self._table.get(key)
        except (KeyError, TypeError):  # an array without marks, a constant without a hash
            return
        if type(repeat) is not Repeat:
            repeat = keep(key, Repeat([follow(each) for each in infos], launched))
        repeat.newest = keep((repeat, *launched.streams), launched)
        self.any = True
        if fresh and all(now() == handle for now, handle in zip(repeat.current, launched.streams, strict=True)):
            makers = [[maker(each[number]) for each in infos] for number in range(-fresh, 0)]
            if not any(None in each for each in makers):
                keep(key[:-fresh], makers)


def handles(streams: Any) -> tuple[int, ...]:
    """Return the handles of a call's streams, one of each GPU of this process."""
    return tuple([as_stream(each) for each in (streams if type(streams) in (list, tuple) else (streams,))])


def _mark(array: Any) -> Any:
    return array[1:7] if type(array) is ArrayInfo else MARKS[type(array)](array)


def _marks(argument: Any) -> Any:
    """Return the marks of an argument: of an array, or of a list of the GPUs' arrays."""
    kind = type(argument)
    return tuple([_mark(each) for each in argument]) if kind is list or kind is tuple else _mark(argument)
