"""Register tiles: the values of a warpgroup, what is computed of them, and their ways from and to
arrays and shared memory.

===============================================  ===================================================
`tile`, `layouts`, `by_row`                      a tile, and which of its elements each lane has:
                                                 read these first
`refs`, `views`                                  arrays, tiles in shared memory, their indices and
                                                 views
`load`, `store`                                  blocks of arrays to registers and back
`store_ring`, `store_rows`, `tma`                tiles on their way out, by TMA or by the lanes;
                                                 copies by TMA
`shared`, `addresses`, `anywhere`, `order`       tiles in shared memory, and the barriers that
                                                 nobody has to write
`atomics`, `shared_atomics`, `elements`          reductions into arrays and shared memory; numbers
                                                 to single elements
`elementwise`, `mathematics`, `strips`, `parts`  arithmetic, where no lane needs another; parts and
                                                 shapes of tiles
`reduce`, `scan`, `conversions`, `exchange`      arithmetic between lanes
`unpack`                                         elements smaller than a byte, from shared memory
`mma`, `products`                                wgmma, and how an SM tells that products are done
===============================================  ===================================================

What a warpgroup does with values of its own belongs here; what waits for copies of others is in
`pipeline`. The Numba type of a tile has its shape, dtype and layout; its value is an array of
registers, which LLVM takes apart. The memory role has no such values, and no code for them:
elementwise code is pure and disappears there. Shuffles, votes and barriers do not, so operations
that make them get the context, and are typed as inert in that role.

References and tiles hold data; their operators, loads and stores are made methods of them by
`elementwise`, `load`, `shared`, `store` and `views`, which the rewriting of a kernel imports
(`compile.lift`).
"""
