"""One operation, two meanings: what it does in CPython, on the current machine, and what it becomes on the GPU.

Everything public is an ordinary Python function whose body acts on the current machine. Its meaning on the GPU is attached to the
same object:

======================  ============================  =========================================================
made with               meaning on the simulated SM   meaning on the GPU
======================  ============================  =========================================================
``@ptx("bar.sync…")``   the body                      one PTX statement, from the table beside it
``@op``                 the body                      a typer, in the sibling file ``<name>_cuda.py``
``@helper``             the body                      the body, compiled by Numba
======================  ============================  =========================================================

Here belongs what every operation of the language stands on: how one is declared (`op`: read it first), what a machine can do
(`machine`), arithmetic (`arith`, `numbers`), functions as values (`functions`, `closure`), values that a role does not have
(`inert`). No operation on tiles, rings or arrays belongs here. The folder `numba` alone imports Numba and llvmlite; it stands this
low because typers and code generators stand beside the functions that they belong to. Only ``_cuda`` files import it, by name and
when something is first compiled, so nothing that ``import numpipe`` or a simulation reaches imports Numba.
"""
