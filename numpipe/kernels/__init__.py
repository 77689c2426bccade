"""Kernels: definition, calls, compiled variants, and export to files.

This package holds everything between the arguments of a call and a compile, a launch or a
simulation: options, parameters, outputs, the steps of a call, and bound calls. Rewriting and
compiling the source is in `compile`; launching and relaunching is in `launch`. Start with
`decorator` for the options, then read `call_records`, which names the steps of a call,
`definition`, `calls` and `planned_calls`, which perform them, and `kernel` and `variants`. `warmup`
compiles kernels before they are called, and `jit` decides whether a call may compile.

Kernels in files: `archive` defines the format, `exporting` writes it, and `loading` reads it.
`sources` writes functions of shapes as text, `expressions` validates that text, and `evaluation`
evaluates it.

Each compile produces a *variant*, for a combination of dtypes, ranks, major orders, Statics, and
whether TMA can address each array. Shapes are run-time values. A parameter that the source stores
to is an output, which a call checks and copies back.
"""
