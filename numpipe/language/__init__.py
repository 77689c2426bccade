"""The operations of the kernel language, each with two implementations: `name.py` is simulated,
`name_cuda.py` is compiled.

`tiles` has values in registers, and how they are loaded and stored; `memory` has the primitives for
writing pipelines by hand, and per-lane code; `pipeline` has the ring, the only place that
implements its protocol; `grid` decides which CTA computes which tiles. Each imports only from the
folders listed before it.

An operation belongs here if a kernel's source can call it, or if such an operation is built from
it. Its body runs on the simulated SM, and its typer in the `_cuda` sibling generates its code
(`core.op`). Both call the same function for their checks, which works on values and on Numba types.
An operation that depends on its kernel (its rings, its axes, its role) gets the context,
`plan.context`, as a hidden first argument. The translation of source into calls of operations is in
`compile.lift`, the effect of a barrier or a copy on a simulated SM in `sim`, and PTX in
`intrinsics`. Read `tiles.tile` first, then `pipeline.ring`.
"""
