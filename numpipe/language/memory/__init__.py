"""Shared memory, barriers and copies that a kernel manages itself, and code for each lane.

This folder has what a kernel may use in addition to pipelines, or in place of them. Rings are in
`pipeline`, operations on tiles in `tiles`, the layout of allocations in the CTA's shared memory in
`plan.allocations`, and the boxes of a TMA copy in `plan.copy_plans` and `tiles.tma`.

Start with `scratch`, the references to what a kernel allocates. Then read `copies` (TMA copies to
and from such tiles) and `phases` (how warpgroups and copies arrive at a barrier, and wait for it).
`remote` and `cluster_refs` access the shared memory of other CTAs of a cluster. `peer_arrays` and
`semaphores` access the memory of other GPUs. `prefetched` keeps the beginning of an integer array
in shared memory. `registers` moves registers between warpgroups. `per_lane` is for bodies that each
lane executes on its own. The memory role gets references too, but issues only the copies of
`prefetched`.
"""
