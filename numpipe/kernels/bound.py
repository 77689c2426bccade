"""`kernel.bind(…)`: a call that is made often. Its arguments are bound, its launch is prepared, and calling it does little else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import launch
from ..diagnostics.errors import LaunchError, NumpipeError, SpecError
from ..diagnostics.frames import brief, shorten
from ..launch.faults import DriverError, naming, of_kernel
from ..launch.launcher import Launch, bounded
from ..launch.marks import address_of
from ..launch.watch import WATCH
from .arguments import SCALAR, scalar_kind, scalar_value
from .calls import Asked, Calls

_STREAMS = 16
_WATCHED = WATCH.kernels


class Bound:
    """A call of a kernel with its arguments; calling it runs the kernel on them and returns what the call would.

    The arguments stay alive as long as it does. Outputs that the call left out were allocated once, by `bind`, and are returned,
    written anew, by each ``bound()``. ``bound.update(a=other)`` puts another array of the same shape, strides and type in the place
    of one, or another number in that of a scalar. On arrays of the GPU ``bound()`` costs little more than the driver's own launch,
    allocates nothing, waits for nothing and may be captured into a graph.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(grid=(2,), in_specs=block, out_specs=block, num_compute_wgs=1)
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> x, y = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
    >>> bound = double.bind(x, y)
    >>> bound()
    >>> float(y[0, 0])
    2.0
    """

    def __init__(self, kernel: Calls, asked: Asked, out: Any) -> None:
        self.kernel = kernel
        self._asked, self._out = asked, out
        self._names = kernel.array_names(asked.call)
        self._result = asked.result(out)

    def __repr__(self) -> str:
        return f"<numpipe bound {self.kernel.name}({', '.join(self._names)})>"

    @brief
    def __call__(self, stream: Any = None) -> Any:
        """Run it, on `stream`, else on the stream that the arrays' library is on now. Raises what the call of the kernel does."""
        with naming(self.kernel.name):
            self.kernel.run(self._asked, stream)
        return self._result

    @brief
    def update(self, **arguments: Any) -> None:
        """Replace arguments, by parameter name, outputs and scalars too.

        An array's successor has its shape, strides, type and device; anything else is a SpecError, and wants a `bind` of its own.
        Launches that are queued already keep theirs.
        """
        infos, values, results = list(self._asked.infos), list(self._asked.values), self._asked.results
        for name, value in arguments.items():
            if name in self._names:
                index = self._names.index(name)
                infos[index] = self._successor(name, infos[index], value)
                passed = len(infos) - (0 if results is None else len(results))
                if index >= passed:
                    results = [*results[:index - passed], value, *results[index - passed + 1:]]
            elif name in self._asked.plan.scalars:
                index = self._asked.plan.scalars.index(name)
                values[index] = self._number(name, value)
            else:
                known = [*self._names, *(scalar for scalar in self._asked.plan.scalars if not scalar.startswith("np__"))]
                raise SpecError(f"kernel {self.kernel.name}: a bound launch has no argument {name!r} to update; it has "
                                f"{', '.join(known)}, and what else the call depends on wants another bind")
        asked = self._asked._replace(infos=infos, values=values, results=results)
        with naming(self.kernel.name):
            self._prepare(asked)
        if results is not self._asked.results:
            self._out = None
            self._result = asked.result(None)
        self._asked = asked

    def _prepare(self, asked: Asked) -> None:
        """Make what `__call__` launches."""

    def _successor(self, name: str, old: launch.ArrayInfo, array: Any) -> launch.ArrayInfo:
        new = launch.describe(array, name, self.kernel.name)
        for what in ("dtype", "device", "shape", "strides"):
            had, has = getattr(old, what), getattr(new, what)
            if had != has:
                raise SpecError(f"kernel {self.kernel.name}: update of {name!r}: expected {what} {had}, as bound, got {has}; bind "
                                "another call for it")
        if launch.foreign([new]) and not launch.foreign([old]):
            raise SpecError(f"kernel {self.kernel.name}: update of {name!r}: the library of a {type(array).__name__} does not know "
                            f"the stream of this bound call; bind another one for it, or pass a {type(old.owner).__name__}")
        if self._names.index(name) >= len(self._names) - self._asked.plan.outputs:
            launch.check_writable(new, name, self.kernel.name)
        return new

    def _number(self, name: str, value: Any) -> Any:
        types = dict(zip(self._asked.plan.scalars, self._asked.plan.unit_key[1], strict=True))
        if not isinstance(value, SCALAR):
            raise SpecError(f"kernel {self.kernel.name}: update of {name!r}: it is a scalar ({types[name]}), got a "
                            f"{type(value).__name__}")
        if types[name].kind == "f" and scalar_kind(value) is int:
            value = float(value)
        return scalar_value(value, name, self.kernel.name)


