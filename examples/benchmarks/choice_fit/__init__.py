"""Fit the choice of matmul configs to a GPU (docs/tune_another_gpu.md): ``python -m choice_fit``.

`measurements`  reads the times that random_products.py wrote
`fit`           fits constants and networks to them
"""
