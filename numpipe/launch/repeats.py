"""Relaunching of repeated calls on device arrays, which are found by the current state of their
arrays.

The first call of a kernel or an op binds, describes, plans and compiles. Its launch is cached by
the marks of its arrays (`MARKS`: address, shape, strides, type, device). A loop uses the same
arrays, or new ones at addresses that the library's allocator reuses, so nearly all calls end here,
after a few look-ups and the driver call. Outputs that a call leaves out are allocated in the same
way as by the first call. On a mesh, the key contains the marks of the arrays on all GPUs of this
process, and there is one launch per GPU.

Calls of kernels with run-time scalars are not cached, because each call writes them. A call of an
op may launch several kernels, which are repeated together. The arrays that they pass on are in
memory that all repeated calls on a stream share."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dimensions import Ints, round_up
from ..arch.target import LINE
from ..diagnostics.argument_checks import as_tuple
from . import driver
from .array_info import ArrayInfo, Kind, dense_strides
from .arrays import library
from .collected_launches import Collected, collecting
from .device_array import DeviceArray
from .driver_errors import DriverError, of_kernel
from .launcher import Launch
from .mesh import Mesh
from .output_arrays import maker
from .peer_access import Together
from .streams import LEGACY_DEFAULT, as_stream, follow
from .table import Table

Mark = tuple
_POINTER = operator.attrgetter("ptr")


def _marks(arrays: Any) -> Mark:
    return tuple([MARKS[type(array)](array) for array in arrays])


MARKS: dict[type, Callable[[Any], Hashable]] = {
    DeviceArray: DeviceArray.mark,
    ArrayInfo: operator.itemgetter(slice(1, 7)),
    type(None): type,
    list: _marks,
    tuple: _marks,
}
"""function that returns the marks of an argument, by type: arrays, whose first mark is the address;
None, for an array that an op may leave out; lists of the arrays of a mesh"""


def _torch(tensor: Any) -> Mark:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _cupy(array: Any) -> Mark:
    # `strides` creates a new tuple each time
    return array.data.ptr, array.shape, array._c_contiguous or array.strides, array.dtype


def learn(info: ArrayInfo) -> bool:
    """Add the function for arrays of this type to `MARKS`. Return whether there is one."""
    kind = type(info.owner)
    if kind in MARKS:
        return True
    if info.kind == "torch":
        MARKS[kind] = _torch
    elif info.kind != "host" and library(kind) == "cupy" and hasattr(info.owner, "data"):
        MARKS[kind] = _cupy
    return kind in MARKS


def address_of(info: ArrayInfo) -> Callable[[], int] | None:
    """Return a function that returns the current address of the array's data, or None if the data
    cannot move while the array exists."""
    if info.kind == "torch":
        address: Callable[[], int] = info.owner.data_ptr
        return address
    if isinstance(info.owner, DeviceArray):
        return functools.partial(_POINTER, info.owner)
    return None


@dataclass(eq=False, slots=True)
class Repeat:
    """Arrays that were passed before. Together with a stream, it is the key of a launch in the
    table."""

    current: Callable[[], Any]
    """returns the stream of a call without stream=; on a mesh, the streams"""
    handle: Callable[[Any], Any]
    """converts a stream= argument to the same form"""
    newest: Launch | Series | Together | MeshSeries
    """the most recently cached launch, so that calls on one stream need only one look-up"""


class Repeats:
    """The cached launches of one kernel or one op."""

    def __init__(self, table: Table) -> None:
        self._table, self._get = table, table.get
        self.any = False
        """whether a call is cached; never true for a kernel with scalars"""

    def find(self, constants: Hashable, args: tuple, out: Any, stream: Any) -> tuple[Any, Any]:
        """Return the launch of a call, or None if it is unknown, and the call's outputs.

        `constants` is everything else that the call depends on. Outputs that the call leaves out
        are allocated if the table knows how, even if the launch for their addresses is unknown; the
        caller then makes its call with them.
        """
        if out is None:
            arrays = args
        elif type(out) is tuple or type(out) is list:
            arrays = (*args, *out)
            if not out:
                return None, out
        else:
            arrays = (*args, out)
        get = self._get
        try:
            marks = [MARKS[type(a)](a) for a in arrays]
            repeat = get((constants, len(args), *marks))
        except (KeyError, TypeError):  # arrays without marks, or an unhashable constant
            return None, out
        if type(repeat) is list and stream is None and out is None:
            made = [make() for make in repeat]
            marks += [MARKS[type(o)](o) for o in made]
            out = made[0] if len(made) == 1 else tuple(made)
            repeat = get((constants, len(args), *marks))
        if type(repeat) is not Repeat:
            return None, out
        handle = repeat.current() if stream is None else repeat.handle(stream)
        newest = repeat.newest
        return newest if newest.stream == handle else get((repeat, handle)), out

    def find_on(
        self, mesh: Mesh, constants: Hashable, args: tuple, out: Any, stream: Any
    ) -> tuple[Any, Any]:
        """Like `find`, on a mesh: arrays may be lists, and several outputs are a tuple."""
        given = out if out is None or type(out) is tuple else (out,)
        launched, outputs = self.find((mesh, constants), args, given, stream)
        if launched is not None and launched.stale:
            launched = None
        return launched, outputs if out is None else out

    def learn(
        self,
        constants: Hashable,
        args: Sequence,
        outputs: Sequence,
        infos: Sequence[Sequence[ArrayInfo]],
        fresh: int,
        launched: Launch | Series | Together | MeshSeries,
    ) -> None:
        """Cache the launch of a call if it is determined by its arrays and `constants` alone.

        args     the arrays that the call passed before its outputs; on a mesh possibly lists of
        them
        outputs  the arrays that it passed as outputs, or that were allocated
        infos    descriptions of all these arrays, by GPU
        fresh    number of trailing outputs that the call allocated
        """
        if launched.prepared.observers:
            return
        for info in itertools.chain(*infos):
            learn(info)
        passed = (*args, *outputs)
        try:
            key = (constants, len(args), *[MARKS[type(array)](array) for array in passed])
            repeat = self._get(key)
        except (KeyError, TypeError):
            return
        if type(repeat) is Repeat:
            for one in (repeat.newest, launched):
                self._table.keep((repeat, one.stream), one)
            repeat.newest = launched
        elif isinstance(launched, (Launch, Series)):
            repeat = self._table.keep(key, Repeat(follow(infos[0]), as_stream, launched))
        else:
            current = functools.partial(_each, tuple, [follow(each) for each in infos])
            repeat = self._table.keep(key, Repeat(current, handles, launched))
        self.any = True
        if fresh and launched.stream == repeat.current():
            lists = type(passed[-1]) in (list, tuple)
            makers = []
            for number in range(-fresh, 0):
                each: list = [maker(of_gpu[number]) for of_gpu in infos]
                if None in each:
                    return
                makers.append(functools.partial(_each, list, each) if lists else each[0])
            self._table.keep(key[:-fresh], makers)


def _each(kind: type, functions: Sequence[Callable[[], Any]]) -> Any:
    return kind([function() for function in functions])


def handles(streams: Any) -> Ints:
    """Return the handles of the streams of a call on a mesh, one for each GPU of this process."""
    return tuple([as_stream(each) for each in as_tuple(streams)])


# ---- of ops
def recorded(array: Any) -> bool:
    """Return whether PyTorch would record a computation on this array for autograd."""
    torch = sys.modules.get("torch")
    asked = bool(getattr(array, "requires_grad", False))
    return asked and torch is not None and torch.is_grad_enabled()


HELD = 1 << 28
"""most bytes of the arrays that the launches of a repeated call pass on"""
_memory: dict[tuple[int, int], DeviceArray] = {}
"""(device, stream) -> memory for these arrays: calls on a stream run one after another"""
_order = threading.RLock()
"""held from the first launch of such a call to its last: other threads use the memory, too"""


class Series:
    """The launches of one call, in order, and the memory in which they pass arrays on."""

    def __init__(self, launches: Sequence[Launch], memory: Sequence[DeviceArray]) -> None:
        self.launches, self.memory = launches, memory
        self.prepared, self.stream = launches[0].prepared, launches[0].stream

    def __call__(self) -> None:
        with _order:
            for launch in self.launches:
                launch()

    @property
    def free(self) -> bool:
        """Whether it may be repeated: a graph that is being captured may outlive its arrays."""
        first = self.launches[0]
        # nothing can capture the legacy default stream
        return first.stream == LEGACY_DEFAULT or not driver.get().capturing(
            first.stream, first.device
        )


class MeshSeries:
    """The launches of one call on a mesh, in order; at least one of them is on all GPUs. Arrays are
    passed from one launch to the next in workspaces of the mesh."""

    def __init__(self, launches: Sequence[Launch | Together]) -> None:
        self.launches = launches
        self._together = [one for one in launches if isinstance(one, Together)]
        self.prepared, self.stream = self._together[0].prepared, self._together[0].stream

    def __call__(self) -> None:
        with self._together[0].controls.launching:
            for launch in self.launches:
                launch()

    @property
    def stale(self) -> bool:
        """Whether memory that the launches use has been freed since."""
        return any(one.stale for one in self._together)


class Passed(Collected):
    """The launches of a call, which pass arrays of this kind on in the memory of their stream."""

    def __init__(self, kind: Kind, stream: int) -> None:
        super().__init__()
        self._kind, self._stream = kind, stream
        self.memory: list[DeviceArray] = []
        self.fits = True

    def allocate(self, shape: Sequence[int], dtype: np.dtype, device: int) -> ArrayInfo | None:
        shape, place = tuple(shape), (device, self._stream)
        first, memory = self._allocated, _memory.get(place)
        end = first + round_up(math.prod(shape) * dtype.itemsize, LINE)
        if end <= HELD and (memory is None or end > memory.nbytes):
            # recorded launches keep the previous memory. PyTorch may have reserved all of the GPU's
            with contextlib.suppress(DriverError):
                size = min(HELD, 2 * end)
                memory = _memory[place] = DeviceArray((size,), np.uint8, self._stream, device)
        if memory is None or end > memory.nbytes:
            self.fits = False
            return None
        self._allocated = end
        self.memory.append(memory)
        strides = dense_strides(shape, dtype.itemsize)
        at = memory.ptr + first
        return ArrayInfo(self._kind, at, shape, strides, dtype, device, True, memory)


class OpRepeats(Repeats):
    """The cached launches of one op, by the marks of the user's own arrays.

    They are found before the op inspects shapes, chooses a config, makes windows and calls a
    kernel.
    """

    def __init__(self, op: str, several: bool = False) -> None:
        """`several`: whether the op may have several outputs, which are passed as a tuple."""
        super().__init__(Table())
        self.op, self.several = op, several

    def again(
        self,
        arrays: tuple,
        constants: Hashable,
        out: Any,
        stream: Any,
        mesh: Mesh | None = None,
    ) -> tuple[bool, Any]:
        """Repeat an earlier call. Return whether there was one, and its output.

        `arrays` may contain None; on a mesh, it may contain lists.
        """
        given: Sequence = (*arrays, out)
        if mesh is not None:
            given = [array for each in given for array in as_tuple(each)]
        for array in given:
            if getattr(array, "requires_grad", False) and recorded(array):
                return False, out
        if mesh is not None:
            launched, out = self.find_on(mesh, constants, arrays, out, stream)
        elif type(out) in (list, tuple) and not self.several:  # the op raises the error
            return False, out
        else:
            launched, out = self.find(constants, arrays, out, stream)
        if launched is None or (type(launched) is Series and not launched.free):
            return False, out
        try:
            launched()
        except DriverError as error:
            raise of_kernel(error, self.op) from error
        return True, out

    def call(
        self,
        run: Callable[[], None],
        arrays: tuple,
        constants: Hashable,
        out: Any,
        infos: Sequence[ArrayInfo],
        count: int = 1,
        stream: Any = None,
    ) -> None:
        """Make a call on one GPU by `run`, and cache its launches.

        `infos` describe the arrays that are not None, followed by the `count` outputs, which the op
        allocated if `out` is None.
        """
        outs = as_tuple(out)
        given = [array for array in (*arrays, *outs) if array is not None]
        described = any(array is not info.owner for array, info in zip(given, infos, strict=False))
        if described or any(info.kind == "host" or not learn(info) for info in infos):
            run()
            return
        handle = follow(infos)() if stream is None else as_stream(stream)
        if driver.get().capturing(handle, infos[0].device):
            run()  # a graph may outlive the arrays that are passed on
            return
        passed = Passed(infos[0].kind, handle)
        with _order, collecting(passed):
            run()
        launches = [one for one in passed.launches if isinstance(one, Launch)]
        if not launches or len(launches) < len(passed.launches) or not passed.fits:
            return
        launched: Any = launches[0]
        if passed.memory or len(launches) > 1:
            launched = Series(launches, passed.memory)
        outputs = [info.owner for info in infos[-count:]]
        self.learn(constants, arrays, outputs, [infos], count if out is None else 0, launched)
