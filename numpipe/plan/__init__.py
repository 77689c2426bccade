"""Specs, which a user writes to describe blocks, and plans, which compiling or simulating a kernel
makes from them.

Start with `unit`. A `Unit` is one compile, or one simulation, of a kernel: each pipeline, store and
allocation asks it for a plan, and it hands out shared memory, barriers, ring counters and tensor
maps. It has three layers: `kernel_shape` (roles, registers, axes, cluster), `shared_memory` (the
bytes allocated so far) and `unit`. A plan is a frozen record of addresses and counts, the same for
the simulator and the GPU: `plans` for rings, `allocations` for what a kernel allocates, `block` and
`copy_plans` for TMA boxes, `layout` for the panels in shared memory. Two files are tables: `roles`,
the roles of warps and what each does with the kernel function, and `protocol`, the barriers of a
ring's slots, who arrives on them, and the recorded events of a step.

The other files contain records that a user makes (`specs`, `params`, `transforms`, `allocations`),
the byte formats in which a kernel reports waits (`wait_records`) and events (`profiling`) to the
host, and operations that need no tile: the `context` with the position of a CTA, `debug`, and
profiled regions. What a kernel does with a plan belongs to `language`, what the host does with it
to `launch`.
"""
