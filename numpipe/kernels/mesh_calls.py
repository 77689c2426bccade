"""Calls of kernels that run on several GPUs: one `Planned` call per GPU of the mesh, run together.

If one process has all GPUs, each array argument and each output is a list with one array per GPU,
while scalars and Statics apply to all. All GPUs have arrays of the same shapes, strides and types.
They therefore run the same variant on the same grid, and a kernel can address a peer's array like
its own. If each GPU has its own process, the ranks compare what they are about to launch, once per
kind of call (`Calls.agree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import launch
from ..diagnostics.argument_checks import told
from ..diagnostics.errors import SpecError
from ..launch.driver_errors import naming
from ..launch.mesh import Mesh, check_mesh
from ..launch.peer_access import Together, together
from ..launch.repeats import handles
from ..plan.specs import ArrayType
from .arguments import SCALAR
from .call_results import is_array
from .calls import Calls
from .definition import Definition
from .planned_calls import Planned, result, simulate
from .simulation_checks import Judge


class OnMesh:
    """The calls of one kernel on meshes."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.definition, self._repeats = calls, calls.definition, calls.repeats

    def run(
        self,
        mesh: Mesh,
        args: tuple,
        named: dict[str, Any],
        out: Any,
        target: str | None,
        stream: Any,
        judge: Judge | None = None,
    ) -> tuple[Any, Together | None]:
        """Run a call on all GPUs of a mesh. Return its outputs, each a list with one array per GPU,
        and the launches that repeat the call (None if the GPUs are simulated or there is nothing to
        launch)."""
        if target is None and self._repeats.any:
            constants = self.calls.constants(named) if named else None
            launches, out = self._repeats.find_on(mesh, constants, args, out, stream)
            if launches is not None:
                launches()
                return out, launches
        check_mesh(mesh, f"kernel {self.definition.name}")
        self.definition.check_mesh(mesh)
        self._check_target(mesh, target, stream)
        target = "sim" if mesh.gpus is None else target
        calls = [
            self.calls.resolve(*each, target, None, mesh, own)
            for own, each in enumerate(split(self.definition, mesh, args, named, out))
        ]
        check_alike(self.definition, calls)
        launches = None
        if calls[0].plan.empty:
            pass
        elif mesh.gpus is None:
            simulate(calls, judge)
        else:
            with naming(self.definition.name):
                launches = self._launch(mesh, calls, stream)
            if not calls[0].values:
                self.calls.learn(calls, named, launches, mesh)
        return result(calls, out, mesh.rank is None), launches

    def _check_target(self, mesh: Mesh, target: str | None, stream: Any) -> None:
        """Raise SpecError for a target or a stream that the mesh does not support."""
        kernel = f"kernel {self.definition.name}"
        if mesh.gpus is None:
            if target == "gpu":
                raise SpecError(
                    f"{kernel}: target='gpu' with {mesh!r}, whose GPUs are simulated: leave "
                    "target= out, or pass numpipe.Mesh.local() or numpipe.Mesh.torch()"
                )
            if stream is not None:
                raise SpecError(
                    f"{kernel}: stream= with {mesh!r}: simulated GPUs have no streams; leave it out"
                )
        elif target == "sim":
            raise SpecError(
                f"{kernel}: target='sim' with {mesh!r}: pass "
                f"mesh=numpipe.Mesh.simulated({mesh.size}), and lists of NumPy arrays"
            )

    def _launch(self, mesh: Mesh, calls: Sequence[Planned], stream: Any) -> Together:
        """Launch the calls of this process's GPUs."""
        first, kernel = calls[0], f"kernel {self.definition.name}"
        plan, gpus, controls = first.plan, mesh.gpus, mesh.controls
        assert gpus is not None and controls is not None and plan.prepared is not None
        if launch.COLLECTING.now is not None:
            raise SpecError(
                f"{kernel}: a JAX program can only hold kernels of one GPU, and this one runs on "
                f"{mesh!r}: call it outside of jax.jit"
            )
        streams = (
            tuple([launch.current_stream(call.infos) for call in calls])
            if stream is None
            else handles(stream)
        )
        if len(streams) != len(calls):
            raise SpecError(
                f"{kernel}: stream= with {mesh!r} must be a list of {len(calls)} streams, one per "
                f"GPU, got {told(stream)}"
            )
        arrays = [call.infos for call in calls]
        key = (
            plan.prepared,
            mesh,
            plan.grid,
            plan.semaphores,
            *streams,
            *[info[1:7] for infos in arrays for info in infos],
        )
        launches = self.calls.table.get(key)
        if launches is None or launches.stale:
            launches = self.calls.table.keep(
                key,
                together(
                    plan.prepared,
                    plan.grid,
                    gpus,
                    controls,
                    arrays,
                    plan.semaphores,
                    streams,
                    first.outputs,
                ),
            )
        for call, handle in zip(calls, streams, strict=True):
            if call.plan.foreign:
                launch.order(call.infos, handle, kernel)
        if first.values:
            launches.run(first.values)
        else:
            launches()
        for call, handle in zip(calls, streams, strict=True):
            if call.plan.foreign:
                launch.settle(call.infos, handle, call.fresh)
        return launches  # type: ignore[no-any-return]


