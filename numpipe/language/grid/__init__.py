"""Which CTA computes what: loops over tiles, their orders, tiles cut along K and what CTAs hand each other.

Read `tile_loop` first, then `tile_scheduler` and `splits`.
"""
