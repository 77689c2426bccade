"""`kernel.bind(…)`: prepare a call once and launch it many times."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import launch
from ..diagnostics.errors import LaunchError, NumpipeError, SpecError
from ..diagnostics.frames import brief, shorten
from ..launch.debug_reports import WATCH
from ..launch.driver_errors import DriverError, naming, of_kernel
from ..launch.launcher import Launch
from ..launch.repeats import address_of
from ..launch.table import Table
from .arguments import SCALAR, scalar_kind, scalar_value
from .planned_calls import Planned, result

_WATCHED = WATCH.kernels


class BoundCall:
    """A call of a kernel with its arguments; calling it runs the kernel on them and returns what
    the call would return.

    It keeps its arguments alive. `bind` allocates the outputs that the call leaves out once; each
    ``bound()`` overwrites and returns them. ``bound.update(a=other)`` replaces an array by one of
    the same shape, strides and type, or a scalar by another number. On GPU arrays ``bound()`` costs
    little more than the driver's own launch, allocates nothing, never waits, and can be captured
    into a graph.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(grid=(2,), in_specs=block, out_specs=block)
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> x, y = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
    >>> bound = double.bind(x, y)
    >>> bound()
    >>> float(y[0, 0])
    2.0
    """

    def __init__(self, call: Planned, out: Any) -> None:
        self.name = call.kernel
        self._planned = call
        self._names = [array.name for array in call.plan.variant.arrays if not array.own]
        self._result = result((call,), out)
        self._prepare(call)

    def __repr__(self) -> str:
        return f"<numpipe bound {self.name}({', '.join(self._names)})>"

    @brief
    def __call__(self, stream: Any = None) -> Any:
        """Run the call on `stream`, or on the current stream of the arrays' library if it is None.
        Raises what a call of the kernel raises."""
        with naming(self.name):
            self._planned.run(stream)
        return self._result

    @brief
    def update(self, **arguments: Any) -> None:
        """Replace arguments, including outputs and scalars, by parameter name.

        A new array must have the shape, strides, type and device of the old one; otherwise
        SpecError is raised, and another `bind` is needed. Launches that are already queued use the
        old arguments.
        """
        call, before = self._planned.described, self._planned
        infos, values, scalars = [*before.infos], [*before.values], [*call.numbers]
        results = before.results
        for name, value in arguments.items():
            if name in self._names:
                index = self._names.index(name)
                infos[index] = self._successor(name, infos[index], value)
                if name in call.missing:
                    results = list(results)
                    results[call.missing.index(name)] = value
            elif name in scalars:
                index = scalars.index(name)
                values[index] = self._number(name, before.plan.variant.scalars[index], value)
            else:
                known = [
                    *self._names,
                    *(scalar for scalar in scalars if not scalar.startswith("np__")),
                ]
                raise SpecError(
                    f"kernel {self.name}: a bound call has no argument {name!r} to update; it has "
                    f"{', '.join(known)}. To change anything else, bind another call"
                )
        after = before._replace(infos=infos, values=values, results=results)
        with naming(self.name):
            self._prepare(after)
        if results is not before.results:
            self._result = result((after,), None)
        self._planned = after

    def _prepare(self, call: Planned) -> None:
        """Prepare the launch of a call. Simulated calls need no preparation."""

    def _successor(self, name: str, old: launch.ArrayInfo, array: Any) -> launch.ArrayInfo:
        new = launch.describe(array, name, self.name)
        for what in ("dtype", "device", "shape", "strides"):
            had, has = getattr(old, what), getattr(new, what)
            if had != has:
                raise SpecError(
                    f"kernel {self.name}: update of {name!r}: expected {what} {had}, as bound, "
                    f"got {has}; bind another call for this array"
                )
        if launch.foreign([new]) and not launch.foreign([old]):
            raise SpecError(
                f"kernel {self.name}: update of {name!r}: the library of a {type(array).__name__} "
                "does not know the stream of this bound call; bind another call for it, or pass a "
                f"{type(old.owner).__name__}"
            )
        if name in self._names[len(self._names) - self._planned.plan.variant.outputs :]:
            launch.check_writable(new, name, self.name)
        return new

    def _number(self, name: str, kind: np.dtype, value: Any) -> Any:
        if not isinstance(value, SCALAR):
            raise SpecError(
                f"kernel {self.name}: update of {name!r}: expected a scalar ({kind}), got a "
                f"{type(value).__name__}"
            )
        if kind.kind == "f" and scalar_kind(value) is int:
            value = float(value)
        return scalar_value(value, name, self.name)


class BoundOnGpu(BoundCall):
    """A bound call on GPU arrays, with a prepared launch per stream."""

    def _prepare(self, call: Planned) -> None:
        current, launches = launch.follow(call.infos), Table()
        handle = current()
        first = launches.keep(handle, call.alone(handle))
        self._places = [
            (where, where(), name)
            for name, info in zip(self._names, call.infos, strict=True)
            if (where := address_of(info))
        ]
        """(function that returns an array's current address, its address when bound, its name)"""
        self._current, self._launches, self._stream = current, launches, handle
        self._first, self._launcher, self._arguments = first, first.launcher, first.arguments

    def __call__(self, stream: Any = None) -> Any:
        try:
            try:
                for where, bound, name in self._places:
                    if (now := where()) != bound:
                        self._moved(name, bound, now)
                if stream is None and self._current() == self._stream and not _WATCHED:
                    # calls the launcher directly, which saves the call of `Launch.__call__`
                    if code := self._launcher(*self._arguments)[0]:
                        self._first.refused(code)
                else:
                    self._now(stream)()
                return self._result
            except DriverError as error:
                raise of_kernel(error, self.name) from error
        except NumpipeError as error:
            shorten(error)
            raise

    def driver_arguments(self, stream: Any = None) -> tuple[Any, Any, int, int]:
        """Return the arguments of ``cuda.bindings.driver.cuLaunchKernelEx``: (CUlaunchConfig,
        kernel, address of the parameters, 0).

        They are valid as long as the bound call exists and is not updated.
        """
        return self._now(stream).arguments

    def _now(self, stream: Any) -> Launch:
        """Return the prepared launch for a stream, or for the current stream if None."""
        handle = self._current() if stream is None else launch.as_stream(stream)
        return self._launches.get(handle) or self._launches.keep(  # type: ignore[no-any-return]
            handle, self._planned.alone(handle)
        )

    def _moved(self, name: str, bound: int, now: int) -> None:
        """Raise LaunchError for an array whose data has moved since it was bound."""
        happened = (
            f"moved from {bound:#x} to {now:#x}" if now else f"was freed (it was at {bound:#x})"
        )
        raise LaunchError(
            f"kernel {self.name}: the data of argument {name!r} of this bound call "
            f"{happened} since it was bound: call bound.update({name}=…), or bind again"
        )


def bind(call: Planned, out: Any) -> BoundCall:
    """Return the bound form of a call.

    Raises SpecError if its output would be a new JAX array, which is immutable but would be
    overwritten by the next call."""
    if call.fresh and launch.library(type(call.infos[0].owner)) == "jax":
        raise SpecError(
            f"kernel {call.kernel}: a bound call writes the same output each time, and "
            "JAX arrays are immutable: pass a PyTorch, CuPy or NumPy array as out="
        )
    on_gpu = call.plan.prepared is not None and call.infos[0].kind != "host"
    kind = BoundOnGpu if on_gpu and not call.plan.foreign else BoundCall
    return kind(call, out)
