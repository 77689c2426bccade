"""Pipelines: a ring of slots in shared memory, its barriers, and the loops and bodies that step
through it.

This folder has the protocol by which the memory role, or a lane of a warpgroup, loads tiles ahead,
and by which compute warpgroups use and release them; also the order in which warpgroups take turns.
The Numba types and code of each file are in its ``_cuda`` sibling. Operations on a tile in a slot
are in `tiles`, barriers and copies that a kernel manages itself in `memory`, the choice of a CTA's
tiles in `grid`, the layout of rings in shared memory in `plan`, and the translation of source into
calls of these operations in `compile.lift`.

Start with `ring`, the protocol of one ring. Then read `steps` (one step of all rings of a
pipeline), `pipelines` (the loop form, and the checks of every pipeline) and `body_form` (which runs
the same loop). `operand_barriers` passes barriers to a body, `pipeline_outputs` stores tiles,
`chains` shares rings between pipelines, `number_ring` sends numbers, and `pingpong` and
`warpgroup_order` order warpgroups.
"""
