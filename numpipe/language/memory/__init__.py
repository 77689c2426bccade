"""Shared memory, barriers and copies that a kernel manages itself, and code for each lane.

Here belongs what a kernel may use beside pipelines, or in place of one. Not here: rings
(`pipeline`), what a tile can do (`tiles`), the layout of allocations in the CTA's shared memory
(`plan.allocations`), and the boxes of a TMA copy (`plan.copy_plans`, `tiles.tma`).

Read `shared` first: the references to what a kernel allocates. Then `copies` (TMA copies to and
from such tiles) and `phases` (how warpgroups and copies arrive at a barrier, and wait for it).
`remote` reaches the shared memory of other CTAs of a cluster. `prefetched` keeps the beginning of
an array that steers. `registers` moves registers between warpgroups. `per_lane` is the code that a
body may use when each lane runs it for itself. The memory role sees references, and issues the
copies of `prefetched` alone.
"""
