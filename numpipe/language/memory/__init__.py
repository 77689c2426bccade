"""Shared memory, barriers and copies that a kernel manages itself, and code for each lane.

Read `shared` first: what a kernel allocates; then `copies` and `phases`.
"""
