"""A kernel: a function, its options, and what one does with the kernel that they make.

A call binds its arguments, allocates outputs, finds (or makes) the plan for these shapes and types, and runs it (`calls`): on the
GPU through the launcher, in CPython on the simulated SM (`variants`). Calls on device arrays that were made before are launched
again (`repeats`): a few dictionary look-ups and one driver call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from ..compile.built import Built, check_inspect
from ..diagnostics.errors import NumpipeError, SpecError
from ..diagnostics.frames import brief, shorten
from ..launch.faults import DriverError, naming, of_kernel
from .bound import Bound, bind
from .calls import Calls
from .options import Options
from .repeats import MISS, Repeats

__all__ = ["Kernel"]


class Kernel(Calls):
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)  # first: what a function has in its __dict__ hides nothing of the kernel's
        super().__init__(function, options)
        self._repeats = Repeats(self._arguments, self._call)

    # ---- calls
    def __getitem__(self, launch: Any) -> NoReturn:
        """Not how a kernel is launched here: SpecError."""
        raise SpecError(f"kernel {self.name}: {self.name}[…](…) is how numba.cuda launches; call {self.name}(…): the grid and the "
                        "warpgroups are said once, @numpipe.kernel(grid=…, num_compute_wgs=…), a stream is passed as stream=")

    __iter__ = None  # without it Python would iterate by __getitem__

    def __call__(self, /, *args: Any, out: Any = None, target: str | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the kernel; returns the outputs it allocated (or `out`)."""
        try:
            try:
                if target is None:
                    result = self._repeats(args, named, out, stream)
                    if result is not MISS:
                        return result
                return self._call(args, named, out, target, stream)
            except DriverError as error:
                raise of_kernel(error, self.name) from error
        except NumpipeError as error:
            shorten(error)  # NUMPIPE_TRACEBACK=full shows the frames below
            raise

    @brief
    def bind(self, /, *args: Any, out: Any = None, target: str | None = None, **named: Any) -> Bound:
        """A call to be made often, with all that it needs prepared: ``bound()`` launches it, see `Bound`."""
        with naming(self.name):
            return bind(self, self.resolve(args, named, out, target, None), out)

    @brief
    def simulate(self, /, *args: Any, seed: int | None = None, trace: Any = None, out: Any = None, **named: Any) -> Any:
        """Run on the simulated SM: `seed` picks a random legal schedule (None: the virtual-time order).

        `trace` is a numpipe.Trace that collects events, or the name of a file for them, ``run.json`` (for ui.perfetto.dev) or
        ``run.txt``, which is written also when the run ends in a race or a deadlock.
        """
        from ..traces.trace import collecting

        with collecting(trace) as events:
            return self._call(args, named, out, "sim", None, seed, events, judged=True)

    def _call(self, given: tuple[Any, ...], named: dict[str, Any], out: Any, target: str | None, stream: Any,
              seed: int | None = None, trace: Any = None, judged: bool = False) -> Any:
        asked = self.resolve(given, named, out, target, stream)
        launched = self.run(asked, stream, seed, trace, judged)
        if launched is not None and len(asked.values) == self._own_scalars:
            plan, made = asked.plan, asked.infos[len(asked.infos) - asked.fresh:]
            if asked.values:  # they follow from the arrays' shapes
                launched = plan.prepared.alone(plan.grid, asked.infos, asked.values, launched.stream)
            self._repeats.learn(asked.call, named, asked.infos, made, launched)
        return asked.result(out)

    # ---- inspection
    @brief
    def compiled(self, /, *args: Any, out: Any = None, **named: Any) -> Built:
        """The compiled kernel for arguments of these types, with what the compiler made on the way; an ArrayType may stand for an
        array. Needs no GPU."""
        asked = self.described(args, named, out)
        return self.built(asked.unit_key, asked.obstacles)

    @brief
    def inspect(self, what: str, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """The kernel compiled for these arguments, for people to read; an ArrayType may stand for an array. Needs no GPU.

        "ptx", "sass", "llvm"   its code, as text ("sass" needs nvdisasm)
        "source"                the rewritten kernel function, which both executions run
        "resources"             a `Resources`: registers, spills, shared memory and what it is for, barriers, tensor maps, bytes of
                                machine code, seconds of the compile; print it for a table
        "gate"                  what the build gate finds wrong with the machine code: empty when it passes

        Raises SpecError for another word, TargetError where a tool is missing, and what compiling raises. The Numba kernel
        underneath is ``kernel.compiled(*args).kernel``.

        >>> print(matmul.inspect("resources", a, b))
        """
        check_inspect(what, self.name)
        asked = self.described(args, named, out)
        return self.shown(what, asked.unit_key, asked.obstacles)
