"""The loop form of a pipeline: a `for` over grid steps whose tiles are loaded ahead by the memory role.

::

    pipe = numpipe.pipeline(grid=(steps,), max_concurrent_steps=4, in_specs=(
        BlockSpec((128, 64), lambda k: (m, k)), BlockSpec((256, 64), lambda k: (n, k))))
    for (k,), (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)

The compute role runs the loop as it stands, each step after its tiles have landed. The memory role runs the same source:
an innermost loop fills all its slots at once and yields nothing; a loop whose body holds another pipeline is *stepped*,
so that inner rings fill in program order.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from ._op import constant, op
from .barriers import barriers_of
from .context import Context
from .errors import CompileError, SpecError
from .inert import Inert
from .refs import GmemRef
from .ring import Ring, advance, each, fill, produce, set_steps_done, slot_of, steps_done, tiles_of, unravel
from .single import advance_alone, begin_alone
from .specs import BlockSpec

IN_A_FOR = ("a pipeline is called in a `for` of the function that makes it: for (indices), (tiles) in pipe(arrays): — it cannot be "
            "passed to another one")


class Pipeline:
    """What `pipeline` returns inside a kernel; call it on the arrays and loop over the result."""

    def __init__(self, np_: Context, grid: tuple[Any, ...], specs: tuple[BlockSpec, ...], slots: int, delay: int,
                 site: str, single: bool = False) -> None:
        self.np, self.grid, self.specs, self.slots, self.delay, self.site = np_, grid, specs, slots, delay, site
        self.single = single or not np_.unit.warp_specialized
        """whether each compute warpgroup runs it for itself"""

    def __call__(self, *arrays: Any) -> NoReturn:
        raise CompileError(f"kernel {self.np.unit.kernel}, pipeline at {self.site}: {IN_A_FOR}")


def pipeline(*, grid: tuple[Any, ...], in_specs: tuple[BlockSpec, ...], max_concurrent_steps: int = 2,
             delay_release: int | None = None) -> NoReturn:
    """A software pipeline over `grid`, inside a kernel: ``for (indices), (tiles) in pipeline(...)(arrays):``.

    grid                  steps per dimension, run-time int32 values, last one fastest
    in_specs              one BlockSpec for each array the pipeline is called on
    max_concurrent_steps  slots of the ring: steps whose tiles are in shared memory at once (>= 1)
    delay_release         steps a slot is kept after use (default: `CompilerParams.delay_release`); with 1 the products of
                          a step may still run while the next step is issued. Must be below max_concurrent_steps.

    Raises SpecError when the ring does not fit in shared memory, with the sum. Leaving the loop by `break` or `return`
    is a CompileError: the memory role would still load the remaining steps.

    In a kernel with ``warp_specialized=False`` it is single-stream: each warpgroup that comes there runs it for itself, with
    slots of its own, as it does `emit_pipeline`.
    """
    raise RuntimeError("numpipe.pipeline works inside a kernel only: call it from a @numpipe.kernel function")


@op
def make_pipeline(np_: Context, grid: Any, in_specs: Any, max_concurrent_steps: int, delay_release: int | None,
                  site: str) -> Pipeline:
    """`pipeline(...)` as the AST pass writes it: with the context and the place in the source."""
    return made(np_, grid, in_specs, max_concurrent_steps, delay_release, site)


def made(np_: Context, grid: Any, in_specs: Any, max_concurrent_steps: int, delay_release: int | None, site: str,
         single: bool = False) -> Pipeline:
    """A pipeline; a `single` one is run by each compute warpgroup for itself."""
    where = f"kernel {np_.unit.kernel}, pipeline at {site}"
    if not isinstance(grid, tuple) or not grid:
        raise SpecError(f"{where}: grid must be a tuple of step counts, got {grid!r}")
    if not isinstance(in_specs, tuple) or not all(isinstance(s, BlockSpec) for s in in_specs) or not in_specs:
        given = ", ".join(type(s).__name__ for s in in_specs) if isinstance(in_specs, tuple) else type(in_specs).__name__
        raise SpecError(f"{where}: in_specs must be a tuple of BlockSpec, got ({given})" if isinstance(in_specs, tuple) else
                        f"{where}: in_specs must be a tuple of BlockSpec, got {given}: write (spec,)")
    slots = constant(where, "max_concurrent_steps", max_concurrent_steps)
    delay = delay_of(in_specs, constant(where, "delay_release", delay_release), np_.unit.params.delay_release)
    try:
        sizes = tuple(n if single and isinstance(n, Inert) else np.int32(operator.index(n)) for n in grid)
    except TypeError:
        raise SpecError(f"{where}: grid must hold integers, got {grid}") from None
    return Pipeline(np_, sizes, in_specs, slots, delay, site, single)


def delay_of(specs: Any, builder: int | None, kernel: int) -> int:
    """Option precedence: BlockSpec, then the pipeline, then the kernel. One ring releases all its operands together."""
    own: list[int] = [s.delay_release for s in specs if s.delay_release is not None]
    if own:
        return max(own)
    return kernel if builder is None else builder


def reachable(np_: Context, site: str) -> None:
    """Somebody must issue a pipeline's loads: the memory role comes by only where the AST pass saw that there are some."""
    if np_.compute_only:
        raise CompileError(unreachable(np_.unit.kernel, site))


