"""Whole kernels drawn at random and compared with NumPy: ``python -m tests.fuzz --help``.

Read `case` first: a drawn kernel is the text of a file, its arguments, and the names of the
features it has. `drawing` draws one. Three modules generate them: `programs` (statements over
tiles), `products` (matrix products by every schedule), and `pipeline_plans` with `pipeline_sources`
(every choice of the pipeline API). `meaning` executes a kernel with NumPy alone, `checks` compares,
and `__main__` runs the checks in worker processes.
"""
