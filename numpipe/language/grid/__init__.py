"""The work of each CTA: loops over tiles, orders of tiles, tiles cut along K, and partial sums that
CTAs hand each other.

Read `tile_loop` first, then `orders`, the tiles' order on the host and in a kernel;
`tile_scheduler`, tiles from a counter that the CTAs share; `splits`, tiles cut along K; and what
adds up their parts: `partials` through global memory, `reduce_scatter` through the shared memory of
a cluster. `compile.lift` rewrites a loop over tiles into a `while` on int32, and the operations
here compute its indices: no loop object exists at run time. What happens within a tile belongs to
`pipeline` and `tiles`.
"""