def unreachable(kernel: str, site: str) -> str:
    return (f"kernel {kernel}, pipeline at {site}: only compute warpgroups come here, so nobody issues its loads: a body or "
            "compute_context that runs a pipeline of its own holds it, or calls the function that holds it by name")


@op
def steps(pipe: Pipeline, refs: Any, nested: int, groups: int) -> Iterator[tuple[Any, Any]]:
    """``pipe(arrays)`` in a `for`: yields ``(indices), (tiles)``.

    `nested`: the body holds another pipeline. `groups`: wgmmas that every step is sure to issue.
    """
    return steps_over(pipe, refs, nested, groups, (False, False))


def steps_over(pipe: Pipeline, refs: Any, nested: int, groups: int, manual: tuple[bool, bool]) -> Iterator[tuple[Any, Any]]:
    """The same with barriers behind the tiles, where the body waits for, or releases, its operands itself (`manual`)."""
    if not pipe.single:
        reachable(pipe.np, pipe.site)
    if not all(isinstance(ref, GmemRef) for ref in refs):
        given = ", ".join(type(ref).__name__ for ref in refs)
        raise SpecError(f"kernel {pipe.np.unit.kernel}, pipeline at {pipe.site}: called on ({given}); a pipeline is called "
                        "on the kernel's array parameters")
    if len(refs) != len(pipe.specs):
        raise SpecError(f"kernel {pipe.np.unit.kernel}, pipeline at {pipe.site}: called on {len(refs)} arrays, but in_specs has "
                        f"{len(pipe.specs)}")
    blocks = tuple((ref.index, *spec.block) for ref, spec in zip(refs, pipe.specs, strict=True))
    plan = pipe.np.unit.plan_ring(pipe.site, blocks, pipe.slots, pipe.delay, manual, pipe.single)
    ring = Ring(pipe.np, plan, refs, tuple(spec.index_map for spec in pipe.specs), groups)
    return _iterate(ring, pipe.grid, nested)


def _iterate(ring: Ring, grid: tuple[Any, ...], nested: int) -> Iterator[tuple[Any, Any]]:
    total = np.int32(1)
    for size in grid:
        total = total * np.int32(operator.index(size))
    first = steps_done(ring)
    if ring.np.memory and not nested:
        produce(ring, grid, total, first)
        return
    k = np.int32(0)
    if ring.plan.private and ring.np.memory:
        while k < total:
            yield unravel(k, grid), tiles_of(ring, 0)
            k = k + np.int32(1)
        return
    if ring.plan.private:
        begin_alone(ring, grid, total, first)
        while advance_alone(ring, grid, k, total, first):
            yield unravel(k, grid), tiles_of(ring, slot_of(ring, first + k))
            k = k + np.int32(1)
        return
    if ring.np.memory:
        while k < total:
            indices = unravel(k, grid)
            each(ring, "all", 0, fill, indices, first + k)
            yield indices, tiles_of(ring, slot_of(ring, first + k)) + barriers_of(ring, k, first + k)
            k = k + np.int32(1)
        set_steps_done(ring, first + total)
        return
    while advance(ring, k, total, first):
        yield unravel(k, grid), tiles_of(ring, slot_of(ring, first + k)) + barriers_of(ring, k, first + k)
        k = k + np.int32(1)
