"""Targets and element types: the numbers and instructions of a GPU, which all other rooms read.

`dtypes` has a record for each element type: its NumPy and TMA types and its packing in register
tiles. Read it first. `register_layouts` has records of which lane and register hold which element
of a tile. `products` has a record for each matrix product: its instruction, operand types, register
layout and rates. `target` says what an architecture has (shared memory, registers, products), and
`targets` lists them. Nothing of kernels, plans or code belongs here: what depends on an element
type or on a GPU is a field of its record, which whoever needs it reads, so that a new type, product
or architecture is a new record.
"""
