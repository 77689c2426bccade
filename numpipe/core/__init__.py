"""The foundation of the language's operations: each has one implementation in CPython, for the
simulated SM, and one on the GPU.

This package contains what all operations are built on: how an operation is declared and implemented
twice (`op`; read it first), what a machine can do (`machine`), arithmetic (`arith`, `numbers`),
functions as values (`functions`, `closure`), and values that a role does not have (`inert`).
Operations on tiles, rings or arrays do not belong here.

Only the subpackage `numba` imports Numba and llvmlite. It belongs to compilation, but is at this
low level because typers and code generators are next to the operations that they implement, in
files called ``<name>_cuda``, which import it. These files are imported when a compile first needs
them, so neither ``import numpipe`` nor a simulation imports Numba.
"""