class BoundOnGpu(Bound):
    """The same for arrays on the GPU: a launch for each stream that it was called on."""

    def __init__(self, kernel: Calls, asked: Asked, out: Any) -> None:
        super().__init__(kernel, asked, out)
        self._prepare(asked)

    def _prepare(self, asked: Asked) -> None:
        addresses: list[tuple[str, Callable[[], int]]] = []
        for name, info in zip(self._names, asked.infos, strict=True):
            where = address_of(info)
            if where is not None:
                addresses.append((name, where))
        current = launch.follow(asked.infos)
        handle = current()
        first = asked.plan.prepared.alone(asked.plan.grid, asked.infos, asked.values, handle)
        self._names_of = [name for name, _ in addresses]
        self._places = [(where, where()) for _, where in addresses]
        few: list[tuple[Callable[[], int], int]] = [*self._places, *[(int, 0)] * 3]  # int() is 0
        (self._where, self._at), (self._where1, self._at1), (self._where2, self._at2) = few[:3]
        self._more = self._places[3:]
        self._current, self._launches = current, {handle: first}
        self._first, self._stream, self._launcher, self._arguments = first, handle, first.launcher, first.arguments

    def __call__(self, stream: Any = None) -> Any:
        try:
            try:
                if self._where() != self._at or self._where1() != self._at1 or self._where2() != self._at2:  # a loop costs more
                    self._moved()
                for where, bound in self._more:
                    if where() != bound:
                        self._moved()
                if stream is None and self._current() == self._stream and not _WATCHED:
                    if code := self._launcher(*self._arguments)[0]:  # what the first of `_launches` does, without a call more
                        self._first.refused(code)
                else:
                    handle = self._current() if stream is None else launch.as_stream(stream)
                    (self._launches.get(handle) or self._on(handle))()
                return self._result
            except DriverError as error:
                raise of_kernel(error, self.kernel.name) from error
        except NumpipeError as error:
            shorten(error)
            raise

    def driver_arguments(self, stream: Any = None) -> tuple[Any, Any, int, int]:
        """What ``cuda.bindings.driver.cuLaunchKernelEx`` is called with: (CUlaunchConfig, kernel, address of the parameters, 0).

        They are good as long as the bound launch is, and until its `update`.
        """
        handle = self._current() if stream is None else launch.as_stream(stream)
        return (self._launches.get(handle) or self._on(handle)).arguments

    def _on(self, stream: int) -> Launch:
        """The launch on another stream."""
        asked = self._asked
        made: Launch = asked.plan.prepared.alone(asked.plan.grid, asked.infos, asked.values, stream)
        bounded(self._launches, stream, made, _STREAMS)
        return made

    def _moved(self) -> None:
        """Raise the error for an array whose data is no longer where it was bound."""
        for name, (where, bound) in zip(self._names_of, self._places, strict=True):
            now = where()
            if now != bound:
                happened = f"moved from {bound:#x} to {now:#x}" if now else f"was freed (it was at {bound:#x})"
                raise LaunchError(f"kernel {self.kernel.name}: argument {name!r} of this bound launch: its data {happened} since "
                                  f"it was bound; tell it with bound.update({name}=…), or bind again")


def bind(kernel: Calls, asked: Asked, out: Any) -> Bound:
    """The bound form of a call.

    Raises SpecError where its output would be a new JAX array: that is seen before it is written again.
    """
    if asked.fresh and launch.library(type(asked.infos[0].owner)) == "jax":
        raise SpecError(f"kernel {kernel.name}: a bound call writes the same output each time, and JAX arrays are immutable: pass "
                        "a PyTorch, CuPy or NumPy array as out=")
    on_gpu = asked.plan.prepared is not None and not asked.plan.empty and asked.infos[0].kind != "host"
    return (BoundOnGpu if on_gpu and not launch.foreign(asked.infos) else Bound)(kernel, asked, out)
