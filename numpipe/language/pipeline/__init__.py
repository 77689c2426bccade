"""The pipeline: a ring of slots in shared memory, its barriers, and the loops and bodies that go
through its steps.

Here belongs the protocol by which the memory role, or a lane of a warpgroup, loads tiles ahead, and
by which compute warpgroups use and release them; also the order in which warpgroups take turns.
Each file has its Numba types and code in its ``_cuda`` sibling. Not here: what a tile in a slot can
do (`tiles`), barriers and copies that a kernel manages itself (`memory`), which tile a CTA works on
(`grid`), where rings lie in shared memory (`plan`), and how source becomes calls of these
operations (`compile.lift`).

Read `ring` first: it is the protocol of one ring. Then `steps` (all rings of a pipeline around one
step), `pipelines` (the loop form, and the checks of every pipeline) and `emit` (the body form,
which runs the same loop). `barriers` gives barriers to a body, `outputs` stores tiles, `chains`
shares rings between pipelines, `number_ring` sends numbers, `turns` and `order_tokens` order
warpgroups.
"""
