"""The pipeline: a ring of slots, its barriers, the loops and bodies over it.

Read `ring` first: it is the protocol. Then `steps` (all rings around one step), `pipelines` (the loop) and `emit` (the body form).
"""
