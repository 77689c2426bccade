"""Choice of the config for a matrix product on a given GPU.

`ways`     lists the configs that exist
`cost`     counts the cycles that a product takes with each of them
`network`  corrects that count, as learned from measurements
`gpu`      constants and weights of each GPU: a file in `gpus/`, found by the GPU's name
`ranking`  sorts the configs for a product: `choose` and `space`

examples/benchmarks/choice_fit fits constants and networks to measurements.
"""
