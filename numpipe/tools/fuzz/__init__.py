"""Whole kernels drawn at random: simulated beside NumPy, verified, compiled, run on a GPU (``python -m numpipe fuzz``).

Read `case` first: a drawn kernel is a file's text, its arguments, and features that are counted. `drawing` draws one. Three write
them: `programs` (statements over tiles), `products` (tiles of a matrix product, by all schedules), `pipeline_plans` with
`pipeline_sources` (every choice of the pipeline API). `meaning` executes what they wrote by NumPy alone, `checks` says what is
wrong, `campaign` does so in processes (`worker`) for some minutes, and `counts` keeps what was done.
"""
