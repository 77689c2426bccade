"""Targets and element types: the numbers and instructions of a GPU, which all other rooms read.

`dtypes` has a record for each element type: its NumPy and TMA types, how it lies in register tiles,
what products it has. Read it first. `target` says what an architecture has (shared memory,
registers, rates), `hopper` is one, and `targets` lists them. Nothing of kernels, plans or code
belongs here: what depends on an element type or on a GPU is a field of its record, which whoever
needs it reads, so that a new type or architecture is a new record.
"""
