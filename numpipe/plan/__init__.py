"""Specs, which a user writes about blocks, and plans, which one compile or one simulation of a
kernel makes of them.

Read `unit` first. A `Unit` is one compile, or one simulation, of a kernel: each pipeline, store and
allocation asks it for a plan, and it hands out shared memory, barriers, ring counters and tensor
maps. It has three layers: `shape` (roles, registers, axes, cluster), `shared_memory` (the bytes
given away so far) and `unit`. A plan is a frozen record of addresses and counts, the same in both
executions: `plans` for rings, `allocations` for what a kernel allocates, `block` and `copies` for
TMA boxes, `layout` for the panels in shared memory. Two files are tables that code asks:
`roles`, what each role does with the kernel function, and `protocol`, the barriers of a ring's
slots, who arrives on them, and what is noted of a step.

Here belong the records that a user makes (`specs`, `params`, `transforms`, `allocations`), the
plans, the bytes by which a kernel tells the host of waits (`watch`) and events (`profiling`), and
operations that need no tile: the `context` with the place of a CTA, `debug` and regions of a
profile. What a kernel does by a plan belongs to `language`, what the host does to `launch`.
"""
