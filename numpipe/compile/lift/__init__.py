"""From a kernel's source to the source that both executions run: a pass over its AST.

Here belong rewrites and what the pass must know before anything is compiled. Read `lift` first, then `rewriter` and `loops`.
"""
