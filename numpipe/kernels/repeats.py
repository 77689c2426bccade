"""Calls of a kernel on device arrays that were made before: found by what their arrays are now, and launched again.

The first call binds, describes, plans and compiles (`calls`). What it launched is kept here under the marks of its arrays
(`launch.marks`): address, shape, strides, type, device. A loop calls on the same arrays, or on new ones at addresses that its
library's allocator gives again, so nearly all calls end here. Kernels with run-time scalars are not kept: each call writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import launch
from ..launch.info import ArrayInfo
from ..launch.launcher import Launch, bounded
from ..launch.marks import MARKS, learn
from .arguments import Call, Parameters

MISS = object()
"""the answer for a call that was not made before"""
_STREAMS = 16


class _Seen:
    """The launches of one argument list: one a stream."""

    __slots__ = ("current", "launches")

    def __init__(self, current: Callable[[], int]) -> None:
        self.current = current
        """the stream that a call without stream= runs on"""
        self.launches: dict[int, Launch] = {}


class Repeats:
    """What calls of one kernel have launched."""

    def __init__(self, arguments: Parameters, call: Callable[..., Any]) -> None:
        """`call(args, named, out, target, stream)` makes a call that was not made before."""
        self._arguments, self._call = arguments, call
        self._seen: dict[tuple[Any, ...], _Seen] = {}
        self._makes: dict[tuple[Any, ...], Sequence[Callable[[], Any]]] = {}
        """how the outputs of a call that passed none are allocated"""
        self._constants: dict[tuple[Any, ...], tuple[object, tuple[Any, ...]]] = {}
        """of Statics passed by name, by identity: what stands for them in keys, and the values themselves, which keep their ids"""
        self._tokens: dict[Any, object] = {}

    def __call__(self, args: tuple[Any, ...], named: dict[str, Any], out: Any, stream: Any) -> Any:
        """Launch such a call again and return what it returns, or MISS. Raises LaunchError."""
        if not self._seen:
            return MISS
        constants = self._constant(named) if named else None
        outs = () if out is None else out if type(out) is tuple or type(out) is list else (out,)
        try:
            key = (constants, len(args), *[MARKS[type(a)](a) for a in (*args, *outs)])
        except KeyError:
            return MISS
        seen = self._seen.get(key)
        if seen is None:
            return self._fresh(key, args, named) if out is None and stream is None else MISS
        handle = seen.current() if stream is None else launch.as_stream(stream)
        launched = seen.launches.get(handle)
        if launched is None or (out is not None and not outs):
            return MISS
        launched()
        return out

    def _fresh(self, key: tuple[Any, ...], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The same for a call that leaves its outputs to be allocated."""
        makers = self._makes.get(key)
        if makers is None:
            return MISS
        outs = [make() for make in makers]
        seen = self._seen.get((*key, *[MARKS[type(o)](o) for o in outs]))
        launched = None if seen is None else seen.launches.get(seen.current())
        if launched is None:
            self._call(args, named, outs, None, None)
        else:
            launched()
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _constant(self, named: dict[str, Any]) -> object:
        """What stands for the Statics of a call in keys; one that no key has for others, and where an array is passed by name."""
        found = self._constants.get((*named, *map(id, named.values())))
        if found is not None:
            return found[0]
        return self._tokens.get(self._arguments.constants(named), MISS)

    def learn(self, call: Call, named: dict[str, Any], infos: Sequence[ArrayInfo], made: Sequence[ArrayInfo],
              launched: Launch) -> None:
        """Remember a call on device arrays: its arguments, all its arrays, those of them that it allocated, and what it launched.

        One that cannot be told again by its arrays and Statics alone is not kept.
        """
        if launched.observers or any(learn(info) is None for info in infos):
            return
        constants = None
        if named:
            if self._arguments.constants(named) is None:
                return
            constants = self._tokens.setdefault(call.statics, object())
            bounded(self._constants, (*named, *map(id, named.values())), (constants, tuple(named.values())))
        marks = [MARKS[type(info.owner)](info.owner) for info in infos]
        key = (constants, len(call.args), *marks)
        seen = self._seen.get(key)
        if seen is None:
            seen = _Seen(launch.follow(infos))
            bounded(self._seen, key, seen)
        bounded(seen.launches, launched.stream, launched, _STREAMS)
        if made and launched.stream == seen.current():
            makers = [launch.maker(info) for info in made]
            if None not in makers:
                bounded(self._makes, key[:len(key) - len(made)], makers)
