"""The pass over a kernel's AST that produces the source for the simulator and the GPU.

This folder has the rewrites, and the questions that must be answered from the source before
anything is compiled: which parameters are outputs (`stored_parameters`), how the CTA is split into
roles (`role_split`), and which kernel over arrays a kernel over tiles becomes (`tiled_kernels`).
Operations are implemented elsewhere: a rewritten kernel only calls operations, which declare
themselves what a call needs (`core.op`).

`lift` lists the rules; each is a method of a part of the pass, a class in the file of its subject.
The parts build on each other: `rewriter`, then `turn_placement`, `split_loops` and `arithmetic`,
`tile_loops`, `loops`, `calls_and_slices`, `nested` (with `wait_counts`), `function_calls`,
`bodies`; independent of these are `statements`, `lane_code` and `reductions`. `constants` evaluates
constants, `subset` defines what a kernel cannot contain, and `positions` keeps the user's lines.
Pipelines and allocations are identified by their place in the source (`Session.site`). The
`core.functions.Facts` of a function tell its callers what they need to know, such as whether it
contains a pipeline.

A new rule is a method in the file of its subject, and a line in the tables of `lift`. Read `lift`
first, then `rewriter` and `loops`.
"""
