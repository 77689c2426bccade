"""Which config a matrix product gets, on which GPU.

`ways`     the configs that exist
`cost`     a count of the cycles that a product takes with each of them
`network`  a correction of that count, learned from measurements
`gpu`      the constants and weights of each GPU: a file in `gpus/`, found by the GPU's name
`ranking`  the order of the configs for a product: `choose` and `space`
`fit`      constants and networks from `measurements`: ``python -m numpipe.ops.choice``
"""
