"""`Kernel`: the object that `@numpipe.kernel` makes of a function, with all that one does with it.

A kernel has a definition, calls (`calls`), repeated calls (`launch.repeats`), and a table in which
both keep their results. A call is bound, described, planned and run (`call_records`). A call on
device arrays that was made before is launched again: a few dictionary look-ups and one driver call.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..compile.built import Built, check_inspect
from ..diagnostics.argument_checks import a, require
from ..diagnostics.errors import NumpipeError, SpecError
from ..diagnostics.frames import brief, shorten
from ..launch.array_info import ArrayInfo
from ..launch.driver_errors import DriverError, naming, of_kernel
from ..launch.mesh import Mesh
from ..launch.peer_access import Together
from ..launch.table import Table
from . import noted_calls
from .arguments import SCALAR
from .bound_calls import BoundCall, bind
from .call_records import Described
from .calls import Calls
from .definition import Definition
from .mesh_calls import OnMesh, one_of
from .options import Options
from .planned_calls import result
from .simulation_checks import Judge
from .variants import Variant

__all__ = ["Kernel"]


def check_kernel(what: str, kernel: Any) -> None:
    """Raise SpecError for what is no kernel."""
    require(what, locals(), kernel=a(Kernel, text="a kernel, as @numpipe.kernel makes it"))


class Kernel:
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        # first: what a function has in its __dict__ hides nothing of the kernel's
        functools.update_wrapper(self, function)
        self.function = function
        self._begin(Definition(function, options))

    def _begin(self, definition: Definition, variant: Callable[..., Variant] = Variant) -> None:
        """Take a definition; `variant` makes the variants of the kernel."""
        self.definition, self.name, self.options = definition, definition.name, definition.options
        self.parameters, self.statics = definition.parameters, definition.statics
        self._table = Table()
        self._calls = Calls(definition, self._table, variant)
        self._repeats = self._calls.repeats
        self._on_mesh = OnMesh(self._calls)

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)})>"

    def __reduce__(self) -> str:
        """Pickle a kernel as a function is: by its name, by which other processes import it."""
        return self.function.__qualname__

    # ---- calls
    def __getitem__(self, launch: Any) -> NoReturn:
        """Raise SpecError: kernels are not launched like this here."""
        raise SpecError(
            f"kernel {self.name}: {self.name}[…](…) is how numba.cuda launches; call "
            f"{self.name}(…): the grid and the warpgroups are said once, @numpipe.kernel(grid=…, "
            "num_compute_wgs=…), a stream is passed as stream="
        )

    __iter__ = None  # without it Python would iterate by __getitem__

    def __call__(
        self,
        /,
        *args: Any,
        out: Any = None,
        target: str | None = None,
        stream: Any = None,
        mesh: Any = None,
        **named: Any,
    ) -> Any:
        """Run the kernel; returns the outputs it allocated (or `out`). With a `mesh` it runs on
        each of its GPUs."""
        try:
            try:
                if mesh is not None:
                    return self._on_mesh.run(mesh, args, named, out, target, stream)[0]
                if target is None and self._repeats.any:
                    constants = self._calls.constants(named) if named else None
                    launched, out = self._repeats.find(constants, args, out, stream)
                    if launched is not None:
                        launched()
                        return out
                return self._run(args, named, out, target, stream)
            except DriverError as error:
                raise of_kernel(error, self.name) from error
        except NumpipeError as error:
            shorten(error)  # NUMPIPE_TRACEBACK=full shows the frames below
            raise

    @brief
    def together(self, mesh: Mesh, args: Sequence[Any], stream: Any = None) -> Together | None:
        """Run the kernel on a mesh; returns the launches that make the call again, None where GPUs
        are simulated."""
        if (notes := noted_calls.taken()) is not None:
            notes.calls.append(noted_calls.Noted(self, tuple(args), {"mesh": mesh}, None))
            return None
        return self._on_mesh.run(mesh, tuple(args), {}, None, None, stream)[1]

    @brief
    def bind(
        self,
        /,
        *args: Any,
        out: Any = None,
        target: str | None = None,
        mesh: Any = None,
        **named: Any,
    ) -> BoundCall:
        """Prepare a call that is made often: ``bound()`` launches it, see `BoundCall`. SpecError
        for a kernel of several GPUs."""
        if mesh is not None or self.options.semaphores is not None:
            raise SpecError(
                f"kernel {self.name}: bind is for kernels of one GPU: call it with mesh=, a call "
                "that was made before is a few look-ups"
            )
        with naming(self.name):
            return bind(self._calls.resolve(args, named, out, target, None), out)

    @brief
    def simulate(
        self,
        /,
        *args: Any,
        seed: int | str | None = None,
        trace: Any = None,
        ctas: int | None = None,
        limit: float | None = None,
        out: Any = None,
        mesh: Any = None,
        **named: Any,
    ) -> Any:
        """Run on the simulated SM: `seed` picks a random legal schedule (None: the virtual-time
        order); a text is the name of one that `numpipe.verify` has found.

        `trace` is a numpipe.Trace that collects events, or the name of a file for them,
        ``run.json`` (for ui.perfetto.dev) or ``run.txt``, which is written also when the run ends
        in a race or a deadlock. `ctas` is the number of CTAs of a `persistent` grid, which has 2
        otherwise; SpecError for another grid. `limit` is the number of seconds that the run may
        take, an hour if None: SpecError as soon as the first CTA's control flow, or the CTAs that
        have run, say that all of them take longer. `mesh` is a `numpipe.Mesh.simulated`, on whose
        GPUs a kernel with semaphores runs.
        """
        from ..traces.trace import collecting

        if ctas is not None and self.takes("ctas"):  # a parameter of the kernel's own
            named["ctas"], ctas = ctas, None
        if limit is not None and self.takes("limit"):
            named["limit"], limit = limit, None
        with collecting(trace) as events:
            return self.judged(
                Judge(ctas, limit=limit),
                *args,
                out=out,
                seed=seed,
                trace=events,
                mesh=mesh,
                **named,
            )

    def judged(
        self,
        judge: Judge,
        /,
        *args: Any,
        out: Any = None,
        seed: Any = None,
        trace: Any = None,
        mesh: Any = None,
        **named: Any,
    ) -> Any:
        """Run on the simulated SM, for a judge; `trace` is a Trace."""
        if mesh is not None:
            return self._on_mesh.run(mesh, args, named, out, "sim", None, seed, trace, judge)[0]
        return self._run(args, named, out, "sim", None, seed, trace, judge)

    def _run(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        out: Any,
        target: str | None,
        stream: Any,
        seed: Any = None,
        trace: Any = None,
        judge: Judge | None = None,
    ) -> Any:
        """Make a call that was not made before."""
        if (notes := noted_calls.taken()) is not None:
            notes.calls.append(noted_calls.Noted(self, args, named, out))
            return out
        call = self._calls.resolve(args, named, out, target, stream)
        launched = call.run(stream, seed, trace, judge)
        if launched is not None and len(call.values) == len(self.definition.own_names):
            if call.values:  # they follow from the arrays' shapes
                launched = call.alone(launched.stream)
            # ops, which pass descriptions, keep their own calls
            if ArrayInfo not in map(type, call.described.bound.arguments.values()):
                self._calls.learn((call,), named, launched)
        return result((call,), out)

    # ---- inspection
    @brief
    def compiled(self, /, *args: Any, out: Any = None, mesh: Any = None, **named: Any) -> Built:
        """Return the compiled kernel for arguments of these types, with what the compiler made on
        the way; an ArrayType may stand for an array. Of a `mesh` only the size counts. Needs no
        GPU."""
        return self.variant(args, named, out, mesh=mesh).built

    @brief
    def inspect(
        self, what: str, /, *args: Any, out: Any = None, mesh: Any = None, **named: Any
    ) -> Any:
        """Return the kernel compiled for these arguments, for people to read; an ArrayType may
        stand for an array. Of a `mesh` only the size counts. Needs no GPU.

        "ptx", "sass", "llvm"   its code, as text ("sass" needs nvdisasm)
        "source"                the rewritten kernel function, which both executions run
        "resources"             a `Resources`: registers, spills, shared memory and what it is for,
                                barriers, tensor maps, bytes of machine code, seconds of the
                                compile; print it for a table
        "gate"                  what the build gate finds wrong with the machine code: empty when it
                                passes

        Raises SpecError for another word, TargetError where a tool is missing, and the compile's
        errors. The Numba kernel underneath is ``kernel.compiled(*args).kernel``.

        >>> print(matmul.inspect("resources", a, b))
        """
        check_inspect(what, self.name)
        return self.variant(args, named, out, mesh=mesh).shown(what)

    @brief
    def export(
        self,
        path: str | os.PathLike[str],
        /,
        *signatures: Any,
        choose: Callable[..., Any] | None = None,
    ) -> None:
        """Compile the kernel for these signatures, and write it to a file, of which `numpipe.load`
        makes the same callable.

        There it needs neither the kernel's source nor Numba nor a compiler.

        signatures  each a tuple of a call's positional arguments, arrays or ArrayTypes, or such a
                    tuple and a dictionary of its named ones, Statics and ``out`` among them; shapes
                    and scalars of calls may be others
        choose      function of arrays and scalars (by parameter name) that returns Statics as a
                    dictionary, for calls that pass none. Each signature that passes none is
                    compiled with the Statics that `choose` returns for its shapes, so give one for
                    each choice. Without it such calls have the defaults

        The file holds machine code, the rules for arguments, the options of launches, the source of
        grid, out_type, workspace and `choose` with what they captured as constants, and versions.
        It is replaced in one step. Raises SpecError for a function or a Static that a file cannot
        hold, FileNotFoundError for a folder that is missing, and what a compile raises.

        >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
        >>> @numpipe.kernel(
        ...     grid=lambda x: (x.shape[0] // 64,),
        ...     in_specs=block,
        ...     out_specs=block,
        ... )
        ... def double(x, y):
        ...     y[...] = x[...] + x[...]
        >>> x, y = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
        >>> double.export("double.numpipe", (x, y))
        >>> numpipe.load("double.numpipe")
        <numpipe kernel double(x, y) of double.numpipe>
        """
        from .exporting import export

        export(self._calls, path, signatures, choose)

    def described(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        out: Any = None,
        *,
        mesh: Any = None,
        whole: bool = False,
    ) -> Described:
        """Describe a call with these arguments that is not run, as `Calls.described` does."""
        args, named, out = one_of(mesh, self.definition, args, named, out)
        return self._calls.described(args, named, out, whole=whole, mesh=mesh)

    def variant(self, *call: Any, **options: Any) -> Variant:
        """Return the variant that a call needs which is not run; arguments as for
        `Kernel.described`."""
        return self._calls.variant(self.described(*call, **options))

    # ---- its parameters
    def takes(self, name: str) -> bool:
        """Whether a parameter has this name."""
        return (
            name in self.parameters
            or name in self.statics
            or name in self.definition.arguments.scalars
        )

    def outputs(self, /, *args: Any, **named: Any) -> list[str]:
        """Return the parameters that a call with these arguments returns or stores to."""
        bound = self.definition.arguments.bind(args, named)
        outputs = self.parameters[self.definition.first_output :]
        return [
            name
            for name in self.parameters
            if name not in bound.arguments
            or (name in outputs and not isinstance(bound.arguments[name], SCALAR))
        ]

    def ask(
        self,
        function: Callable[..., Any],
        what: str,
        view: Callable[[ArrayInfo], Any],
        /,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Call a function with those arguments of a call that its parameters name; it gets arrays
        as `view` shows them."""
        bound = self.definition.arguments.bind(args, named)
        return self.definition.results.ask(function, what, self.definition.known(bound, view))
