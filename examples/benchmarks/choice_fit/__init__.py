"""Fit the choice of `numpipe.ops.matmul`'s configs to a GPU: ``python -m choice_fit``.

`measurements` reads what ``random_products.py --fit`` writes; `fit` fits the constants and networks
of `numpipe.ops.choice` to it.
"""
