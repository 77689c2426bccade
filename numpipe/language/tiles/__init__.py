"""Register tiles: values that a warpgroup holds, arithmetic on them, and how they move to and from
arrays and shared memory.

===============================================  ===================================================
`tile`, `layouts`, `row_layouts`                 a tile, and which of its elements each lane holds:
                                                 read these first
`refs`, `array_views`, `indices`                 arrays, tiles in shared memory, their views and
                                                 indices
`load`, `store`, `scatter`                       blocks of arrays to registers and back
`store_ring`, `store_rows`, `tma`                stores of tiles, by TMA or by the lanes; TMA copies
`shared_tiles`, `addresses`,                     tiles in shared memory, and the barriers that
`scattered_shared`, `fence_order`                kernels need not write
`atomics`, `shared_atomics`, `elements`          reductions into arrays and shared memory; stores of
                                                 numbers to single elements
`elementwise`, `mathematics`, `strips`,          operations in which each lane uses only its own
`tile_slices`                                    elements; parts and shapes of tiles
`reduce`, `scan`, `top_k`, `conversions`,        operations that combine or exchange elements of
`exchange`                                       several lanes
`unpack`                                         elements smaller than a byte, from shared memory
`mma`, `fragments`, `products_in_flight`         matrix products, and how an SM reports that they
                                                 are complete
===============================================  ===================================================

Code that waits for another role's copies is in `pipeline`. The Numba type of a tile has its shape,
dtype and layout; its value is an array of registers, which LLVM splits. The memory role has no tile
values: elementwise code is pure, so LLVM removes it there. Shuffles, votes and barriers are not
pure, so operations that use them take the context, and are typed as inert in that role.

The classes of references and tiles hold data only. `elementwise`, `load`, `shared_tiles`, `store`
and `array_views` add their operators, loads and stores as methods; the AST pass imports these
modules (`compile.lift`).
"""
