"""What the user says of blocks, and what one compile or simulation of a kernel knows of itself.

Here belong specs and parameters, how blocks lie in shared memory, and what is handed out of it: `shape` (roles, registers, axes),
`shared_memory` (regions handed out) and `unit` (what is found on the way). What a kernel does with them is in `language`.
"""
