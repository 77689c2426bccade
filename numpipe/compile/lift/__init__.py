"""From a kernel's source to the source that both executions run: a pass over its AST.

Here belong rewrites, and what must be known from the source before anything is compiled: which
parameters are outputs (`stored`), how the CTA is split into roles (`asked`), the kernel over arrays
that a kernel over tiles stands for (`wrapped`). The meaning of an operation does not belong here: a
rewritten kernel only calls operations, which say themselves what a call needs (`core.op`).

`lift` lists the rules; each is a method of a part of the pass, a class in a file of its subject.
The parts build on each other: `rewriter`, then `turns`, `splits` and `arithmetic`, `tile_loops`,
`loops`, `calls`, `nested` (with `waits`), `functions`, `bodies`; beside these `statements`,
`lane_code` and `reductions`. `fold` evaluates constants, `subset` says what a kernel cannot hold,
`positions` keeps the user's lines. Pipelines and allocations are known by their place in the source
(`Session.site`), and the `core.functions.Facts` of a function say what its callers need of it, e.g.
whether it holds a pipeline.

A new rule is a method in the file of its subject, and a line in the tables of `lift`. Read `lift`
first, then `rewriter` and `loops`.
"""
