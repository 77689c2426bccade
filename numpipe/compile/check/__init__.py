"""Checks of a kernel during and after compilation; every error names the user's line
(`error_lines`).

They run in this order: `tile_flow` on the functions that Numba has typed, `inert_roles` on the LLVM
IR of roles that do not compute, `register_budget` on the tiles that are live during products,
`advisories` on nvJitLink's log, and `gate` on PTX and SASS, if `inspect("gate")` requests it.

This folder has the checks that need a compiled kernel. Checks of the source are in `lift`, checks
of specifications in `plan`, and checks of a run in `sim`. Read `gate` first; a rule for machine
code is a function there.
"""
