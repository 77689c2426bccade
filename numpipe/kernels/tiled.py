"""Kernels over tiles: the in_specs and out_specs of `@numpipe.kernel`, checked when the kernel is
defined."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..arch.dimensions import Ints, Names
from ..core.functions import Function
from ..diagnostics.argument_checks import SHAPE, as_tuple, require
from ..diagnostics.errors import SpecError
from ..plan.params import CompilerParams
from ..plan.specs import BlockSpec, Persistent
from ..plan.split import Grid

if TYPE_CHECKING:
    from ..compile.lift.positions import Source
    from ..compile.lift.tiled_kernels import Wrapped


@dataclass(frozen=True)
class Tiled:
    """A kernel over tiles. `dims` are the dimensions of its grid, either fixed or computed from a
    call's arguments."""

    kernel: str
    ins: tuple[BlockSpec, ...]
    outs: tuple[BlockSpec, ...]
    grid: Grid
    roles: bool

    def source(self, source: Source, arrays: Sequence[str]) -> Wrapped:
        """Rewrite the kernel into one over arrays."""
        from ..compile.lift.tiled_kernels import wrapped

        return wrapped(source, arrays, self.ins, self.outs, self.grid, self.roles)

    def check(self, dims: Any) -> Ints:
        """Return all dimensions of a call's grid. Raises SpecError if their number differs from
        what the index maps take."""
        sizes = as_tuple(dims)
        if len(sizes) != self.grid.rank:
            raise SpecError(
                f"kernel {self.kernel}: the grid {dims!r} has {len(sizes)} dimensions, but the "
                f"index maps of its specs take {self.grid.rank} indices"
            )
        return sizes

    def steps(self, grid: Callable) -> Callable[..., Ints]:
        """Return the function of the arguments that returns the sizes of the sequential
        dimensions."""

        @functools.wraps(grid)
        def sequential(**arguments: Any) -> Ints:
            sizes = self.check(grid(**arguments))
            require(f"kernel {self.kernel}", {"grid": sizes}, grid=SHAPE)
            return tuple(map(int, sizes[self.grid.parallel :]))

        return sequential

    def ctas(self, grid: Any) -> Any:
        """Return the launch's grid, which has only the parallel dimensions. It is a function of the
        arguments if `grid` is one."""

        def parallel(dims: Any) -> Ints:
            return self.check(dims)[: self.grid.parallel] or (1,)

        if not callable(grid):
            return parallel(grid)
        return functools.wraps(grid)(lambda **arguments: parallel(grid(**arguments)))


def tiled(
    kernel: str,
    parameters: Sequence[str],
    in_specs: Any,
    out_specs: Any,
    grid: Any,
    params: CompilerParams,
    roles: bool,
) -> Tiled | None:
    """Return the kernel over tiles that these options define, or None if they define a kernel over
    arrays.

    Raises SpecError for specs that do not fit the kernel's parameters and grid.
    """
    if not isinstance(params, CompilerParams):
        return None  # `Options.check` refuses this
    semantics = params.dimension_semantics
    if in_specs is None and out_specs is None:
        if semantics is not None:
            raise SpecError(
                f"kernel {kernel}: dimension_semantics={semantics} select the dimensions that are "
                "steps of the kernel's own pipeline, which needs in_specs= or out_specs= on the "
                "kernel; without them all dimensions of the grid are CTAs"
            )
        return None
    ins, outs = _specs(kernel, "in_specs", in_specs), _specs(kernel, "out_specs", out_specs)
    if len(parameters) != len(ins) + len(outs):
        raise SpecError(
            f"kernel {kernel}: it has {len(parameters)} parameters ({', '.join(parameters)}), but "
            f"{len(ins)} in_specs and {len(outs)} out_specs: it must have one parameter for each, "
            "in this order; make scalars keyword-only"
        )
    if isinstance(grid, Persistent):
        raise SpecError(
            f"kernel {kernel}: numpipe.persistent() is a grid for kernels that loop over tiles; "
            "with in_specs, grid must be the number of tiles"
        )
    rank = _rank(kernel, (*ins, *outs), grid, semantics)
    words = semantics or ("parallel",) * rank
    if len(words) != rank:
        raise SpecError(
            f"kernel {kernel}: dimension_semantics {words} has {len(words)} dimensions, but the "
            f"grid has {rank}"
        )
    sizes = None if callable(grid) else as_tuple(grid)
    parts = Grid(rank, words.count("parallel"), sizes)
    if words != parts.semantics:
        raise SpecError(
            f"kernel {kernel}: dimension_semantics {words}: the sequential dimensions must be "
            "last, because they are the loop that each CTA runs"
        )
    require(f"kernel {kernel}", {"grid": sizes or ()}, grid=SHAPE)
    return Tiled(kernel, ins, outs, parts, roles)


def _specs(kernel: str, name: str, option: Any) -> tuple[BlockSpec, ...]:
    specs = (option,) if isinstance(option, BlockSpec) else () if option is None else option
    if not isinstance(specs, tuple) or not all(type(spec) is BlockSpec for spec in specs):
        got = repr(option)
        if isinstance(specs, (tuple, list)):
            kinds = ", ".join(type(spec).__name__ for spec in specs)
            got = f"({kinds})" if isinstance(specs, tuple) else f"[{kinds}]"
        raise SpecError(
            f"kernel {kernel}: {name} must be a BlockSpec or a tuple of them, one for each "
            f"parameter, got {got}"
        )
    return specs


def _rank(kernel: str, specs: Sequence[BlockSpec], grid: Any, semantics: Names | None) -> int:
    """Return the number of dimensions of the grid. For a grid function, it is the length of
    `semantics` or the number of parameters of the index maps."""
    if not callable(grid):
        return len(grid) if isinstance(grid, (tuple, list)) else 1
    if semantics is not None:
        return len(semantics)
    for spec in specs:
        function = spec.index_map
        plain = function.function if isinstance(function, Function) else function
        if isinstance(plain, FunctionType):
            return plain.__code__.co_argcount
    raise SpecError(
        f"kernel {kernel}: the grid is a function of the arguments, and no index map shows its "
        "number of dimensions: give dimension_semantics"
    )
