"""The body form of a single-stream pipeline: every compute warpgroup that comes there runs the whole of it for itself.

::

    def body(indices, a_tile, b_tile, acc):
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    acc = numpipe.emit_pipeline(
        body, grid=(steps,), max_concurrent_steps=4, delay_release=1, init_carry=numpipe.zeros((64, 128), np.float32), in_specs=(
            BlockSpec((64, 64), lambda k: (m + wg, k)), BlockSpec((128, 64), lambda k: (n, k))))(a, b)

Slots, barriers and counter are the warpgroup's own, and so are its loads: grid and index maps may depend on the warpgroup
axis. `single` is the loop. In a kernel with a memory role that role has no part in it, unless the body holds a pipeline
whose loads it does issue: then it runs the body with inert tiles, at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ...core.closure import bind
from ...core.facts import facts_of
from ...core.inert import Inert
from ...core.op import op, outside
from ..memory.per_lane import mapped
from ..tiles.tile import Tile
from .emit import Emitted, check_body, run_carry, run_steps
from .pipelines import Pipeline, made

__all__ = ["emit_pipeline"]

SLOTS = 1
CARRY = "the carry of a single-stream pipeline"


def emit_pipeline(body: Callable[..., Any], *, grid: tuple[Any, ...], in_specs: tuple[Any, ...] = (),
                  out_specs: tuple[Any, ...] = (), max_concurrent_steps: int | None = None, delay_release: int | None = None,
                  init_carry: Any = None) -> NoReturn:
    """A software pipeline that each compute warpgroup runs for itself, inside a kernel; call the result on the arrays.

    body                  ``body(indices, *tiles)``, or ``body(indices, *tiles, carry) -> carry``: indices is a tuple of int32,
                          tiles are in shared memory, in slots that belong to the warpgroup alone
    grid                  steps per dimension, run-time int32 values, last one fastest; another one in each warpgroup, if wanted
    in_specs              one BlockSpec for each array; tuples and NamedTuples of them for arrays in such tuples
    out_specs             the same for arrays that the body writes, behind the inputs: each warpgroup stores its own blocks
    max_concurrent_steps  slots of each warpgroup's ring: steps whose tiles are in shared memory at once (>= 1); default:
                          `CompilerParams.max_concurrent_steps`, else 1
    delay_release         steps a slot is kept after use (default: `CompilerParams.delay_release`): with 1 a slot is filled
                          while the products of the next step run, which hides what filling costs
    init_carry            a tile, a number, or a tuple of them; the call returns the final carry, in which no product is in
                          flight any more. It keeps its types and shapes from step to step.

    In kernels with a memory role and in those without (``warp_specialized=False``); there the loop form, `numpipe.pipeline`,
    is the same. Not every warpgroup has to come to it. Where there is a memory role, it has no final carry: a tile is inert
    there, and a number steers nothing.

    Raises SpecError when the rings of all warpgroups do not fit in shared memory, and for functions that do not fit the call.
    """
    raise outside("emit_pipeline")


@op(context=True)
def make_alone(np_: Any, grid: Any, in_specs: Any, out_specs: Any, max_concurrent_steps: int | None, delay_release: int | None,
               steps_of: None, known: tuple[int | None, ...], site: str) -> Pipeline:
    """Its pipeline, as the AST pass writes it: `make_pipeline` with another default."""
    return made(np_, grid, in_specs, out_specs, max_concurrent_steps, delay_release, steps_of, known, site, single=True,
                default=SLOTS)


@op
def emitted_alone(pipe: Pipeline, body: Any, init_carry: Any) -> Callable[..., Any]:
    """`emit_pipeline(...)` as the AST pass writes it."""
    check_body(pipe, facts_of(body), type(body).__name__, init_carry is not None, "init_carry")
    return bind(run_alone, Emitted(pipe, body, None, init_carry))


@op
def run_alone(emitted: Emitted, *refs: Any) -> Any:
    """``emit_pipeline(...)(arrays)``."""
    np_ = emitted.pipe.np
    if np_.memory and not emitted.mirrored:
        return mapped(inert_part, emitted.carry)
    outer = np_.compute_only
    np_.compute_only = outer or not emitted.mirrored
    result = run_steps(emitted, refs) if emitted.carry is None else run_carry((emitted, refs), emitted.carry)
    np_.compute_only = outer
    return result


def inert_part(carry: Any) -> Any:
    """Part of a final carry as the memory role sees it, which did not run the steps."""
    return carry if carry is None or isinstance(carry, Tile) else Inert(CARRY)
