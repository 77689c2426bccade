"""The tiles that each CTA computes: loops over tiles, tile orders, split-K, and the exchange of
partial sums between CTAs.

Start with `tile_loop`. Then read `orders`, the order of the tiles in kernels and on the host;
`tile_scheduler`, which hands out tiles from a counter that all CTAs share; and `split_k`, which
cuts tiles along K. The partial sums of a cut tile are added up by `partials`, through global
memory, or by `cluster_sums`, through the shared memory of a cluster.

`compile.lift` rewrites a loop over tiles into a `while` loop on int32, and the operations here
compute its indices: there is no loop object at run time. The work within a tile belongs to
`pipeline` and `tiles`.
"""
