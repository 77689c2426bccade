"""Targets and element types: the properties and instructions of a GPU, used by all other rooms.

Start with `dtypes`, which has a record for each element type: its NumPy and TMA types and its
packing in register tiles. `register_layouts` records which lane and register hold which element of
a tile. `products` has a record for each matrix product: its instruction, operand types, register
layout and rates. `target` describes an architecture (shared memory, registers, products), and
`targets` lists them. Nothing about kernels, plans or code belongs here. Whatever depends on an
element type or on a GPU is a field of its record, so a new type, product or architecture is a new
record.
"""
