"""`Kernel`, the object that `@numpipe.kernel` returns.

A kernel has a definition, calls (`calls`), repeated calls (`launch.repeats`), and a table in which
both cache their results. A call is bound, described, planned and run (see `call_records`). A
repeated call on the same device arrays reuses its launch, which takes a few dictionary look-ups and
one driver call.
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
    """Raise SpecError if `kernel` is not a `Kernel`."""
    require(what, locals(), kernel=a(Kernel, text="a kernel, as @numpipe.kernel makes it"))


class Kernel:
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable, options: Options) -> None:
        # first, so that an entry of the function's __dict__ does not overwrite an attribute of the
        # kernel
        functools.update_wrapper(self, function)
        self.function = function
        self._begin(Definition(function, options))

    def _begin(self, definition: Definition, variant: Callable[..., Variant] = Variant) -> None:
        """Initialize the kernel from a definition; `variant` is called to create its variants."""
        self.definition, self.name, self.options = definition, definition.name, definition.options
        self.parameters, self.statics = definition.parameters, definition.statics
        self._table = Table()
        self._calls = Calls(definition, self._table, variant)
        self._repeats = self._calls.repeats
        self._on_mesh = OnMesh(self._calls)

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)})>"

    def __reduce__(self) -> str:
        """Pickle the kernel by its qualified name, as Python pickles functions."""
        return self.function.__qualname__

    # ---- calls
    def __getitem__(self, launch: Any) -> NoReturn:
        """Raise SpecError: kernels are not launched by subscription."""
        raise SpecError(
            f"kernel {self.name}: {self.name}[…](…) is numba.cuda's launch syntax. Call "
            f"{self.name}(…) instead: set the grid and the warpgroups once, in "
            "@numpipe.kernel(grid=…, num_compute_wgs=…), and pass a stream as stream="
        )

    __iter__ = None  # otherwise Python would try to iterate by __getitem__

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
        """Run the kernel and return the outputs that it allocated (or `out`). With a `mesh`, run it
        on each GPU of the mesh."""
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
            shorten(error)  # NUMPIPE_TRACEBACK=full keeps the internal frames
            raise

    @brief
    def together(self, mesh: Mesh, args: Sequence, stream: Any = None) -> Together | None:
        """Run the kernel on a mesh. Return the launches that repeat the call, or None if the GPUs
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
        """Prepare a call that is repeated often: ``bound()`` launches it (see `BoundCall`).

        Raises SpecError for a kernel of several GPUs.
        """
        if mesh is not None or self.options.semaphores is not None:
            raise SpecError(
                f"kernel {self.name}: bind is only for kernels of one GPU: call the kernel with "
                "mesh= instead; a repeated call takes only a few look-ups"
            )
        with naming(self.name):
            return bind(self._calls.resolve(args, named, out, target, None), out)

    @brief
    def simulate(
        self,
        /,
        *args: Any,
        seed: int | str | None = None,
        schedule_seed: int | str | None = None,
        trace: Any = None,
        ctas: int | None = None,
        limit: float | None = None,
        out: Any = None,
        mesh: Any = None,
        **named: Any,
    ) -> Any:
        """Run the kernel on the simulated SM.

        seed   int: run in a random legal schedule; None: run in virtual-time order; str: the name
               of a schedule that `numpipe.verify` found
        schedule_seed
               the same as `seed`, for a kernel that has a parameter `seed`, which then gets `seed`
        trace  a numpipe.Trace that collects events, or the name of a file to write them to,
               ``run.html`` (a page), ``run.json`` (for ui.perfetto.dev) or ``run.txt``, which is
               also written if the run ends in a race or a deadlock
        ctas   number of CTAs of a `persistent` grid (default: 2)
        limit  seconds that the run may take (default: one hour). SpecError is raised as soon as the
               control flow of the first CTA, or the time that finished CTAs took, shows that the
               whole grid would take longer
        mesh   a `numpipe.Mesh.simulated`, on whose GPUs a kernel with semaphores runs

        Raises SpecError for `ctas` if the grid is not `persistent`.
        """
        from ..traces.trace import collecting

        if ctas is not None and self.takes("ctas"):  # the kernel's own parameter
            named["ctas"], ctas = ctas, None
        if limit is not None and self.takes("limit"):
            named["limit"], limit = limit, None
        if seed is not None and self.takes("seed"):
            named["seed"] = seed
        elif seed is not None:
            schedule_seed = seed
        with collecting(trace) as events:
            judge = Judge(ctas, limit=limit, seed=schedule_seed, trace=events)
            return self.judged(judge, *args, out=out, mesh=mesh, **named)

    def judged(
        self,
        judge: Judge,
        /,
        *args: Any,
        out: Any = None,
        mesh: Any = None,
        **named: Any,
    ) -> Any:
        """Run on the simulated SM as `judge` says, under its checks."""
        if mesh is not None:
            return self._on_mesh.run(mesh, args, named, out, "sim", None, judge)[0]
        return self._run(args, named, out, "sim", None, judge)

    def _run(
        self,
        args: tuple,
        named: dict[str, Any],
        out: Any,
        target: str | None,
        stream: Any,
        judge: Judge | None = None,
    ) -> Any:
        """Run a call for which no launch is cached."""
        if (notes := noted_calls.taken()) is not None:
            notes.calls.append(noted_calls.Noted(self, args, named, out))
            return out
        call = self._calls.resolve(args, named, out, target, stream)
        launched = call.run(stream, judge)
        if launched is not None and len(call.values) == len(self.definition.own_names):
            if call.values:  # they are computed from the arrays' shapes
                launched = call.alone(launched.stream)
            # ops, which pass descriptions, cache their own calls
            if ArrayInfo not in map(type, call.described.bound.arguments.values()):
                self._calls.learn((call,), named, launched)
        return result((call,), out)

    # ---- inspection
    @brief
    def compiled(self, /, *args: Any, out: Any = None, mesh: Any = None, **named: Any) -> Built:
        """Return the compiled kernel for arguments of these types, with the compiler's intermediate
        results.

        An ArrayType can be passed in place of an array. Only the size of a `mesh` matters. Needs no
        GPU.
        """
        return self.variant(args, named, out, mesh=mesh).built

    @brief
    def inspect(
        self, what: str, /, *args: Any, out: Any = None, mesh: Any = None, **named: Any
    ) -> Any:
        """Return a readable view of the kernel compiled for these arguments.

        An ArrayType can be passed in place of an array. Only the size of a `mesh` matters. Needs no
        GPU.

        "ptx", "sass", "llvm"   its code, as text ("sass" needs nvdisasm)
        "source"                the rewritten kernel function, which the GPU and the simulation run
        "resources"             a `Resources`: registers, spills, shared memory by purpose,
                                barriers, tensor maps, bytes of machine code, seconds of the
                                compile; print it for a table
        "gate"                  the build gate's findings about the machine code; empty if it passes

        Raises SpecError for any other word, TargetError if a tool is missing, and the errors of the
        compile. The underlying Numba kernel is ``kernel.compiled(*args).kernel``.

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
        choose: Callable | None = None,
    ) -> None:
        """Compile the kernel for the given signatures and write it to a file for `numpipe.load`.

        The loaded kernel is called in the same way. It needs neither the kernel's source nor Numba
        nor a compiler.

        signatures  each a tuple of a call's positional arguments, arrays or ArrayTypes, or a pair
                    of such a tuple and a dictionary of named arguments, including Statics and
                    ``out``. Later calls may use other shapes and scalars
        choose      function of arrays and scalars (by parameter name) that returns Statics as a
                    dictionary, for calls that pass none. Each signature without Statics is compiled
                    with those that `choose` returns for its shapes, so give one signature per
                    choice. Without `choose` such calls use the defaults

        The file holds machine code, the rules for arguments, the launch options, the source of
        grid, out_type, workspace and `choose` with captured values as constants, and versions. An
        existing file is replaced atomically. Raises SpecError for a function or a Static that a
        file cannot hold, FileNotFoundError for a missing folder, and the errors of a compile.

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
        args: tuple,
        named: dict[str, Any],
        out: Any = None,
        *,
        mesh: Any = None,
        whole: bool = False,
    ) -> Described:
        """Describe a call with these arguments without running it (see `Calls.described`)."""
        args, named, out = one_of(mesh, self.definition, args, named, out)
        return self._calls.described(args, named, out, whole=whole, mesh=mesh)

    def variant(self, *call: Any, **options: Any) -> Variant:
        """Return the variant that a call would need, without running it; arguments as for
        `Kernel.described`."""
        return self._calls.variant(self.described(*call, **options))

    # ---- its parameters
    def takes(self, name: str) -> bool:
        """Return whether the kernel has a parameter with this name."""
        return name in (*self.parameters, *self.statics, *self.definition.arguments.scalars)

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
        function: Callable,
        what: str,
        view: Callable[[ArrayInfo], Any],
        /,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Call `function` with the arguments of a call that its parameters name, with arrays
        converted by `view`."""
        bound = self.definition.arguments.bind(args, named)
        return self.definition.results.ask(function, what, self.definition.known(bound, view))
