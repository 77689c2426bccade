"""Repeated calls of a kernel on device arrays: found by what their arrays are now, and launched again.

The first call binds, describes, plans and compiles (`calls`). Its launch is kept under the marks of its arrays (`launch.marks`):
address, shape, strides, type, device. A loop calls on the same arrays, or on new ones at addresses that its library's allocator
gives again, so nearly all calls end here. Calls of kernels with run-time scalars are not kept: each call writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import launch
from ..launch.info import ArrayInfo
from ..launch.launcher import Launch
from ..launch.marks import MARKS, learn
from ..launch.table import Table
from .arguments import Call, Parameters


class Repeat:
    """A list of arrays that a kernel was called on; with a stream it is the key of a launch in the table."""

    __slots__ = ("current", "newest")

    def __init__(self, current: Callable[[], int], newest: Launch) -> None:
        self.current = current
        """the stream that a call without stream= runs on"""
        self.newest = newest
        """the launch that was learnt last, so that calls on one stream need no second look-up"""


def constants_of(named: dict[str, Any], arguments: Parameters, get: Callable[[Any], Any]) -> Any:
    """Return the object that stands for the Statics of a call with these named arguments; None where it is not known."""
    found = get((*named, *map(id, named.values())))
    return get(arguments.constants(named)) if found is None else found[0]


def keep_constants(named: dict[str, Any], statics: Any, table: Table) -> Any:
    """Keep the object that stands for a call's Statics, whose hash is quicker, under the named arguments; returns it."""
    constants = table.get(statics) or table.keep(statics, object())
    table.keep((*named, *map(id, named.values())), (constants, tuple(named.values())))
    return constants


class Repeats:
    """The launches that calls of one kernel may repeat."""

    def __init__(self, arguments: Parameters, table: Table) -> None:
        self._arguments, self._table, self._get = arguments, table, table.get
        self._any = False
        """whether a call was learnt; of a kernel with scalars none is"""

    def find(self, args: tuple[Any, ...], named: dict[str, Any], out: Any, stream: Any) -> tuple[Launch | None, Any]:
        """Return the launch of a call with these arguments, None where it is not known; and the outputs, as the call returns them.

        Outputs that the call leaves out are allocated where the table knows how.
        """
        if not self._any:
            return None, out
        arrays = args
        if out is not None:
            arrays = (*args, *out) if type(out) is tuple or type(out) is list else (*args, out)
            if len(arrays) == len(args):
                return None, out
        get, constants = self._get, None
        try:
            marks = [MARKS[type(a)](a) for a in arrays]
        except KeyError:
            return None, out
        if named and (constants := constants_of(named, self._arguments, get)) is None:
            return None, out
        repeat = get((constants, len(args), *marks))
        if type(repeat) is list and stream is None and out is None:
            outputs = [make() for make in repeat]
            out = outputs[0] if len(outputs) == 1 else tuple(outputs)
            repeat = get((constants, len(args), *marks, *[MARKS[type(o)](o) for o in outputs]))
        if type(repeat) is not Repeat:
            return None, out
        handle = repeat.current() if stream is None else launch.as_stream(stream)
        newest = repeat.newest
        return newest if newest.stream == handle else get((repeat, handle)), out

    def learn(self, call: Call, named: dict[str, Any], launched: Launch) -> None:
        """Keep the launch of a call on device arrays, if the arrays and Statics alone determine it."""
        infos, keep = call.infos, self._table.keep
        if launched.observers or ArrayInfo in map(type, call.args) or any(learn(info) is None for info in infos):
            return
        constants = None
        if named:
            if self._arguments.constants(named) is None:
                return
            constants = keep_constants(named, call.statics, self._table)
        key = (constants, len(call.args), *[MARKS[type(info.owner)](info.owner) for info in infos])
        repeat = self._get(key) or keep(key, Repeat(launch.follow(infos), launched))
        repeat.newest = keep((repeat, launched.stream), launched)
        self._any = True
        if call.fresh and launched.stream == repeat.current():
            makers = [launch.maker(info) for info in infos[-call.fresh:]]
            if None not in makers:
                keep(key[:-call.fresh], makers)
