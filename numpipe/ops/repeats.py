"""Repeated calls of an op on arrays of a GPU: found by what their arrays are now, and launched again.

A kernel finds its repeated calls in the same way (`kernels.repeats`), but an op looks at shapes, chooses a config and makes windows
on the arrays before it calls one. So it keeps the launch under the marks of the caller's own arrays (`launch.marks`: address,
shape, strides, type), and a call that was made before costs some look-ups and the driver's call. An op that launched more than one
kernel, because it copied an operand, is not kept: its copy would be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from .. import launch
from ..launch.faults import DriverError, of_kernel
from ..launch.info import ArrayInfo
from ..launch.launcher import Launch
from ..launch.marks import MARKS, learn
from ..launch.table import Table


def recorded(array: Any) -> bool:
    """Return whether PyTorch would record what is computed of an array."""
    return bool(getattr(array, "requires_grad", False)) and sys.modules["torch"].is_grad_enabled()


class Repeats:
    """The launches that calls of one op may repeat."""

    def __init__(self, op: str) -> None:
        self.op, self._table = op, Table()

    def again(self, arrays: Sequence[Any], constants: tuple[Any, ...], out: Any, stream: Any) -> tuple[bool, Any]:
        """Make a call that was made before, if it was; returns whether, and its output.

        Where it was not, the output may be allocated all the same: the caller writes that one, for its place is the one that the
        library gives again. `arrays` may hold None. `constants` is all else that the result depends on.
        """
        get = self._table.get
        if any(map(recorded, (*arrays, out))):
            return False, out
        try:
            key = (constants, *[None if array is None else MARKS[type(array)](array) for array in arrays])
            if out is None:
                make = get(key)
                if make is None:
                    return False, None
                out = make()
            known = get((key, MARKS[type(out)](out)))
        except (KeyError, TypeError):  # arrays of another kind; a constant without a hash
            return False, out
        if known is None:
            return False, out
        current, launches = known
        launched = launches.get(current() if stream is None else launch.as_stream(stream))
        if launched is None:
            return False, out
        try:
            launched()
        except DriverError as error:
            raise of_kernel(error, self.op) from error
        return True, out

    def call(self, run: Callable[[], None], arrays: Sequence[Any], constants: tuple[Any, ...], out: Any, infos: Sequence[ArrayInfo],
             stream: Any) -> None:
        """Make a call that was not made before: `run` makes it. It is kept where arrays and constants determine what it launches.

        `infos` describe the arrays that are not None, and last the output, which the call allocated if `out` is None.
        """
        given = [array for array in (*arrays, out) if array is not None]
        known = all(array is info.owner for array, info in zip(given, infos, strict=False))  # and none is a description itself
        if not known or any(info.kind == "host" or learn(info) is None for info in infos):
            run()
            return
        with launch.collecting(launch.Collected()) as collected:
            run()
        launched = collected.launches[0] if len(collected.launches) == 1 else None
        if not isinstance(launched, Launch) or launched.observers:
            return
        key = (constants, *[None if array is None else MARKS[type(array)](array) for array in arrays])
        output = infos[-1].owner
        try:
            place = key, MARKS[type(output)](output)
            _, launches = self._table.get(place) or self._table.keep(place, (launch.follow(infos), {}))
        except TypeError:  # a constant has no hash
            return
        launches[launched.stream] = launched
        make = launch.maker(infos[-1]) if out is None and stream is None else None
        if make is not None:
            self._table.keep(key, make)
