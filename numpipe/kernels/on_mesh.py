"""Calls of kernels of several GPUs: each GPU of the mesh gets a `Call` of its own, and all of them run at once.

Where one process has all GPUs an array argument is a list of arrays, one for each GPU, and so are outputs; scalars and Statics are
one for all. Every GPU has arrays of the same shapes and types, so that all of them run one variant on one grid, and a kernel may
take a peer's array for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import launch
from ..diagnostics.arguments import told
from ..diagnostics.errors import SpecError
from ..launch.mesh import Mesh, check_mesh
from ..plan.specs import ArrayType
from . import targets
from .arguments import SCALAR, Call
from .calls import Calls
from .definition import Definition
from .judge import Judge
from .results import is_array


class OnMesh:
    """The calls of one kernel on the GPUs of meshes."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.definition = calls, calls.definition

    def run(self, mesh: Mesh, args: tuple[Any, ...], named: dict[str, Any], out: Any, target: str | None, stream: Any,
            seed: Any = None, trace: Any = None, judge: Judge | None = None) -> Any:
        """Make a call on all GPUs of a mesh; returns its outputs, each a list of the GPUs' arrays."""
        check_mesh(mesh, self.definition.name)
        self.definition.check_mesh(mesh.size)
        kernel = f"kernel {self.definition.name}"
        if mesh.where == "simulated":
            if target == "gpu":
                raise SpecError(f"{kernel}: target='gpu' with {mesh!r}: its GPUs are simulated; leave target= out, or pass "
                                "numpipe.Mesh.local() or numpipe.Mesh.torch()")
            if stream is not None:
                raise SpecError(f"{kernel}: stream= with {mesh!r}: simulated GPUs have no streams; leave it out")
            target = "sim"
        calls = [self.calls.resolve(*each, target, stream, mesh.size) for each in split(self.definition, mesh, args, named, out)]
        check_alike(self.definition, calls)
        self._simulate(calls, seed, trace, judge)
        return results(calls, out)

    def _simulate(self, calls: Sequence[Call], seed: Any, trace: Any, judge: Judge | None) -> None:
        """Run the calls of all GPUs on the simulated SM."""
        plan = calls[0].plan
        if plan.empty:
            return
        for call in calls:
            self.calls.begin_simulated(call, judge)
        grid = plan.grid if judge is None or judge.ctas is None else targets.on(self.definition, judge.ctas)
        plan.variant.simulate(calls, grid, seed, trace, judge)


def split(definition: Definition, mesh: Mesh, args: Sequence[Any], named: dict[str, Any],
          out: Any) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    """Return positional arguments, named ones and ``out`` of each GPU. Raises SpecError for what is no list of its arrays."""
    if mesh.rank is not None:
        return [(tuple(args), named, out)]

    def parts(value: Any, name: str) -> Sequence[Any]:
        """Return the argument of each GPU."""
        if isinstance(value, SCALAR):
            return [value] * mesh.size
        if isinstance(value, (list, tuple)) and len(value) == mesh.size and all(map(is_array, value)):
            return value
        got = f"{len(value)} of them" if isinstance(value, (list, tuple)) and all(map(is_array, value)) else (
            f"a single array of shape {tuple(value.shape)}" if is_array(value) and hasattr(value, "shape") else told(value))
        raise SpecError(f"kernel {definition.name}: argument '{name}' under {mesh!r} must be a list of {mesh.size} arrays, one for each "
                        f"GPU, got {got}")

    names = definition.arguments.positional
    positional = [parts(value, names[number] if number < len(names) else f"number {number}") for number, value in enumerate(args)]
    by_name = {name: [value] * mesh.size if name in definition.statics or name not in definition.parameters else parts(value, name)
               for name, value in named.items()}
    outs: Sequence[Any] = [None] * mesh.size
    if out is not None:
        several = isinstance(out, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in out)
        lists = [parts(each, f"out[{number}]") for number, each in enumerate(out)] if several else [parts(out, "out")]
        outs = list(zip(*lists, strict=True))
    return [(tuple(each[gpu] for each in positional), {name: each[gpu] for name, each in by_name.items()}, outs[gpu])
            for gpu in range(mesh.size)]


def results(calls: Sequence[Call], out: Any) -> Any:
    """Return what a call on several GPUs returns, where `calls` are those of this process."""
    first = calls[0]
    if first.results is None or out is not None:
        return out
    lists = [list(each) for each in zip(*[
        launch.deliver(call.infos[0], call.results) if call.fresh else call.results for call in calls], strict=True)]
    return lists[0] if len(lists) == 1 else tuple(lists)


def check_alike(definition: Definition, calls: Sequence[Call]) -> None:
    """Raise SpecError unless the arrays of all GPUs have the same shapes, strides and types, and so the same variant and grid."""
    first, names = calls[0], definition.results.array_names(calls[0])
    for gpu, call in enumerate(calls):
        for name, one, other in zip(names, first.infos, call.infos, strict=True):
            for what in ("shape", "dtype", "strides"):
                if (want := getattr(one, what)) != (got := getattr(other, what)):
                    raise SpecError(f"kernel {definition.name}: argument '{name}' of GPU {gpu} has {what} {got}, and of GPU 0 {want}: "
                                    "all GPUs of a mesh have arrays of the same shapes and layouts")
        if call.variant is not first.variant or call.plan.grid != first.plan.grid:
            reason = next(iter(call.variant.obstacles.values()), "its arrays are laid out otherwise")
            raise SpecError(f"kernel {definition.name}: GPU {gpu} would need other machine code or another grid than GPU 0: {reason}")


def one_of(mesh: Mesh | None, definition: Definition, args: tuple[Any, ...], named: dict[str, Any],
           out: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any, int]:
    """Return the arguments of the first GPU and how many there are, for a call that is not run; a single array or an ArrayType
    may stand for all GPUs'."""
    if mesh is None:
        return args, named, out, 0
    check_mesh(mesh, definition.name)

    def single(value: Any) -> bool:
        return isinstance(value, (ArrayType, *SCALAR)) or is_array(value)

    given = [*args, *(value for name, value in named.items() if name in definition.parameters)]
    if mesh.rank is None and not all(map(single, given)):
        args, named, out = split(definition, mesh, args, named, out)[0]
    return args, named, out, mesh.size