def split(
    definition: Definition, mesh: Mesh, args: Sequence, named: dict[str, Any], out: Any
) -> list[tuple[tuple, dict[str, Any], Any]]:
    """Return the positional arguments, named arguments and ``out`` of each GPU of this process.
    Raises SpecError for an argument that is not a list of one array per GPU."""
    if mesh.rank is not None:
        return [(tuple(args), named, out)]

    def parts(value: Any, name: str) -> Sequence:
        """Return the argument of each GPU."""
        if isinstance(value, SCALAR):
            return [value] * mesh.size
        arrays = type(value) in (list, tuple) and all(map(is_array, value))
        if arrays and len(value) == mesh.size:
            return value  # type: ignore[no-any-return]
        got = (
            f"{len(value)} of them"
            if arrays
            else f"one of shape {tuple(value.shape)}"
            if is_array(value)
            else told(value)
        )
        raise SpecError(
            f"kernel {definition.name}: argument '{name}' with {mesh!r} must be a list of "
            f"{mesh.size} arrays, one for each GPU, got {got}"
        )

    names = definition.arguments.positional
    positional = [
        parts(value, names[number] if number < len(names) else f"number {number}")
        for number, value in enumerate(args)
    ]
    by_name = {
        name: parts(value, name) if name in definition.parameters else [value] * mesh.size
        for name, value in named.items()
    }
    outs: Sequence = [None] * mesh.size
    if out is not None:
        several = type(out) in (list, tuple) and any(type(each) in (list, tuple) for each in out)
        lists = (
            [parts(each, f"out[{number}]") for number, each in enumerate(out)]
            if several
            else [parts(out, "out")]
        )
        outs = list(zip(*lists, strict=True))
    return [
        (
            tuple(each[gpu] for each in positional),
            {name: each[gpu] for name, each in by_name.items()},
            outs[gpu],
        )
        for gpu in range(mesh.size)
    ]


def check_alike(definition: Definition, calls: Sequence[Planned]) -> None:
    """Raise SpecError unless the arrays of all GPUs have the same shapes, strides and types, so
    that all GPUs run the same variant on the same grid."""
    first = calls[0]
    plan = first.plan
    for gpu, call in enumerate(calls):
        for array, one, other in zip(plan.variant.arrays, first.infos, call.infos, strict=False):
            for what in ("shape", "dtype", "strides"):
                if (want := getattr(one, what)) != (got := getattr(other, what)):
                    raise SpecError(
                        f"kernel {definition.name}: argument '{array.name}' of GPU {gpu} has "
                        f"{what} {got}, but of GPU 0 {want}: pass arrays of the same shapes and "
                        "layouts on all GPUs of a mesh"
                    )
        if call.plan.variant is not plan.variant or call.plan.grid != plan.grid:
            reason = next(
                iter(call.plan.variant.obstacles.values()),
                f"grids {call.plan.grid} and {plan.grid}",
            )
            raise SpecError(
                f"kernel {definition.name}: GPU {gpu} needs different machine code or a different "
                f"grid than GPU 0: {reason}"
            )


def one_of(
    mesh: Mesh | None,
    definition: Definition,
    args: tuple,
    named: dict[str, Any],
    out: Any,
) -> tuple[tuple, dict[str, Any], Any]:
    """Return the arguments of the first GPU, for a call that is not run. A single array or an
    ArrayType can be passed in place of a list for all GPUs."""
    if mesh is None:
        return args, named, out
    check_mesh(mesh, f"kernel {definition.name}")
    given = [*args, *(value for name, value in named.items() if name in definition.parameters)]
    single = (isinstance(value, (ArrayType, *SCALAR)) or is_array(value) for value in given)
    if mesh.rank is None and not all(single):
        return split(definition, mesh, args, named, out)[0]
    return args, named, out
