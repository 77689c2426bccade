"""Checks of a kernel while it is compiled and afterwards; every error names the user's line
(`blame`).

They run in this order: `tile_flow` on the functions that Numba has typed, `roles` on the memory
role's LLVM IR, `register_budget` on the tiles beside products; `advisories` on nvJitLink's log;
`gate` on PTX and SASS, where `inspect("gate")` asks for it.

Here belongs what needs a compiled kernel. Not what the source shows (`lift`), what a specification
says alone (`plan`), or what happens in a run (`sim`). Read `gate` first; a rule for machine code is
a function there.
"""
