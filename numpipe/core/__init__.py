"""One operation, two meanings: what it does in CPython, on the current machine, and what it becomes
on the GPU.

Here belongs what every operation of the language stands on: how one is declared and gets both
meanings (`op`: read it first), what a machine can do (`machine`), arithmetic (`arith`, `numbers`),
functions as values (`functions`, `closure`), values that a role does not have (`inert`). No
operation on tiles, rings or arrays belongs here.

The folder `numba` alone imports Numba and llvmlite. It stands this low, although it belongs to
compiling, because typers and code generators stand beside the operations that they give a meaning,
in files called ``<name>_cuda``, which import it. A compile imports these when it first needs them,
so nothing that ``import numpipe`` or a simulation reaches imports Numba.
"""
