"""A kernel as it is written, compiled for types and Statics, and called.

Here belongs what lies between a call's arguments and a compile, a launch or a simulation: options
and parameters, outputs, the steps of a call, the bound call. How code is rewritten and compiled is
`compile`'s, how a launch is made and repeated `launch`'s. Read `decorator` for the options, then
`call_records`, which names the steps of a call, `definition`, `calls` and `planned_calls`, which
take them, `kernel` and `variants`; `warmup` compiles before calls, `jit` says whether a call may.

A kernel in a file: `archive` is the form, `exporting` writes it, `loading` makes a kernel of it.
`sources` writes the text of functions of shapes, `expressions` checks it, and `evaluation` computes
its value.

A compile serves a *variant*: dtypes, ranks, major orders, Statics, and for each array whether TMA
can address it. Shapes are run-time values. A parameter that the source stores to is an output,
which a call checks and copies back.
"""
