"""One operation, two meanings: what it does in CPython, on the current machine, and what it becomes on the GPU.

Here belongs what every operation of the language stands on: how it is declared (`op`), what a machine can do (`machine`),
arithmetic of kernels' numbers, values that are called, values that a role has not. Read `op` first. The folder `numba` alone
imports Numba.
"""
