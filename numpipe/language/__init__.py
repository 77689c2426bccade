"""What a kernel may say, with both of its meanings side by side: `name.py` is simulated,
`name_cuda.py` compiled.

`tiles` has values in registers, and how they come and go; `memory` the primitives of pipelines by
hand, and code for lanes; `pipeline` the ring, the only place where its protocol is written; `grid`
which CTA computes what. Each imports from those before.

An operation belongs here if a kernel's source can call it, or if such an operation is made of it.
Its body runs on the simulated SM and its typer in the `_cuda` sibling makes its code (`core.op`).
Both call one function for what they check, which asks values and Numba types the same questions. An
operation that depends on its kernel (its rings, its axes, its role) gets the context,
`plan.context`, as a hidden first argument. How source becomes calls of operations is in
`compile.lift`, what a barrier or a copy does to a simulated SM in `sim`, and PTX in `intrinsics`.
Read `tiles.tile` first, then `pipeline.ring`.
"""
